/** Every key of a pool, so also of `defaults`, and of the top level. `docs/configuration/` is printed from here. */
import { joinKeys } from '../schema/host-keys.ts';
import { defaultsOf, key, type WrittenKeys } from '../schema/key.ts';
import { kubernetesPoolKeys } from './kubernetes-keys.ts';

/** As the Engine has them in its configuration, or the name of a shim. */
const runtimeName = /^[A-Za-z0-9][\w.-]{0,127}$/;

/** How a pool's trust is written. What the rules mean is decided in `src/ci/kit/trust.ts`. */
export const trustKeys = {
  forks: key((v) => v.forkRule, 'run-without-secrets', '`refuse` or `run-without-secrets`', {
    description: 'What happens to pull requests from another repository, and to those whose origin is unknown.',
    example: 'refuse',
  }),
  pipelines: key((v) => v.z.array(v.pattern('a pattern such as "app-*" or "acme/app"', 1)), null, 'list of patterns', {
    description:
      'Pipelines whose jobs are trusted, by their slug or as `organisation/slug`. `*` stands for any text without a slash, `{a,b}` for either.',
    example: '[app, "app-*"]',
    shown: 'any',
  }),
  branches: key((v) => v.z.array(v.pattern('a pattern such as "release/*"', 64)), null, 'list of patterns', {
    description:
      'Branches whose jobs are trusted. `*` stands for any text without a slash, `**` for any text: `release/**` matches everything below `release/`. Branches of forks do not count.',
    example: '[main, "release/**"]',
    shown: 'any',
  }),
  tags: key((v) => v.z.array(v.pattern('a pattern such as "v*"', 64)), null, 'list of patterns', {
    description:
      'Tags whose builds are trusted, whatever `branches` says. Without this key no build of a tag is trusted: anyone who may push tags can give one the name of a protected branch. Tags of forks do not count.',
    example: '["v*"]',
    shown: 'none',
  }),
  sources: key((v) => v.z.array(v.oneOf<readonly string[]>(['webhook', 'schedule', 'ui', 'api', 'trigger_job'])), null, {
    description:
      'What may have created the build of a trusted job. Anyone who creates one on the website (`ui`) or with the API (`api`) chooses branch and commit by hand, without the right to push.',
    example: '[webhook, schedule]',
    shown: 'any',
  }),
  repositories: key((v) => v.z.array(v.repositoryPattern), null, 'list of patterns', {
    description:
      'Repositories whose jobs are trusted, as `HOST/PATH`, whatever protocol fetches them; `USER@HOST/PATH` if SSH logs in as a user other than `git`. Without this key onejob trusts what a pipeline says about its own repository.',
    example: '["github.com/acme/*"]',
    shown: 'any',
  }),
  triggered: key((v) => v.oneOf(['as-others', 'trust']), 'as-others', {
    description:
      'Builds that another build triggered (a `trigger` step). The service does not report whether that build came from a fork, which chooses branch, commit and environment of what it triggers. `as-others` treats them as `others` says; `trust` applies only the other rules.',
    example: 'trust',
  }),
  others: key((v) => v.rule, 'run-without-secrets', {
    description:
      'What happens to jobs that `pipelines`, `branches`, `tags`, `sources` or `repositories` do not match, and to those that `triggered` covers.',
    example: 'refuse',
  }),
  caches: key((v) => v.oneOf(['none', 'private', 'read']), 'none', {
    description:
      'Caches of untrusted jobs. `private`: they get the caches that have a name, with a separate folder for each repository; jobs of the same fork share them. One `cache_limit` applies to all of them together. `read`: they read what trusted jobs wrote, and write nothing. See [caches](caches.md).',
    example: 'private',
  }),
  image: key((v) => v.text('an image such as "debian:stable-slim"', v.imageName), null, 'image', {
    description: 'Image of untrusted jobs.',
    example: 'ghcr.io/acme/ci-plain:3',
    shown: "the pool's",
  }),
  network: key((v) => v.text('a network: "default", "internet", or the name of one', v.networkName), 'internet', {
    description:
      "Network of untrusted jobs, with the same values as `network` of the pool and independent of it. `default` lets them reach this host's ports, private networks and a cloud's metadata (169.254.169.254).",
    example: 'untrusted-lab',
  }),
  containers: key((v) => v.oneOf(['refuse', 'allow']), 'refuse', {
    description:
      'Whether untrusted jobs of a pool with `containers` have an engine, too. `refuse`: they run without one. `allow` gives them user namespaces, and with those more of the kernel; see [what a hostile fork can do](security.md#a-hostile-fork).',
    example: 'allow',
  }),
  oci_runtime: key((v) => v.text('an OCI runtime such as "runsc"', runtimeName), null, 'text', {
    description: 'OCI runtime of untrusted jobs. See [an OCI runtime](runtimes/docker.md#another-oci-runtime).',
    example: 'runsc',
    shown: "the pool's",
  }),
};

export const deviceKeys = {
  count: key((v) => v.integer(1, 512, 'all'), 1, { description: 'How many devices.', example: '2' }),
  model: key((v) => v.text('a model', v.oneLine), null, {
    description: 'Words that the name of the device contains.',
    example: 'A100',
  }),
  vendor: key((v) => v.oneOf(['nvidia', 'amd', 'intel']), null, { description: 'The vendor of the device.', example: 'nvidia' }),
  memory: key((v) => v.atLeastSize, null, 'condition', {
    description: 'How much memory it has; a size alone is a minimum.',
    example: '">=40GiB"',
  }),
  compute: key((v) => v.text('a condition such as ">=8.0"', /^(>=|<=|>|<|=)?\s*\d+(\.\d+)?$/), null, 'condition', {
    description: 'Its compute capability; a number alone is a minimum.',
    example: '">=8.0"',
  }),
  mig: key(
    (v) =>
      v.either(
        (found) => typeof found === 'boolean',
        v.yesNo,
        v.text('true, false or a profile such as "1g.10gb"', /^(\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb([+-][a-z0-9.+-]+)?$/i),
      ),
    null,
    'true, false or profile',
    { description: 'MIG instances instead of whole cards.', example: '1g.10gb', shown: 'false' },
  ),
  uuid: key((v) => v.either(Array.isArray, v.z.array(v.uuid), v.uuid), undefined, 'text or list', {
    description: 'Only these devices. The first agent of the pool gets the first of them, and so on.',
    example: '[GPU-8a6b1a3c-0e6b-4c80-8e0a-0d0a8f6e2a11]',
  }),
  share: key((v) => v.integer(1, 64), 1, {
    description: 'How many agents may hold the same device at the same time.',
    example: '2',
  }),
  display: key((v) => v.oneOf(['refuse', 'allow']), 'allow', {
    description: 'Whether a card that drives a display may be taken.',
    example: 'refuse',
  }),
  capabilities: key(
    (v) => v.z.array(v.oneOf(['graphics', 'video', 'display'])),
    [] as never[],
    'list of `graphics`, `video` and `display`',
    {
      description: "What NVIDIA's driver may be used for, in addition to computing and nvidia-smi.",
      example: '[graphics, video]',
    },
  ),
  numa: key((v) => v.yesNo, false, {
    description: 'Agents run only on CPUs of the NUMA nodes that their devices belong to, if the host reports these.',
    example: 'true',
  }),
};

export const benchmarkKeys = {
  cpus: key((v) => v.text('CPUs such as "8-15,24-31"', /^\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*$/), null, 'list of CPUs', {
    description: 'The CPUs that only this pool has, as the kernel writes them. With this key the pool has one agent.',
    example: '"8-15,24-31"',
    shown: "those of the card's NUMA node",
  }),
  clock: key((v) => v.integer(100, 10_000), null, {
    description: 'MHz at which the clock of the card is locked while an agent has it. The daemon must be root.',
    example: '1410',
    shown: 'not locked',
  }),
  cool_to: key((v) => v.integer(1, 120), null, {
    description: 'Temperature in °C down to which the card cools before a job begins.',
    example: '45',
    shown: 'the idle temperature that onejob learns, and 3 °C more',
  }),
  cool_wait: key((v) => v.duration(), 600_000, {
    description: 'How long a job waits for that at most.',
    example: '10m',
  }),
};

/** A name, or a list of names with commas, as Slurm writes them. */
const slurmNames = /^[\w.,:+@/[\]-]+$/;

/** Of a pool whose runtime is Slurm. Each becomes an option of sbatch: https://slurm.schedmd.com/sbatch.html */
export const slurmPoolKeys = {
  partition: key((v) => v.text('the name of a partition', slurmNames), undefined, {
    description: 'Partitions, the first that has room (`--partition`).',
    example: 'gpu',
    shown: "Slurm's own",
  }),
  account: key((v) => v.text('the name of an account', slurmNames), undefined, {
    description: 'Who is charged (`--account`).',
    example: 'lab',
    shown: "Slurm's own",
  }),
  qos: key((v) => v.text('the name of a quality of service', slurmNames), undefined, {
    description: 'Quality of service (`--qos`).',
    example: 'normal',
    shown: "Slurm's own",
  }),
  reservation: key((v) => v.text('the name of a reservation', slurmNames), undefined, {
    description: 'Reservation (`--reservation`).',
    example: 'ci',
    shown: 'none',
  }),
  constraint: key((v) => v.text('features such as "a100&nvlink"', /^[\w.,:&|*()[\]!-]+$/), undefined, {
    description: 'Features that the node must have (`--constraint`).',
    example: '"a100&nvlink"',
    shown: 'none',
  }),
  nodelist: key((v) => v.text('names of nodes such as "n[1-4]"', slurmNames), undefined, {
    description: 'Nodes of which it gets one (`--nodelist`, with one node per agent).',
    example: '"n1"',
    shown: 'any',
  }),
  exclude: key((v) => v.text('names of nodes such as "n[1-4]"', slurmNames), undefined, {
    description: 'Nodes that it never gets (`--exclude`).',
    example: '"n[1-4]"',
    shown: 'none',
  }),
  time: key((v) => v.duration(60_000, '1m'), undefined, {
    description: 'After this time Slurm ends the agent, with its job (`--time`).',
    example: '6h',
    shown: '`timeout` of the pool and 10 minutes more, or what the partition allows',
  }),
  modules: key((v) => v.z.array(v.text('the name of a module', /^[\w.+/-]+$/)), [] as never[], {
    description: 'Environment modules that are loaded before the job (`module load`).',
    example: '[cuda/12.4]',
  }),
  sandbox: key((v) => v.oneOf(['bubblewrap', 'apptainer', 'podman', 'pyxis', 'none']), 'bubblewrap', {
    description:
      'What keeps jobs apart on a node: bubblewrap, a container of Apptainer, Podman or pyxis with `image`, or nothing but the user. All jobs are of one user, so with `none` and `pyxis` each can see and end the others.',
    example: 'apptainer',
  }),
  image: key((v) => v.text('an image as Apptainer, Podman or pyxis names it', /^[^\s,]+$/), undefined, {
    description: 'With `sandbox: apptainer`, `podman` or `pyxis`: the image, as that program names it.',
    example: '/shared/images/pytorch.sif',
    shown: 'none',
  }),
};

export const imageKeys = {
  base: key((v) => v.text('an image, or "auto"', v.imageName), null, 'image or `auto`', {
    description: 'The image to build on.',
    example: '"ubuntu:24.04"',
  }),
  packages: key((v) => v.z.array(v.text('the name of a package', /^[a-z0-9][a-z0-9+.:=~_-]*$/i)), [] as never[], {
    description: "Packages of the image's distribution to install on top of it.",
    example: '[git, curl]',
  }),
  dockerfile: key((v) => v.absolute, null, {
    description: 'A Dockerfile to build first. No other file of its folder is sent with it.',
    example: '/etc/onejob/Dockerfile',
  }),
  flavour: key((v) => v.oneOf(['base', 'runtime', 'devel']), 'devel', {
    description: 'How many of the GPU tools `auto` includes.',
    example: 'runtime',
  }),
  distribution: key((v) => v.text('a distribution such as "ubuntu22.04"', /^[a-z][a-z0-9. :_-]{1,31}$/i), null, {
    description: 'The distribution of the image that `auto` takes.',
    example: 'ubuntu22.04',
    shown: "Ubuntu's newest that fits",
  }),
};

export const containerKeys = {
  images: key((v) => v.z.array(v.text('an image such as "postgres:16"', v.imageName)), [] as never[], 'list of images', {
    description:
      'Images that jobs have without pulling them. onejob pulls each as the image of the pool, and again as `pull` of the pool says, into a store that jobs can only read.',
    example: '["node:22", "postgres:16"]',
  }),
  learn: key((v) => v.size(2 ** 20, '1MiB'), null, 'size', {
    description:
      'Images that trusted jobs pull are learnt: onejob pulls them, too, and later jobs have them like `images`, up to this size. Those that no job has pulled for the longest time go first. Needs `pull`.',
    example: '20GiB',
    shown: 'nothing is learnt',
  }),
  pull: key((v) => v.z.array(v.learntPattern), [] as never[], 'list of patterns', {
    description:
      'What may be learnt: images with their registry, with or without a tag. `*` stands for any text without a slash, `**` for any parts of a path.',
    example: '["docker.io/library/*", "ghcr.io/acme/*"]',
  }),
  logins: key((v) => v.absolute, null, {
    description:
      "Folder with a `config.json` of Docker, as `docker --config FOLDER login REGISTRY` writes it: onejob pulls `images` with these credentials instead of this user's. Jobs never see them.",
    example: '/etc/onejob/registries',
    shown: "this user's",
  }),
  mirrors: key((v) => v.z.array(v.text('an address such as "https://mirror.example.org"', v.originName)), [] as never[], {
    description:
      'Mirrors that the engines of jobs ask first for images of `docker.io`; a Docker Engine knows none for other registries.',
    example: '["https://mirror.example.org"]',
  }),
};

export const unsafeKeys = {
  privileged: key((v) => v.yesNo, false, { description: 'The job gets all rights over the host.', example: 'true' }),
  pid_host: key((v) => v.yesNo, false, { description: 'Jobs see all processes of the host.', example: 'true' }),
  seccomp_unconfined: key((v) => v.yesNo, false, { description: 'No filter on system calls.', example: 'true' }),
};

const hour = 3_600_000;

/**
 * An agent in an image takes up to 30 s to cancel its job when it is told to end (Azure's `Agent.cs`). Buildkite's gives its job 10
 * s, and then sends the rest of the log. So `stop_grace` is longer there.
 */
export const poolKeys = {
  service: key((v) => v.text('the name of a service', v.word), 'own', 'name', {
    description: 'The CI service that the pool takes jobs from: a key of `services`, or `own` for the own queue.',
    example: 'julia',
  }),
  queue: key((v) => v.text('the name of a queue', v.oneLine), undefined, {
    description:
      'The queue that jobs name at the CI service (Azure Pipelines: the agent pool). Gitea and GitHub: whose jobs the pool runs, required. Jobs of the own queue name the pool.',
    example: 'cuda',
    shown: "the pool's name",
  }),
  name: key((v) => v.agentName, '{host}-{pool}-{n}', 'template', {
    description:
      "Name of the agents; the same for all agents of a slot. Placeholders: `{host}`, `{pool}`, `{n}` (the slot's number, from 1) and `{K..}`, which counts from K. Two slots never share a name.",
    example: '"gpuci.{1..}"',
  }),
  agents: key((v) => v.integer(0, 512, 'per-device'), 1, {
    description:
      'Number of slots: how many agents can work at the same time. `per-device`: one for each device of the host that fits.',
    example: '4',
  }),
  priority: key((v) => v.integer(-1000, 1000), 0, {
    description: 'Agents with a higher priority get jobs first, if the CI service supports priorities.',
    example: '4',
  }),
  tags: key((v) => v.tags, undefined, 'list, map or text', {
    description:
      "What the agents report that they can do: a list (`[gpu, big]`), a map (a list in it gives a tag several values), or the service's own text.",
    example: '{ gpu: a100, cap: [sm_80, recent] }',
  }),
  runtime: key(
    (v) => v.text('"best", "docker", "process" or a key of "runtimes"', v.word),
    'best',
    '`best`, `docker`, `process` or a key of `runtimes`',
    {
      description:
        'What runs the sandboxes. `best`: `docker` for a pool with an `image`, which then waits for the Engine and for its image. For a pool without `image`: Docker if an Engine answers and the default image is available, otherwise processes of this host; `onejob status` says which and why. A daemon that `up` started checks again every 30 s, and such a pool moves to Docker once Docker is usable; it never moves back.',
      example: 'docker',
      defaultInImages: 'docker',
    },
  ),
  devices: key(
    (v) =>
      v.either(
        v.isMap,
        v.strict(deviceKeys),
        v.either((found) => typeof found === 'string', v.oneOf(['all']), v.integer(0, 512)),
      ),
    0,
    'number, `all` or map',
    {
      description: 'Devices that each agent gets exclusively. 0: none. Pools take devices in the order of the file.',
      example: '{ count: 1, memory: ">=40GiB" }',
    },
  ),
  benchmark: key((v) => v.either(v.isMap, v.strict(benchmarkKeys), v.yesNo), false, 'true, false or map', {
    description:
      'For measurements: each agent has a card and CPUs that nobody else has, begins when the card is cool, and says how warm and fast the card was. A map says more of it. See [benchmark slots](benchmark-slots.md).',
    example: 'true',
  }),
  slurm: key((v) => v.strict(slurmPoolKeys), undefined, {
    description:
      'What the agents of the pool ask Slurm for, where `runtime` is of type `slurm`. See [the Slurm runtime](runtimes/slurm.md).',
    example: '{ partition: gpu, account: lab, qos: normal }',
  }),
  kubernetes: key((v) => v.strict(kubernetesPoolKeys), undefined, {
    description:
      'What the agents of the pool ask Kubernetes for, where `runtime` is of type `kubernetes`. See [the Kubernetes runtime](runtimes/kubernetes.md).',
    example: '{ node_selector: { gpu: a100 }, queue: gpu-ci }',
  }),
  grant: key((v) => v.oneOf(['auto', 'request', 'cdi', 'runtime']), 'auto', {
    description:
      'How to ask the Engine for NVIDIA devices: by a device request, by CDI, or by the runtime `nvidia`. `auto`: depends on what the Engine reports; `onejob doctor` says which and why.',
    example: 'cdi',
  }),
  image: key(
    (v) => v.either(v.isMap, v.strict(imageKeys), v.text('an image such as "debian:stable-slim", "auto" or a map', v.imageName)),
    'debian:stable-slim',
    'image, `auto` or map',
    {
      description:
        'The image of the sandboxes: a finished one, `auto` (one that suits driver and GPUs, or a plain one for a pool without devices), or a recipe that onejob builds when it is first needed. It needs a POSIX `sh`.',
      example: 'debian:stable-slim',
      defaultInImages: 'auto',
    },
  ),
  pull: key((v) => v.oneOf(['missing', 'always', 'never']), 'missing', {
    description: 'When the image is pulled.',
    example: 'always',
  }),
  standby: key((v) => v.yesNo, true, {
    description:
      'Keep one sandbox per slot waiting, so that a job starts at once. With devices: the slot keeps them; with `false` it [leases them](gpus.md#share-cards-between-pools-and-services) for each job.',
    example: 'false',
  }),
  standby_max_age: key((v) => v.duration(60_000, '1m'), 12 * hour, {
    description: 'A waiting sandbox that is older is replaced.',
    example: '12h',
  }),
  stop_grace: key((v) => v.duration(), 10_000, {
    description: 'How long a job may take to end after TERM before it is killed.',
    example: '2m',
    defaultInImages: 35_000,
  }),
  timeout: key((v) => v.orNone(v.duration(1000, '1s')), null, { description: 'How long a job may run.', example: '6h' }),
  env: key((v) => v.environment, undefined, 'map', {
    description: 'Environment of every job. Never put a secret here. `{name}` becomes the name of the agent.',
    example: '{ OMP_NUM_THREADS: 4, MY_AGENT: "{name}" }',
  }),
  volumes: key((v) => v.z.array(v.volume('volume')), undefined, 'list of `HOST:CONTAINER[:VARIABLE][:ro|rw]`', {
    description:
      'Folders of the host that jobs see, read-only unless `rw` is written. The variable, when given, holds the container path. Other mount options of Docker, such as `z`, are refused, and so is a variable that looks like a mistyped mode (`wr`, `RO`), unless a mode follows it. The host path must exist. `{name}` becomes the name of the agent.',
    example: '["/data/imagenet:/datasets/imagenet:IMAGENET"]',
  }),
  caches: key(
    (v) => v.z.array(v.volume('cache')),
    undefined,
    'list of `NAME:CONTAINER` or `HOST:CONTAINER`, each with `[:VARIABLE][:ro|rw]`',
    {
      description:
        'As `volumes`, but writable unless `ro` is written: folders whose content outlives the agent and `onejob down`. With a name in place of the host path, onejob keeps the folder itself, one for each slot, up to `cache_limit`; a host path must exist (`mkdir -p`). Untrusted jobs get none of them, see `trust`.',
      example: '["depot:/root/.julia", "/var/cache/ci/{name}:/root/.cache"]',
    },
  ),
  cache_for: key((v) => v.oneOf(['slot', 'project']), 'slot', {
    description:
      'Who shares a named cache: all trusted jobs of a slot, or only those of one project ({trust}). With `project`, a job with named caches waits for a sandbox of its own instead of using the standby, and `cache_limit` is for all projects of a slot together.',
    example: 'project',
  }),
  cache_limit: key((v) => v.size(2 ** 20, '1MiB'), 50 * 2 ** 30, {
    description:
      'How large each named cache of a slot may grow. Beyond it, the least recently used files are removed between two agents.',
    example: '20GiB',
  }),
  cpus: key((v) => v.orNone(v.numeric(0.01, 4096)), null, { description: 'CPUs that each agent may use.', example: '4' }),
  cpu_env: key((v) => v.variable, null, 'name of a variable, or `none`', {
    description: 'An environment variable that tells every job how many `cpus` it has: rounded down, at least 1.',
    example: 'JULIA_CPU_THREADS',
  }),
  memory: key((v) => v.orNone(v.size(6 * 2 ** 20, '6MiB')), null, {
    description: 'Memory that each agent may use; beyond it the job is killed.',
    example: '24GiB',
  }),
  pids: key((v) => v.orNone(v.integer(32, 4_194_304)), 4096, {
    description: 'Processes and threads that each agent may have at a time; one more cannot be started.',
    example: '16384',
  }),
  disk: key((v) => v.orNone(v.size(2 ** 20, '1MiB')), null, {
    description:
      'Disk space that the files of a job may take, without caches and volumes. onejob measures it now and then instead of reserving it: a job that is found above it is ended. Files that are deleted but still open do not count.',
    example: '100GiB',
  }),
  hold_failed: key((v) => v.orNone(v.duration(60_000, '1m')), null, {
    description:
      'How long the files of a failed job of the own queue are kept, for `onejob shell`: see [how to look into a failed job](ci/own-queue.md#look-into-a-failed-job). At most five jobs of a pool are held, with `disk` bytes together, and none while less than `disk.min_free` of the disk is free.',
    example: '30m',
  }),
  shm_size: key((v) => v.orNone(v.size()), null, {
    description: 'Size of `/dev/shm`.',
    example: '8GiB',
    shown: "the runtime's own",
  }),
  ulimits: key((v) => v.z.record(v.z.string(), v.ulimit), undefined, {
    description:
      'Limits of the processes: a number, `unlimited`, or `{ soft: …, hard: … }`. Without a limit for `core`, no core dumps are written.',
    example: '{ nofile: 65536, memlock: unlimited }',
  }),
  network: key((v) => v.text('a network: "default", "internet", "none", "host" or a name', v.networkName), 'default', {
    description:
      "`default`: a bridge of onejob's own on which agents cannot reach each other. `internet`: the same without private ranges and the host. `none`. `host`: the host's own. Or the name of a network of the Engine. Processes have [a network of their own](runtimes/process.md#the-network) by `default` if the host has pasta; pods of Kubernetes have [that of the cluster](runtimes/kubernetes.md#networks).",
    example: 'none',
  }),
  containers: key((v) => v.either(v.isMap, v.strict(containerKeys), v.yesNo), false, 'true, false or map', {
    description:
      'Each agent has a Docker Engine of its own, at the usual `/var/run/docker.sock`: its jobs run, build and compose containers. A map says more of it. See [containers of a job](job-containers.md).',
    example: 'true',
  }),
  oci_runtime: key((v) => v.text('an OCI runtime such as "runsc"', runtimeName), null, 'text', {
    description:
      "OCI runtime of the Engine that starts the sandboxes, such as gVisor's `runsc` or Kata Containers: a kernel of their own between jobs and the host. See [an OCI runtime](runtimes/docker.md#another-oci-runtime).",
    example: 'runsc',
    shown: "the Engine's own",
  }),
  user: key((v) => v.user, undefined, 'text', {
    description:
      'User that jobs run as, with a group after a colon. A number means the same user as on the host: the user with that number there can read the memory and environment of jobs.',
    example: '"1000:1000"',
    shown: "the image's own",
  }),
  read_only: key((v) => v.yesNo, false, {
    description: 'Root file system read-only; the workspace and `tmpfs` stay writable.',
    example: 'true',
  }),
  tmpfs: key((v) => v.tmpfs, undefined, {
    description: 'Folders in memory: container path to size, or to mount options.',
    example: '{ /tmp: 64MiB }',
  }),
  cap_add: key((v) => v.capabilities, undefined, {
    description: "Capabilities in addition to Docker's default, from which onejob drops NET_RAW, MKNOD and AUDIT_WRITE.",
    example: '[SYS_PTRACE]',
  }),
  oom_score_adj: key((v) => v.integer(-1000, 1000), 500, {
    description: 'How early the kernel ends the job when the host runs out of memory; higher is earlier.',
    example: '500',
  }),
  isolation: key((v) => v.oneOf(['full', 'none']), 'full', {
    description: 'Credentials of a CI service enter only a sandbox that hides them from jobs of others. `none` turns that off.',
    example: 'none',
  }),
  trust: key((v) => v.strict(trustKeys), undefined, {
    description: `What jobs may do depending on where they come from, if the CI service reports it ({trust}). An untrusted job has no secrets, no caches, only read-only volumes, and nothing of \`unsafe\` and \`cap_add\`.`,
    example: '{ forks: refuse, branches: [main, "release/*"] }',
  }),
  hooks: key((v) => v.orNone(v.absolute), null, {
    description: `Folder of the host with hooks for the agents ({hooks}). They see it read-only.`,
    example: '/etc/onejob/hooks',
  }),
  plugins: key((v) => v.orNone(v.absolute), null, {
    description: `Folder of the host with plugins for the agents ({plugins}). They see it read-only.`,
    example: '/etc/onejob/plugins',
  }),
  unsafe: key((v) => v.strict(unsafeKeys), undefined, {
    description: 'Settings that weaken the sandbox. `onejob doctor` names each pool that uses one.',
    example: '{ seccomp_unconfined: true }',
  }),
};

export const secretsKeys = {
  key: key((v) => v.secretReference, undefined, 'secret', {
    description:
      'Private keys that decrypt the secrets of jobs, all in one file. The file never enters a sandbox; secrets are decrypted for trusted jobs only.',
    example: '{ file: /etc/onejob/secrets.key }',
  }),
};

export const diskKeys = {
  min_free: key((v) => v.share, 0.1, {
    description: 'Share of the disk, and of its inodes, that must be free; below it no job starts, and the reason is shown.',
    example: '10%',
  }),
};

export const notifyKeys = {
  webhook: key((v) => v.webhook, undefined, 'address or secret', {
    description:
      'Address that gets each message as JSON by POST: `https`, or `http` on this host. An address that contains a token belongs into a file.',
    example: '{ file: /etc/onejob/webhook.url }',
  }),
  command: key((v) => v.command, undefined, 'list', {
    description:
      'A command to run for each message, without a shell. Its standard input is the message as JSON; its environment has `ONEJOB_SUBJECT` and `ONEJOB_TEXT`.',
    example: '[/usr/local/bin/tell-us, --quiet]',
  }),
  timeout: key((v) => v.duration(1000, '1s'), 30_000, {
    description: 'How long the command or the webhook may take. After that it counts as failed, and the command is killed.',
    example: '10s',
  }),
};

export const apiKeys = {
  listen: key((v) => v.listen, undefined, '`ADDRESS:PORT`', {
    description:
      'Where the dashboard, the API and the metrics are served over TCP. Addresses that others can reach need `tls_cert` and `tls_key`, or `behind_proxy`.',
    example: '"127.0.0.1:7717"',
    shown: 'only the socket; `onejob dashboard` opens a port of 127.0.0.1 when it is first used',
  }),
  tls_cert: key((v) => v.absolute, undefined, {
    description: 'Certificate for TLS, with the chain, in PEM. Read again by `onejob config apply`.',
    example: '/etc/onejob/tls.pem',
  }),
  tls_key: key((v) => v.absolute, undefined, {
    description: 'The key of the certificate, in PEM.',
    example: '/etc/onejob/tls.key',
  }),
  behind_proxy: key((v) => v.yesNo, false, {
    description: 'Only a proxy that encrypts can reach `listen`. Links then lead to the proxy.',
    example: 'true',
  }),
  hosts: key((v) => v.z.array(v.hostName), [] as never[], 'list of names', {
    description:
      'Names by which browsers reach it, apart from `localhost` and the address of `listen`. Requests for other names are refused.',
    example: '[gpuci.example.org]',
  }),
};

export const upgradeKeys = {
  key: key((v) => v.minisignKey, undefined, 'public key', {
    description:
      'Public key of minisign: `onejob service upgrade` then installs only archives that are signed with it. See [signed releases](operating.md#signed-releases).',
    example: 'RWTsQuC0HjPu8X1iRf0O6PKScPmoDsZxGzgjgufU1KILRx7Vi02luwwu',
    shown: 'none; a signature is not needed',
  }),
};

export const peopleGroupKeys = {
  role: key((v) => v.oneOf(['look', 'submit', 'operate']), 'look', {
    description:
      '`look`: sees status, devices, and the list of jobs. `submit`: also runs jobs in `pools`, and cancels its own. `operate`: everything, like root.',
    example: 'submit',
  }),
  pools: key((v) => v.z.array(v.text('the name of a pool', /^[A-Za-z0-9][\w.-]{0,64}$/)), [] as never[], 'list of pools', {
    description: 'Pools of the own queue that their jobs may run in. `submit` needs it.',
    example: '[gpu, default]',
  }),
  volumes: key(
    (v) => v.z.array(v.text('a folder such as "/data" or "/scratch:rw"', /^\/[^/:\p{Cc}][^:\p{Cc}]*(:r[ow])?$/u)),
    [] as never[],
    'list of `HOST[:ro|rw]`',
    {
      description:
        'Folders of the host that their jobs may have as `--volume`, with all below them, read-only unless `rw` is written. Their jobs read as root of their sandbox: what lies there is for all of them. Volumes of the pool need no entry.',
      example: '["/data", "/scratch:rw"]',
    },
  ),
  images: key((v) => v.z.array(v.text('a pattern such as "docker.io/library/*"', v.oneLine)), [] as never[], 'list of patterns', {
    description:
      'Images that their jobs may name with `--image`, as they write them. `*` stands for any text without a slash, `**` for any parts of a path.',
    example: '["debian:*", "ghcr.io/acme/**"]',
  }),
  logs: key((v) => v.oneOf(['own', 'all']), 'own', {
    description: 'Whose output they may read.',
    example: 'all',
  }),
  cards: key((v) => v.integer(0, 512), null, {
    description: 'How many devices the jobs of all of them may have at once. Jobs beyond that wait.',
    example: '4',
  }),
  cards_each: key((v) => v.integer(0, 512), null, {
    description: 'How many devices the jobs of each of them may have at once.',
    example: '2',
  }),
  weight: key((v) => v.numeric(0.01, 1000), 1, {
    description: 'How much each of them may use, compared with others, while jobs wait.',
    example: '2',
  }),
};

export const peopleKeys = {
  groups: key((v) => v.z.record(v.z.string(), v.strict(peopleGroupKeys)), undefined, {
    description: 'Groups of this host. A user has what the first of them says that he is in.',
    example: '{ lab: { role: submit, pools: [default] } }',
  }),
  half_life: key((v) => v.duration(60_000, '1m'), 24 * hour, {
    description: 'After this time what somebody has used counts half in the order of the own queue.',
    example: '7d',
  }),
};

export const topKeys = {
  include: key(
    (v) => v.either(Array.isArray, v.z.array(v.text('a path', v.oneLine)), v.text('a path, or a list of paths', v.oneLine)),
    undefined,
    'path or list',
    {
      description:
        'More files to read, relative to this one. They cannot include others. Values in this file take precedence. For a file that belongs to another user, errors give only the lines.',
      example: '[pools/lab.yml]',
    },
  ),
  services: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, {
    description: 'CI services by name. The own queue needs no entry.',
    example: '{ julia: { type: buildkite, token: { file: /etc/onejob/buildkite.token } } }',
  }),
  secrets: key((v) => v.strict(secretsKeys), undefined, {
    description: 'How secrets of jobs are decrypted.',
    example: '{ key: { file: /etc/onejob/secrets.key } }',
  }),
  defaults: key((v) => v.z.unknown(), undefined, 'map', {
    description: 'Any key of a pool, for all pools. Maps merge key by key with those of a pool; other values are replaced.',
    example: '{ cpus: 4 }',
  }),
  pools: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, {
    description:
      'Pools of equal slots, by name. Without this key there is one pool, `default`, with two agents; on a host with GPUs also `gpu`, with an agent for each (not if there are `defaults`).',
    example: '{ lab: { agents: 4 } }',
    shown: '`default`, two agents; `gpu`, one per GPU',
  }),
  runtimes: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, {
    description:
      'Engines by name that place agents and grant them devices on hosts of their own. See [the Slurm runtime](runtimes/slurm.md). Docker and processes of this host need no entry.',
    example: '{ cluster: { type: slurm, folder: /shared/onejob } }',
  }),
  clouds: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, {
    description: 'Accounts in clouds by name, in which onejob makes machines. See [machines in clouds](cloud.md).',
    example:
      '{ aws: { type: aws, region: us-west-2, credentials: { profile: ci }, scheduler_role: "arn:aws:iam::123456789012:role/onejob-scheduler" } }',
  }),
  hosts: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, {
    description: 'Machines in clouds by name: made when jobs wait, or by `onejob cloud up`, and removed when they are idle.',
    example: '{ burst: { cloud: aws, types: [g6.xlarge], pools: { gpu: { service: github, queue: acme, devices: 1 } } } }',
  }),
  join: key((v) => v.strict(joinKeys), undefined, {
    description: 'How machines in clouds reach this daemon.',
    example: '{ listen: "0.0.0.0:7718", url: "https://ci.example.org:7718", package: /srv/onejob.tar.gz }',
  }),
  state_dir: key((v) => v.absolute, undefined, {
    description: 'Where onejob keeps its state; it must be on a local file system.',
    example: '/var/lib/onejob',
    shown: '`/var/lib/onejob` for root, else `$XDG_STATE_HOME/onejob`',
  }),
  socket: key((v) => v.absolute, undefined, {
    description: 'The socket that the manager listens on; its path has at most 100 bytes.',
    example: '/run/onejob/onejob.sock',
    shown:
      '`onejob.sock` in a given state directory, else `/run/onejob/onejob.sock` for root, else `$XDG_RUNTIME_DIR/onejob/onejob.sock`',
  }),
  people: key((v) => v.strict(peopleKeys), undefined, {
    description:
      "Who else may use root's daemon, and for what. With it the group `onejob` has no meaning of its own. See [several people on one host](people.md).",
    example: '{ groups: { staff: { role: operate }, lab: { role: submit, pools: [default] } } }',
  }),
  api: key((v) => v.strict(apiKeys), undefined, {
    description: 'Access over TCP, for the dashboard and for programs. See [the API](api.md).',
    example: '{ listen: "127.0.0.1:7717" }',
  }),
  log_limit: key((v) => v.size(1024, '1KiB'), 64 * 2 ** 20, {
    description:
      'How much output is kept per agent. If there is more, onejob keeps only the beginning and the end, with at least the last 1 MiB of each stream. On disk it takes up to twice as much plus 4 MiB; less is kept of output in pieces of a few bytes. The job continues when it writes more.',
    example: '64MiB',
  }),
  disk: key((v) => v.strict(diskKeys), defaultsOf(diskKeys), {
    description: 'The disk that holds the sandboxes.',
    example: '{ min_free: 10% }',
  }),
  keep_jobs: key((v) => v.duration(60_000, '1m'), 7 * 86_400_000, {
    description: 'How long results, logs and artifacts of finished jobs are kept, and files that were sent for jobs.',
    example: '30d',
  }),
  on_stop: key((v) => v.oneOf(['end', 'drain', 'leave']), 'end', {
    description:
      'What a stopping manager does with running jobs: `end` gives them their grace period, `drain` waits for them, `leave` lets them run for the next manager to take over.',
    example: 'drain',
  }),
  on_quarantine: key((v) => v.command, undefined, 'list', {
    description:
      'A command to run for each device that is put in quarantine, without a shell and one at a time. Its environment has `ONEJOB_DEVICE`, `ONEJOB_PCI` and `ONEJOB_REASON`. When it exits with 0, the device is checked again at once. See [how to repair a device](gpus.md#repair).',
    example: '[/usr/local/sbin/reset-gpu, --quiet]',
  }),
  on_quarantine_timeout: key((v) => v.duration(1000, '1s'), 10 * 60_000, {
    description: 'How long the command of `on_quarantine` may take before it is killed.',
    example: '30m',
  }),
  notify: key((v) => v.strict(notifyKeys), undefined, {
    description:
      'Messages for the few things that need a person, such as a device in quarantine or a credential that expires; one for each cause, and one when it is over. Needs either `webhook` or `command`. See [messages for people](operating.md#messages-for-people).',
    example: '{ webhook: { file: /etc/onejob/webhook.url } }',
  }),
  upgrade: key((v) => v.strict(upgradeKeys), undefined, {
    description: 'Whose releases `onejob service upgrade` installs.',
    example: '{ key: RWTsQuC0HjPu8X1iRf0O6PKScPmoDsZxGzgjgufU1KILRx7Vi02luwwu }',
  }),
};

/** The top level as written, parsed. */
export type TopFile = WrittenKeys<typeof topKeys>;
/** One pool, or `defaults`, as written, parsed. */
export type WrittenPool = WrittenKeys<typeof poolKeys>;
