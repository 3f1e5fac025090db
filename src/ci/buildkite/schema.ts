/** How a service of type `buildkite` is written. */
import { key, sha256, token } from '../../schema/key.ts';
import type { Kinds } from '../../schema/strict.ts';
import { pathProblem } from '../../schema/volumes.ts';

export const usualEndpoint = 'https://agent.buildkite.com/v3';
/** Version of the agent that this onejob was tried with. */
export const pinnedAgent = '3.137.0';

/** Never shows what was found, which may contain a password. */
const endpoint = (v: Kinds) =>
  v.value((found) => {
    const what = `a web address such as "${usualEndpoint}"`;
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (/^[a-z]+:\/\/[^/]*@/i.test(found)) return v.no(`contains a user or a password; expected ${what}`);
    const good = /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(found) && URL.canParse(found);
    return good ? v.yes(found.replace(/\/+$/, '')) : v.no(`expected ${what}`);
  });

const packageFrom = (v: Kinds) =>
  v.value((found) => {
    const what = 'an https address that ends in ".tar.gz", an absolute path, or "image"';
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (found === 'image' || /^https:\/\/[^\s/?#@]+\/\S+\.tar\.gz$/.test(found)) return v.yes(found);
    if (!found.startsWith('/')) return v.no(`${JSON.stringify(found)} is not ${what}`);
    const why = pathProblem(found);
    return why === null ? v.yes(found) : v.no(why);
  });

export const buildkitePackageKeys = {
  version: key(
    (v) => v.text('a version such as "3.137.0"', /^\d{1,4}\.\d{1,5}\.\d{1,5}(-[a-z]+(\.\d{1,5})?)?$/),
    undefined,
    'version',
    {
      description: 'Version of the agent; onejob refuses any other.',
      example: pinnedAgent,
      shown: `\`${pinnedAgent}\`, or what \`from\` names`,
    },
  ),
  from: key(packageFrom, undefined, 'address, path or `image`', {
    description:
      'Where onejob gets the agent from: the address or path of its `.tar.gz`, or the path of the program itself, which onejob mounts into the sandboxes. `image`: each image brings its own.',
    example: '/usr/local/bin/buildkite-agent',
    shown: "Buildkite's release of that version",
  }),
  sha256: sha256('Checksum that the file named by `from` must have.', "Buildkite's own for its releases"),
};

export const buildkiteKeys = {
  token: token(
    'Agent token of a cluster, with which onejob reserves jobs. It never enters a sandbox, unless `registration` says so.',
  ),
  registration: key((v) => v.oneOf(['manager', 'in-agent']), 'manager', {
    description:
      'Who registers an agent with the service. `manager`: onejob reserves each job and decides what it may do, and its agent has a token for that job alone. `in-agent`: the agent, with `token`, for organisations without clusters; every job can read the token, and onejob sees no job before it runs.',
    example: 'in-agent',
  }),
  metrics_token: token('Another agent token, used only for the counts of the queues: it needs no other rights.'),
  endpoint: key(endpoint, usualEndpoint, 'address', {
    description: 'Address of the Agent API.',
    example: usualEndpoint,
  }),
  poll: key((v) => v.duration(2000, '2s'), 10_000, {
    description: 'How often onejob asks for the counts of the queues; once for all pools.',
    example: '30s',
  }),
  boot_timeout: key((v) => v.duration(1000, '1s'), 60_000, {
    description:
      'How long the agent in a sandbox may take to acquire its job. After that, onejob ends the sandbox and tries the job again, three times at most. With `registration: in-agent`: how long it may take to come online.',
    example: '2m',
  }),
  hold_timeout: key((v) => v.duration(1000, '1s'), 600_000, {
    description: 'How long a job that is reserved for this host may wait for a slot before other hosts may have it.',
    example: '30m',
  }),
  agent: key((v) => v.strict(buildkitePackageKeys), undefined, {
    description: 'The agent that runs the jobs in the sandboxes.',
    example: '{ from: /usr/local/bin/buildkite-agent }',
  }),
};
