/** The service on a GitLab in memory. */
import { join } from 'node:path';
import type { Filter } from '../../src/ci/filter/filter.ts';
import { GitlabClient } from '../../src/ci/gitlab/client.ts';
import type { GitlabParts } from '../../src/ci/gitlab/parts.ts';
import { createGitlab, gitlabPort } from '../../src/ci/gitlab/service.ts';
import type { GitlabServiceConfig } from '../../src/ci/gitlab/type.ts';
import { LateRows } from '../../src/ci/kit/job-rows.ts';
import { openJobFiles } from '../../src/ci/late/jobs.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { JobId } from '../../src/core/slot.ts';
import type { SecretKeys } from '../../src/secrets/keys.ts';
import { fakeFilter, testPool } from './buildkite-manager.ts';
import { type MemoryGitlab, memoryGitlab, runnerToken } from './gitlab.ts';
import { type LateOptions, lateBench, lateHost } from './late-bench.ts';

interface Options extends LateOptions {
  readonly gitlab?: MemoryGitlab;
  /** As `memoryGitlab`. */
  readonly holds?: number;
  readonly pool?: Partial<PoolConfig>;
  readonly config?: Partial<GitlabServiceConfig>;
  readonly keys?: SecretKeys | (() => Promise<SecretKeys>);
  readonly filter?: Filter;
  readonly program?: Pick<GitlabParts['program'], 'ready' | 'state'>;
}

export type GitlabBench = ReturnType<typeof gitlabService>;

export function gitlabService({
  gitlab: given,
  holds = 0,
  pool = {},
  config: more = {},
  keys,
  filter = fakeFilter,
  program: found = { ready: async () => '/tools/at-1/gitlab-runner', state: { kind: 'unknown' } },
  ...options
}: Options = {}) {
  const here = lateHost(options);
  const { clock, log, store, track } = here;
  const gitlab = given ?? memoryGitlab({ clock, holds });
  const config: GitlabServiceConfig = {
    name: 'lab',
    type: 'gitlab',
    url: gitlab.url,
    pollEvery: 3_000,
    images: [],
    token: { kind: 'memory', name: 'a test', expires: null, read: () => runnerToken },
    agentPackage: { version: null, from: null, sha256: null },
    ...more,
  };
  const token = async () => runnerToken;
  const client = new GitlabClient({
    url: gitlab.url,
    token,
    systemId: 's_0123456789ab',
    clock,
    fetch: gitlab.fetch,
    version: '0.0.0',
  });
  const program: GitlabParts['program'] = {
    folder: '/tools/at-1',
    ready: found.ready,
    get state() {
      return found.state;
    },
  };
  const ownPool = testPool({ service: 'lab', ...pool });
  const port = gitlabPort({ config, client, program, pool: ownPool });
  const real = openJobFiles(join(store.dir, 'jobs-lab'), port);
  const parts: GitlabParts = {
    config,
    client,
    program,
    port,
    images: config.images,
    pollEvery: config.pollEvery,
    stateDir: store.dir,
    clock,
    log,
    left: here.left,
    places: new Map(),
    minFree: 0,
    filter,
    pools: [ownPool],
    files: { ...real, keep: (id, what) => track(real.keep(id, what)) },
    rows: new LateRows('lab', { store, clock, log }, (job) => ({ ...port.aboutOf(job), id: `lab-${job.id}` })),
    admission: {
      keys: typeof keys === 'function' ? keys : async () => keys ?? null,
      pins: { of: () => [], first: (_, pipeline) => [pipeline] },
    },
    slots: here.slots,
    random: () => 0,
    exitOf: here.exitOf,
    known: here.known,
  };
  const service = createGitlab(parts);
  const bench = lateBench(here, service);
  return {
    ...bench,
    service,
    gitlab,
    files: () => real.all().map((found) => ('given' in found ? `${found.given.id} whole` : `${found.begun.id} begun`)),
    /** Its script has begun; the runner in it takes the job and says so. */
    async begin(job: JobId, agent = 'a1'): Promise<void> {
      const row = gitlab.jobs.find(({ id }) => job === `lab-${id}`);
      if (row?.state === 'waiting') row.state = 'running';
      await bench.begin(job, agent);
    },
  };
}

export const patient = new AbortController().signal;
