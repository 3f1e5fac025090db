// Written for any old Node: it runs before anything is installed, and its one sentence is all an old Node gets to say.
var major = Number(process.versions.node.split('.')[0]);
if (major < 20) {
  console.error(
    'onejob needs Node 20 or newer to install (Node 24 then comes with it), but this is Node ' +
      process.versions.node +
      ': install a newer one, e.g. from nodejs.org or with "nvm install 24", and run "npm ci" again.',
  );
  process.exit(1);
}
