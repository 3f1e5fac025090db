/**
 * A CI service that is bound late, for tests: slots whose jobs are moved by hand, a state directory on disk, and time that is moved by
 * hand. The service itself, and what it talks to, come from the file of each.
 */
import { join } from 'node:path';
import { OneTimeFiles } from '../../src/ci/filter/one-time-files.ts';
import type { AgentId, Change, Exit, JobId } from '../../src/core/slot.ts';
import type { AgentContext, CiEvent, CiService, JobSource } from '../../src/ports/ci-service.ts';
import { openInstantStore } from '../support/instant-sync.ts';
import { type Scratch, scratch } from '../support/scratch.ts';
import { keptLog } from './buildkite-manager.ts';
import { handClock } from './core.ts';

const patient = new AbortController().signal;

export interface LateOptions {
  /** Of an earlier manager. */
  readonly dir?: Scratch | undefined;
  /** What slots have at first. */
  readonly lanes?: Readonly<Record<string, readonly JobId[]>> | undefined;
}

export type LateHost = ReturnType<typeof lateHost>;

/** What the service is given of its host. */
export function lateHost({ dir = scratch(), lanes: first = {} }: LateOptions) {
  const clock = handClock();
  const store = openInstantStore(join(dir.path, 'state'));
  const lanes = new Map<string, readonly JobId[]>(Object.entries(first));
  const exits = new Map<AgentId, Exit>();
  const pending = new Set<Promise<unknown>>();
  return {
    dir,
    clock,
    log: keptLog(),
    store,
    lanes,
    exits,
    left: new OneTimeFiles(join(store.dir, 'filter')),
    known: Object.keys(first),
    slots: { jobsOf: (slot: string) => lanes.get(slot) ?? [] },
    exitOf: (agent: AgentId) => exits.get(agent) ?? null,
    /** Writing that `turns` waits for. */
    track<T>(work: Promise<T>): Promise<T> {
      const one = work.catch(() => {}).finally(() => pending.delete(one));
      pending.add(one);
      return work;
    },
    /** Everything that needs no time. */
    async turns(): Promise<void> {
      for (let n = 0; n < 8; n += 1) {
        await new Promise<void>((resolve) => setImmediate(resolve));
        await Promise.all(pending);
      }
    },
  };
}

/** What a test does with the service. */
export function lateBench(host: LateHost, service: CiService) {
  const { dir, clock, log, store, lanes, exits, left, turns } = host;
  const events: CiEvent[] = [];
  const alive = new AbortController();
  const jobs = service.jobs as Required<Pick<JobSource, 'next' | 'offer' | 'record' | 'committed' | 'rolledBack' | 'recipeFor'>>;

  const bench = {
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
      isRemote: false,
      hostAddress: async () => '172.18.0.1',
    }),
    /** The slot takes the job, as the loop would; its script. */
    async take(job: JobId, agent = 'a1'): Promise<string> {
      lanes.set('ci/1', [job]);
      bench.commit({ change: 'assigned', job, agent });
      jobs.offer('ci/1', 'closed');
      return (await service.register(bench.context(agent, job), patient)).script;
    },
    /** Its script has begun. */
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
