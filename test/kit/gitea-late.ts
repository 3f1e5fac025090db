/** Gitea bound late, on a Gitea in memory: slots whose jobs are moved by hand, a state directory on disk, and time moved by hand. */
import { join } from 'node:path';
import { OneTimeFiles } from '../../src/ci/filter/one-time-files.ts';
import { Seal } from '../../src/ci/filter/seal.ts';
import { GiteaClient } from '../../src/ci/gitea/client.ts';
import { askEvery, createLateGitea, GiteaPort, openRunnerFiles, schemas } from '../../src/ci/gitea/late.ts';
import type { GiteaServiceConfig } from '../../src/ci/gitea/type.ts';
import { LateRows } from '../../src/ci/kit/job-rows.ts';
import { openJobFiles } from '../../src/ci/late/jobs.ts';
import type { PoolConfig } from '../../src/config/config.ts';
import type { AgentId, Change, Exit, JobId } from '../../src/core/slot.ts';
import type { AgentContext, CiEvent, JobSource } from '../../src/ports/ci-service.ts';
import type { SecretKeys } from '../../src/secrets/keys.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { type Scratch, scratch } from '../support/scratch.ts';
import { patient } from './azure.ts';
import { fakeFilter, keptLog, testPool } from './buildkite-manager.ts';
import { handClock } from './core.ts';
import { type MemoryGitea, memoryGitea } from './gitea.ts';

interface Options {
  readonly gitea?: MemoryGitea;
  /** Of an earlier manager. */
  readonly dir?: Scratch;
  readonly pool?: Partial<PoolConfig>;
  /** What slots have at first. */
  readonly lanes?: Readonly<Record<string, readonly JobId[]>>;
  readonly keys?: SecretKeys;
}

export type LateBench = ReturnType<typeof lateGitea>;

export function lateGitea({ gitea = memoryGitea(), dir = scratch(), pool: more = {}, lanes: first = {}, keys }: Options = {}) {
  const clock = handClock();
  const log = keptLog();
  const store = openInstantStore(join(dir.path, 'state'));
  const lanes = new Map<string, readonly JobId[]>(Object.entries(first));
  const events: CiEvent[] = [];
  const exits = new Map<AgentId, Exit>();
  const alive = new AbortController();
  const pending = new Set<Promise<unknown>>();
  const files = openJobFiles(join(store.dir, 'jobs-forge'), { schemas });
  const runners = openRunnerFiles(join(store.dir, 'runners-forge'));
  const track = <T>(work: Promise<T>): Promise<T> => {
    const one = work.catch(() => {}).finally(() => pending.delete(one));
    pending.add(one);
    return work;
  };
  const config: GiteaServiceConfig = {
    name: 'forge',
    type: 'gitea',
    url: gitea.url,
    pollEvery: 5_000,
    bootTimeout: 60_000,
    binding: 'late',
    token: { kind: 'memory', name: 'the test', expires: null, read: () => 'secret-token' },
    agentPackage: { version: null, from: null, sha256: null },
  };
  const left = new OneTimeFiles(join(store.dir, 'filter'));
  const pool = testPool({ service: 'forge', queue: 'acme', tags: [], ...more });
  const client = new GiteaClient({
    url: gitea.url,
    token: async () => 'secret-token',
    clock,
    fetch: gitea.fetch,
    version: '0.0.0',
  });
  const program = {
    folder: '/tools/at-1',
    ready: async () => '/tools/at-1/gitea-runner',
    state: { kind: 'unknown' } as const,
  };
  const own = { config, client, program, clock, log, owner: '0123456789abcdef' };
  const port = new GiteaPort({
    ...own,
    host: 'box',
    pool,
    runners: { ...runners, keep: (id, one) => track(runners.keep(id, one)) },
    held: files.all().map((found) => ('given' in found ? found.given.runner.id : found.begun.runner.id)),
  });
  const service = createLateGitea({
    ...own,
    port,
    images: [],
    pollEvery: askEvery,
    pools: [pool],
    stateDir: store.dir,
    left,
    filter: fakeFilter,
    places: new Map(),
    files: { ...files, keep: (id, one) => track(files.keep(id, one)) },
    rows: new LateRows('forge', { store, clock, log }, (one) => ({
      ...port.aboutOf(one),
      id: `forge-${port.idOf(port.keyOf(one))}`,
    })),
    admission: { keys: async () => keys ?? null, pins: { of: () => [], first: (_, pipeline) => [pipeline] } },
    slots: { jobsOf: (slot) => lanes.get(slot) ?? [] },
    random: () => 0,
    exitOf: (agent) => exits.get(agent) ?? null,
    known: Object.keys(first),
  });
  const jobs = service.jobs as Required<Pick<JobSource, 'next' | 'offer' | 'record' | 'committed' | 'rolledBack' | 'recipeFor'>>;

  /** Everything that needs no time. */
  async function turns(): Promise<void> {
    for (let n = 0; n < 8; n += 1) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      await Promise.all(pending);
    }
  }
  const bench = {
    gitea,
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
    files: () =>
      files
        .all()
        .map((found) => ('given' in found ? `${port.idOf(port.keyOf(found.given))} whole` : `${port.idOf(found.begun)} begun`)),
    /** Ids of runners on disk that have no task. */
    waitingRunners: () => runners.all().map(({ id }) => id),
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
    async begin(job: JobId, agent = 'a1'): Promise<void> {
      bench.commit({ change: 'started', job, agent });
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
    /** What the runner of a script gets from the filter; null: nothing (any more). */
    async givenBy(script: string) {
      const token = /"token":"(ojf_[\w-]+)"/.exec(script)?.[1] ?? '';
      const sealed = new Seal(new Uint8Array(32)).open(token);
      const answer = await left.take(sealed?.file ?? '', sealed?.token ?? '');
      return answer === null ? null : { sealed, answer };
    },
    row: (job: JobId) => store.serviceJobs.get(job),
    holds: () => events.flatMap((event) => (event.kind === 'hold' ? [event.reason] : [])),
    /** As by `kill -9`: nothing is done any more, and nobody is told. */
    stop(): void {
      alive.abort();
      store.close();
    },
    /** The manager ends, and so do its jobs. */
    async end(): Promise<void> {
      const closed = service.close?.(false);
      await bench.pass(6_000);
      await closed;
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
