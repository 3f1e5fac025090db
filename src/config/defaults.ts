/** What holds where nothing is written. In the words of the file, with values already understood: ms, bytes, shares. */

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;

export const topDefaults = {
  log_limit: 64 * 2 ** 20,
  disk: { min_free: 0.1 },
  keep_jobs: 7 * day,
  on_stop: 'end',
  on_quarantine_timeout: 10 * minute,
} as const;

export const poolDefaults = {
  service: 'own',
  name: '{host}-{pool}-{n}',
  agents: 1,
  priority: 0,
  runtime: 'best',
  devices: 0,
  grant: 'auto',
  image: 'debian:stable-slim',
  pull: 'missing',
  standby: true,
  standby_max_age: 12 * hour,
  stop_grace: 10_000,
  timeout: null,
  cpus: null,
  memory: null,
  pids: 4096,
  disk: null,
  shm_size: null,
  network: 'default',
  read_only: false,
  oom_score_adj: 500,
  isolation: 'full',
  cpu_env: null,
  hooks: null,
  plugins: null,
  cache_limit: 50 * 2 ** 30,
  trust: {
    forks: 'run-without-secrets',
    others: 'run-without-secrets',
    triggered: 'as-others',
    caches: 'none',
    network: 'internet',
  },
} as const;

/** Of a service of type azure-pipelines. */
export const azureDefaults = {
  registration: 'manager',
  poll: 10_000,
  boot_timeout: 3 * minute,
  agent: { version: 'latest' },
  authority: 'https://login.microsoftonline.com',
} as const;

/** Of a service of type buildkite. */
export const buildkiteDefaults = {
  endpoint: 'https://agent.buildkite.com/v3',
  registration: 'manager',
  poll: 10_000,
  boot_timeout: minute,
  hold_timeout: 10 * minute,
  agent: { version: '3.137.0' },
} as const;

/**
 * What holds otherwise for pools of services whose agents are programs in an image. Such an agent takes up to 30 s to cancel its job
 * when it is told to end (Azure's `Agent.cs`); Buildkite's gives its job 10 s, and then sends the rest of the log.
 */
export const imagePoolDefaults = { ...poolDefaults, runtime: 'docker', image: 'auto', stop_grace: 35_000 } as const;

/** The pool that there is when the file names none, or there is no file. */
export const onlyPool = { name: 'default', agents: 2 } as const;
