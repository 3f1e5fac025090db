// Runs after "npm ci", under the Node that npm itself runs on: what was just installed must not vouch for itself.
const { createHash } = require('node:crypto');
const { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync } = require('node:fs');
const { join } = require('node:path');

const sums = require('./node-sums.cjs');

const modules = join(__dirname, '..', 'node_modules');
const node = join(modules, 'node', 'bin', 'node');
const expected = sums[process.arch];
// Without development packages there isn't one, and onejob takes the Node of the host.
if (existsSync(node)) {
  const found = createHash('sha256').update(readFileSync(node)).digest('hex');
  if (expected === undefined) {
    console.error(`onejob: Node for ${process.arch} in ${node} was not checked: no checksum of it is known (sha256 ${found}).`);
  } else if (found !== expected) {
    rmSync(node);
    console.error(
      `onejob: The Node that npm has fetched is not the one that belongs here: ${node} has sha256 ${found}, expected was ${expected}. ` +
        'It was removed and nothing of onejob runs it. Run "npm ci" again with another registry or network; if you changed the ' +
        'version of "node" in package.json, write its checksum into scripts/node-sums.cjs.',
    );
    process.exit(1);
  }
}

// npm links the commands of dependencies, not a checkout's own: this makes "npx onejob" work right after "npm ci".
const bin = join(modules, '.bin');
mkdirSync(bin, { recursive: true });
rmSync(join(bin, 'onejob'), { force: true });
symlinkSync('../../bin/onejob', join(bin, 'onejob'));
