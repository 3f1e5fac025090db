/** The service on a GitLab in memory: slots whose jobs are moved by hand, a state directory on disk, and time that is moved by hand. */
import { join } from 'node:path';
import type { Filter } from '../../src/ci/filter/filter.ts';
import { OneTimeFiles } from '../../src/ci/filter/one-time-files.ts';
import { GitlabClient } from '../../src/ci/gitlab/client.ts';
import type { GitlabParts } from '../../src/ci/gitlab/parts.ts';
import { createGitlab, gitlabPort } from '../../src/ci/gitlab/service.ts';
import type { GitlabServiceConfig } from '../../src/ci/gitlab/type.ts';
import { LateRows } from '../../src/ci/kit/job-rows.ts';
import { openJobFiles } from '../../src/ci/late/jobs.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { AgentId, Change, Exit, JobId } from '../../src/core/slot.ts';
import type { AgentContext, CiEvent, JobSource } from '../../src/ports/ci-service.ts';
import type { SecretKeys } from '../../src/secrets/keys.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { type Scratch, scratch } from '../support/scratch.ts';
import { fakeFilter, keptLog, testPool } from './buildkite-manager.ts';
import { handClock } from './core.ts';
import { type MemoryGitlab, memoryGitlab, runnerToken } from './gitlab.ts';

interface Options {
  readonly gitlab?: MemoryGitlab;
  /** As `memoryGitlab`. */
  readonly holds?: number;
  /** Of an earlier manager. */
  readonly dir?: Scratch;
  readonly pool?: Partial<PoolConfig>;
  readonly config?: Partial<GitlabServiceConfig>;
  /** What slots have at first. */
  readonly lanes?: Readonly<Record<string, readonly JobId[]>>;
  readonly keys?: SecretKeys | (() => Promise<SecretKeys>);
  readonly filter?: Filter;
  readonly program?: Pick<GitlabParts['program'], 'ready' | 'state'>;
}

export type GitlabBench = ReturnType<typeof gitlabService>;

export function gitlabService({
  gitlab: given,
  holds = 0,
  dir = scratch(),
  pool = {},
  config: more = {},
  lanes: first = {},
  keys,
  filter = fakeFilter,
  program: found = { ready: async () => '/tools/at-1/gitlab-runner', state: { kind: 'unknown' } },
}: Options = {}) {
  const clock = handClock();
  const gitlab = given ?? memoryGitlab({ clock, holds });
  const log = keptLog();
  const store = openInstantStore(join(dir.path, 'state'));
  const lanes = new Map<string, readonly JobId[]>(Object.entries(first));
  const events: CiEvent[] = [];
  const exits = new Map<AgentId, Exit>();
  const alive = new AbortController();
  const pending = new Set<Promise<unknown>>();
  const track = <T>(work: Promise<T>): Promise<T> => {
    const one = work.catch(() => {}).finally(() => pending.delete(one));
    pending.add(one);
    return work;
  };
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
  const left = new OneTimeFiles(join(store.dir, 'filter'));
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
  const port = gitlabPort({ config, client, program });
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
    left,
    places: new Map(),
    filter,
    pools: [testPool({ service: 'lab', ...pool })],
    files: { ...real, keep: (id, what) => track(real.keep(id, what)) },
    rows: new LateRows('lab', { store, clock, log }, (job) => ({ ...port.aboutOf(job), id: `lab-${job.id}` })),
    admission: {
      keys: typeof keys === 'function' ? keys : async () => keys ?? null,
      pins: { of: () => [], first: (_, pipeline) => [pipeline] },
    },
    slots: { jobsOf: (slot) => lanes.get(slot) ?? [] },
    random: () => 0,
    exitOf: (agent) => exits.get(agent) ?? null,
    known: Object.keys(first),
  };
  const service = createGitlab(parts);
  const jobs = service.jobs as Required<Pick<JobSource, 'next' | 'offer' | 'record' | 'committed' | 'rolledBack' | 'recipeFor'>>;

  /** Everything that needs no time. */
  async function turns(): Promise<void> {
    for (let n = 0; n < 5; n += 1) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      await Promise.all(pending);
    }
  }
  const bench = {
    gitlab,
    service,
    jobs,
    store,
    clock,
    log,
    lanes,
    events,
    exits,
    left,
    dir,
    files: () => real.all().map((found) => ('given' in found ? `${found.given.id} whole` : `${found.begun.id} begun`)),
    async watch(): Promise<void> {
      service.observe((event) => events.push(event), alive.signal);
      await turns();
    },
    async pass(ms: number): Promise<void> {
      const step = Math.max(500, Math.ceil(ms / 200));
      for (let gone = 0; gone < ms; gone += step) {
        await turns();
        clock.advance(Math.min(step, ms - gone));
      }
      await turns();
    },
    commit(...changes: Change[]): void {
      for (const change of changes) jobs.record(change);
      jobs.committed();
    },
    context: (agent: AgentId, job: JobId | null): AgentContext => ({
      agent,
      pool: 'ci',
      slot: 'ci/1',
      name: 'box-ci-1',
      workspace: '/workspace',
      job,
      devices: [],
      cuda: null,
      ask: () => Promise.reject(new Error('nobody asks')),
      hostAddress: async () => '172.18.0.1',
    }),
    /** The slot takes the job, as the loop would; its script. */
    async take(job: JobId, agent = 'a1'): Promise<string> {
      lanes.set('ci/1', [job]);
      bench.commit({ change: 'assigned', job, agent });
      jobs.offer('ci/1', 'closed');
      return (await service.register(bench.context(agent, job), patient)).script;
    },
    /** Its script has begun; the runner in it takes the job and says so. */
    async begin(job: JobId, agent = 'a1') {
      bench.commit({ change: 'started', job, agent });
      const row = gitlab.jobs.find(({ id }) => job === `lab-${id}`);
      if (row?.state === 'waiting') row.state = 'running';
      await turns();
    },
    /** Its sandbox is over, and what it had is settled. */
    async settle(job: JobId, exit: Exit | { readonly kind: 'timeout' }, agent = 'a1'): Promise<void> {
      bench.commit({ change: 'ended', job, agent, result: exit });
      const nothing = () => Promise.reject(new Error('nothing to read'));
      await service.settle?.(bench.context(agent, job), { all: nothing, folder: nothing }, patient);
      lanes.delete('ci/1');
      bench.commit({ change: 'settled', job, agent });
      await service.deregister(bench.context(agent, null), patient);
      jobs.offer('ci/1', 'open');
      await turns();
    },
    row: (job: JobId) => store.serviceJobs.get(job),
    holds: () => events.flatMap((event) => (event.kind === 'hold' ? [event.reason] : [])),
    /** As by `kill -9`: nothing is done any more, and nobody is told. */
    stop(): void {
      alive.abort();
      store.close();
    },
    async [Symbol.asyncDispose](): Promise<void> {
      if (!alive.signal.aborted) {
        alive.abort();
        await service.close?.(true);
        store.close();
      }
      dir[Symbol.dispose]();
    },
  };
  return bench;
}

export const patient = new AbortController().signal;
