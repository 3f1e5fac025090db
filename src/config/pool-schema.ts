/** Every key of a pool, so also of `defaults`. */
import { z } from 'zod';
import { titlesOf, titlesWith } from '../ci/types.ts';
import { imagePoolDefaults, poolDefaults } from './defaults.ts';
import { absolute, deviceKeys, imageKeys, ulimit, volume } from './parts.ts';
import { templateProblem } from './template.ts';
import { trustKeys } from './trust-schema.ts';
import { formatDuration, formatSize, parseSize } from './units.ts';
import {
  duration,
  either,
  integer,
  integerOr,
  isMap,
  key,
  no,
  numeric,
  oneLine,
  oneOf,
  orNone,
  size,
  text,
  value,
  word,
  yes,
  yesNo,
} from './values.ts';

const environment = z.record(
  z.string(),
  value((found) => (typeof found === 'string' ? (found.includes('\0') ? no('holds a NUL') : yes(found)) : no('expected a text'))),
);

const inImage = titlesOf(({ agent }) => agent !== null);

export const unsafeKeys = z.strictObject({
  privileged: key(yesNo, 'true or false', { description: 'All rights over the host.', example: 'true', shown: 'false' }),
  pid_host: key(yesNo, 'true or false', { description: 'Jobs see all processes of the host.', example: 'true', shown: 'false' }),
  seccomp_unconfined: key(yesNo, 'true or false', { description: 'No filter on system calls.', example: 'true', shown: 'false' }),
});

export const poolFile = z.strictObject({
  service: key(text('the name of a service', word), 'name', {
    description: 'The CI service that the pool takes jobs from: a key of `services`, or `own` for the own queue.',
    example: 'julia',
    shown: poolDefaults.service,
  }),
  queue: key(text('the name of a queue', oneLine), 'text', {
    description:
      'What jobs ask for at the CI service (Azure Pipelines: the agent pool). Jobs of the own queue ask for the pool by its name.',
    example: 'cuda',
    shown: "the pool's name",
  }),
  name: key(
    value((found) => {
      if (typeof found !== 'string' || found === '') return no('expected a name such as "gpu.{1..}"');
      const why = templateProblem(found);
      return why === null ? yes(found) : no(`${JSON.stringify(found)} ${why}`);
    }),
    'template',
    {
      description:
        "Name of the agents; the same for all agents of a slot. Knows `{host}`, `{pool}`, `{n}` (the slot's number, from 1) and `{K..}`, which counts from K. Two slots never share a name.",
      example: '"gpuci.{1..}"',
      shown: poolDefaults.name,
    },
  ),
  agents: key(integerOr('per-device', 0, 512), 'number or `per-device`', {
    description:
      'Number of slots, so of agents that can work at the same time. `per-device`: as many as the host has devices that fit.',
    example: '4',
    shown: String(poolDefaults.agents),
  }),
  priority: key(integer(-1000, 1000), 'number', {
    description: 'Agents with a higher priority are given jobs first, where the CI service knows priorities.',
    example: '4',
    shown: String(poolDefaults.priority),
  }),
  tags: key(
    either(
      isMap,
      z.record(z.string(), either(Array.isArray, z.array(text('a text', oneLine)), text('a text or a list of texts', oneLine))),
      text('a map, or a text such as "gpu=a100,os=linux"', oneLine),
    ),
    'map or text',
    {
      description: "What the agents say they can do: a map (a list gives a tag several values), or the service's own text.",
      example: '{ gpu: a100, cap: [sm_80, recent] }',
    },
  ),
  runtime: key(oneOf(['best', 'docker', 'process']), '`best`, `docker` or `process`', {
    description:
      'What makes the sandboxes. `best`: `docker` for a pool with an `image`, which then waits for the Engine and for its image. For a pool without `image`: Docker where an Engine answers and the default image can be had, else processes of this host; `onejob status` says which and why. A daemon that `up` started looks again every 30 s, and such a pool moves to Docker once it can be used; it never moves back.',
    example: 'docker',
    shown: `\`${poolDefaults.runtime}\`; \`docker\` with ${inImage}`,
  }),
  devices: key(
    either(
      isMap,
      deviceKeys,
      either((found) => typeof found === 'string', oneOf(['all']), integer(0, 512)),
    ),
    'number, `all` or map',
    {
      description: 'Devices that each agent gets for itself. 0: none. Pools take devices in the order of the file.',
      example: '{ count: 1, memory: ">=40GiB" }',
      shown: String(poolDefaults.devices),
    },
  ),
  grant: key(oneOf(['auto', 'request', 'cdi', 'runtime']), '`auto`, `request`, `cdi` or `runtime`', {
    description:
      'How the Engine is asked for devices of NVIDIA: by a device request, by CDI, or by the runtime `nvidia`. `auto`: as follows from what it reports; `onejob doctor` says which and why.',
    example: 'cdi',
    shown: poolDefaults.grant,
  }),
  image: key(
    either(isMap, imageKeys, text('an image such as "debian:stable-slim", "auto" or a map', /^[A-Za-z0-9][^\s\p{Cc}]{0,511}$/u)),
    'image, `auto` or map',
    {
      description:
        'The image of the sandboxes: a finished one, `auto` (one that suits driver and GPUs, or a plain one for a pool without devices), or a recipe that onejob builds when it is first needed. It needs a POSIX `sh`.',
      example: 'debian:stable-slim',
      shown: `\`${poolDefaults.image}\`; \`auto\` with ${inImage}`,
    },
  ),
  pull: key(oneOf(['missing', 'always', 'never']), '`missing`, `always` or `never`', {
    description: 'When the image is pulled.',
    example: 'always',
    shown: poolDefaults.pull,
  }),
  standby: key(yesNo, 'true or false', {
    description: 'Keep one sandbox per slot waiting, so that a job starts at once. With devices: the slot keeps them.',
    example: 'false',
    shown: String(poolDefaults.standby),
  }),
  standby_max_age: key(duration(60_000, '1m'), 'duration', {
    description: 'A waiting sandbox that is older is made anew.',
    example: '12h',
    shown: formatDuration(poolDefaults.standby_max_age),
  }),
  stop_grace: key(duration(), 'duration', {
    description: 'How long a job that was told to end (TERM) may take before it is killed.',
    example: '2m',
    shown: `\`${formatDuration(poolDefaults.stop_grace)}\`; \`${formatDuration(imagePoolDefaults.stop_grace)}\` with ${inImage}`,
  }),
  timeout: key(orNone(duration(1000, '1s')), 'duration or `none`', {
    description: 'How long a job may run.',
    example: '6h',
    shown: 'none',
  }),
  env: key(environment, 'map', {
    description: 'Environment of every job. Never put a secret here. `{name}` becomes the name of the agent.',
    example: '{ OMP_NUM_THREADS: 4, MY_AGENT: "{name}" }',
  }),
  volumes: key(z.array(volume('volume')), 'list of `HOST:CONTAINER[:VARIABLE][:ro|rw]`', {
    description:
      'Folders of the host that jobs see, read-only unless `rw` is written. The variable, when given, holds the container path. The host path must exist. `{name}` becomes the name of the agent.',
    example: '["/data/imagenet:/datasets/imagenet:IMAGENET"]',
  }),
  caches: key(z.array(volume('cache')), 'list of `NAME:CONTAINER` or `HOST:CONTAINER`, each with `[:VARIABLE][:ro|rw]`', {
    description:
      'As `volumes`, but writable unless `ro` is written: folders whose content outlives the agent, and also `onejob down`. With a name in the place of the host path onejob keeps the folder itself, one for each slot, up to `cache_limit`; a host path must be there (`mkdir -p`). Untrusted jobs have none of them, see `trust`.',
    example: '["depot:/root/.julia", "/var/cache/ci/{name}:/root/.cache"]',
  }),
  cache_limit: key(size(2 ** 20, '1MiB'), 'size', {
    description:
      'What each named cache of a slot may hold. Beyond it, the files that were not used for longest are removed between two agents.',
    example: '20GiB',
    shown: formatSize(poolDefaults.cache_limit),
  }),
  cpus: key(orNone(numeric(0.01, 4096)), 'number or `none`', {
    description: 'CPUs that each agent may use.',
    example: '4',
    shown: 'none',
  }),
  cpu_env: key(
    orNone(text('the name of a variable such as "OMP_NUM_THREADS"', /^[A-Za-z_][A-Za-z0-9_]{0,127}$/)),
    'name of a variable, or `none`',
    {
      description: 'A variable of the environment of every job that says how many `cpus` it has: rounded down, at least 1.',
      example: 'JULIA_CPU_THREADS',
      shown: 'none',
    },
  ),
  memory: key(orNone(size(6 * 2 ** 20, '6MiB')), 'size or `none`', {
    description: 'Memory that each agent may use; beyond it the job is ended.',
    example: '24GiB',
    shown: 'none',
  }),
  pids: key(orNone(integer(32, 4_194_304)), 'number or `none`', {
    description: 'Processes and threads that each agent may have at a time; one more cannot be started.',
    example: '16384',
    shown: String(poolDefaults.pids),
  }),
  disk: key(orNone(size(2 ** 20, '1MiB')), 'size or `none`', {
    description:
      'What the files of a job may take on disk, without caches and volumes. It is looked at, not held: a job that is found above it is ended. Files that are deleted and still open do not count.',
    example: '100GiB',
    shown: 'none',
  }),
  shm_size: key(orNone(size()), 'size or `none`', {
    description: 'Size of `/dev/shm`.',
    example: '8GiB',
    shown: "the runtime's own",
  }),
  ulimits: key(z.record(z.string(), ulimit), 'map', {
    description:
      'Limits of the processes: a number, `unlimited`, or `{ soft: …, hard: … }`. Without one for `core` no core dumps are written.',
    example: '{ nofile: 65536, memlock: unlimited }',
  }),
  network: key(text('a network: "default", "internet", "none", "host" or a name', /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/), 'text', {
    description:
      "`default`: a bridge of onejob's own on which agents cannot reach each other. `internet`: the same without private ranges and the host. `none`. `host`: the host's own. Or the name of a network of the Engine.",
    example: 'none',
    shown: poolDefaults.network,
  }),
  user: key(
    text('a user such as "1000", "1000:1000" or "builder"', /^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$/),
    'text',
    {
      description:
        'User that jobs run as, with a group after a colon. By number it is the same user as on the host: who has that number there can read the memory and environment of jobs.',
      example: '"1000:1000"',
      shown: "the image's own",
    },
  ),
  read_only: key(yesNo, 'true or false', {
    description: 'Root file system read-only; the workspace and `tmpfs` stay writable.',
    example: 'true',
    shown: String(poolDefaults.read_only),
  }),
  tmpfs: key(
    z.record(
      z.string(),
      value((found) => {
        if (typeof found !== 'string') return no('expected a size such as "64MiB", or mount options such as "size=64m,mode=1777"');
        const parsed = parseSize(found);
        if (parsed.ok) return yes(`size=${parsed.value}`);
        return found === '' || /^[a-z0-9_=,%]*=[a-z0-9_=,%]*$/.test(found) || /^(rw|ro|noexec|nosuid|nodev|exec)(,|$)/.test(found)
          ? yes(found)
          : no(parsed.why);
      }),
    ),
    'map',
    {
      description: 'Folders in memory: container path to size, or to mount options.',
      example: '{ /tmp: 64MiB }',
    },
  ),
  cap_add: key(
    z.array(
      value((found) => {
        const name = typeof found === 'string' ? found.toUpperCase().replace(/^CAP_/, '') : '';
        if (name === 'ALL') return no('"ALL" is not possible; unsafe: { privileged: true } says so openly');
        return /^[A-Z_]{3,32}$/.test(name) ? yes(name) : no('expected the name of a capability such as "SYS_PTRACE"');
      }),
    ),
    'list',
    {
      description: "Capabilities beside Docker's default, which onejob gives without NET_RAW and MKNOD.",
      example: '[SYS_PTRACE]',
    },
  ),
  oom_score_adj: key(integer(-1000, 1000), 'number', {
    description: 'How early the kernel ends the job when the host runs out of memory; higher is earlier.',
    example: '500',
    shown: String(poolDefaults.oom_score_adj),
  }),
  isolation: key(oneOf(['full', 'none']), '`full` or `none`', {
    description: 'Credentials of a CI service enter only a sandbox that keeps them from jobs of others. `none` gives that up.',
    example: 'none',
    shown: poolDefaults.isolation,
  }),
  trust: key(trustKeys, 'map', {
    description: `What jobs may do by where they come from, where the CI service tells it (${titlesWith('trust')}). An untrusted job has no secrets, no caches, only read-only volumes, and nothing of \`unsafe\` and \`cap_add\`.`,
    example: '{ forks: refuse, branches: [main, "release/*"] }',
  }),
  hooks: key(orNone(absolute), 'path or `none`', {
    description: `Folder of the host with hooks for the agents (${titlesWith('hooks')}). They see it read-only.`,
    example: '/etc/onejob/hooks',
    shown: 'none',
  }),
  plugins: key(orNone(absolute), 'path or `none`', {
    description: `Folder of the host with plugins for the agents (${titlesWith('plugins')}). They see it read-only.`,
    example: '/etc/onejob/plugins',
    shown: 'none',
  }),
  unsafe: key(unsafeKeys, 'map', {
    description: 'What weakens the sandbox, spelled out. `onejob doctor` names each pool that has some of it.',
    example: '{ seccomp_unconfined: true }',
  }),
});
