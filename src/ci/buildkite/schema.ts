/** How a service of type `buildkite` is written. */
import { z } from 'zod';
import { formatDuration } from '../../config/units.ts';
import { describeKind, duration, key, no, oneOf, sha256, text, token, value, yes } from '../../config/values.ts';
import { pathProblem } from '../../config/volumes.ts';
import type { ServiceSchema } from '../service-type.ts';
import { buildkiteDefaults, pinnedAgent } from './type.ts';

/** Never shows what was found, which may contain a password. */
const endpoint = value((found) => {
  const what = `a web address such as "${buildkiteDefaults.endpoint}"`;
  if (typeof found !== 'string') return no(`expected ${what}, found ${describeKind(found)}`);
  if (/^[a-z]+:\/\/[^/]*@/i.test(found)) return no(`contains a user or a password; expected ${what}`);
  const good = /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(found) && URL.canParse(found);
  return good ? yes(found.replace(/\/+$/, '')) : no(`expected ${what}`);
});

const packageFrom = value((found) => {
  const what = 'an https address that ends in ".tar.gz", an absolute path, or "image"';
  if (typeof found !== 'string') return no(`expected ${what}, found ${describeKind(found)}`);
  if (found === 'image' || /^https:\/\/[^\s/?#@]+\/\S+\.tar\.gz$/.test(found)) return yes(found);
  if (!found.startsWith('/')) return no(`${JSON.stringify(found)} is not ${what}`);
  const why = pathProblem(found);
  return why === null ? yes(found) : no(why);
});

const packageKeys = z.strictObject({
  version: key(text('a version such as "3.137.0"', /^\d{1,4}\.\d{1,5}\.\d{1,5}(-[a-z]+(\.\d{1,5})?)?$/), 'version', {
    description: 'Version of the agent; onejob refuses any other.',
    example: pinnedAgent,
    shown: `\`${pinnedAgent}\`, or what \`from\` names`,
  }),
  from: key(packageFrom, 'address, path or `image`', {
    description:
      'Where onejob gets the agent from: the address or path of its `.tar.gz`, or the path of the program itself, which onejob mounts into the sandboxes. `image`: each image brings its own.',
    example: '/usr/local/bin/buildkite-agent',
    shown: "Buildkite's release of that version",
  }),
  sha256: sha256('Checksum that the file named by `from` must have.', "Buildkite's own for its releases"),
});

const keys = z.strictObject({
  token: token(
    'Agent token of a cluster, with which onejob reserves jobs. It never enters a sandbox, unless `registration` says so.',
  ),
  registration: key(oneOf(['manager', 'in-agent']), '`manager` or `in-agent`', {
    description:
      'Who registers an agent with the service. `manager`: onejob reserves each job and decides what it may do, and its agent has a token for that job alone. `in-agent`: the agent, with `token`, for organisations without clusters; every job can read the token, and onejob sees no job before it runs.',
    example: 'in-agent',
    shown: buildkiteDefaults.registration,
  }),
  metrics_token: token('Another agent token, used only for the counts of the queues: it needs no other rights.'),
  endpoint: key(endpoint, 'address', {
    description: 'Address of the Agent API.',
    example: buildkiteDefaults.endpoint,
    shown: buildkiteDefaults.endpoint,
  }),
  poll: key(duration(2000, '2s'), 'duration', {
    description: 'How often onejob asks for the counts of the queues; once for all pools.',
    example: '30s',
    shown: formatDuration(buildkiteDefaults.poll),
  }),
  boot_timeout: key(duration(1000, '1s'), 'duration', {
    description:
      'How long the agent in a sandbox may take to acquire its job. After that, onejob ends the sandbox and tries the job again, three times at most. With `registration: in-agent`: how long it may take to come online.',
    example: '2m',
    shown: formatDuration(buildkiteDefaults.boot_timeout),
  }),
  hold_timeout: key(duration(1000, '1s'), 'duration', {
    description: 'How long a job that is reserved for this host may wait for a slot before other hosts may have it.',
    example: '30m',
    shown: formatDuration(buildkiteDefaults.hold_timeout),
  }),
  agent: key(packageKeys, 'map', {
    description: 'The agent that runs the jobs in the sandboxes.',
    example: '{ from: /usr/local/bin/buildkite-agent }',
  }),
});

const onlyWay = 'was removed: onejob now reserves jobs through the Stacks API, with the token of a cluster; remove the line';

export const schema: ServiceSchema = {
  keys,
  maps: { agent: packageKeys },
  needs: ['token'],
  removed: { mode: onlyWay, binding: onlyWay },
};
