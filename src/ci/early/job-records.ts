/**
 * The service's jobs as far as they concern this host: which wait, which an agent has, and how each ended. For people, but for
 * `last`: it says whether an agent that is gone had a job.
 */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { Store } from '../../store/store.ts';
import type { ServiceJob } from '../ci-service.ts';
import type { EarlyParts, Registry, Remote, RemoteJob, Shown } from './port.ts';

export interface JobRecordsParts extends Pick<EarlyParts, 'service'> {
  readonly store: Pick<Store, 'serviceJobs' | 'transaction'>;
  readonly registry: Pick<Registry, 'lastJob'>;
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
}

/** `place`: of the queue at the service. */
export interface JobRecords {
  /** An agent has this job: written down with what is known already, so that nobody waits for the rest. */
  had(job: RemoteJob, agent: AgentId, place: string): JobId;
  /** Adds what the service says beyond that once it has been read, which nobody waits for. */
  describe(job: RemoteJob, agent: AgentId, place: string, signal: AbortSignal): void;
  /** The newest job that this agent began; undefined when the service does not say. */
  last(remote: Remote, agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined>;
  /** What a look shows of jobs. */
  saw(shown: Shown): void;
  list(): readonly ServiceJob[];
  /** Whether its agent is known to work on it, or to be done; an agent is given a job before it hears of it. */
  hasBegun(job: JobId): boolean;
}

/** Jobs of which it is remembered that they are over, and agents of which the job is. */
const remembered = 1_000;

export function createJobRecords({ service, store, registry, poolOf, wall }: JobRecordsParts): JobRecords {
  const known = new Map<JobId, { readonly job: ServiceJob; readonly place: string }>();
  /** A look may have begun before a job ended, and be told of after it. */
  const over = new Set<JobId>();
  /** Jobs of which more is being read, as they were seen last. */
  const describing = new Map<JobId, RemoteJob>();
  const jobOf = new Map<AgentId, JobId>();

  const save = (job: ServiceJob, place: string): void => {
    if (job.state !== 'done' && over.has(job.id)) return;
    const before = known.get(job.id);
    if (job.state === 'done') {
      known.delete(job.id);
      over.add(job.id);
      for (const old of [...over].slice(0, -remembered)) over.delete(old);
    } else {
      known.set(job.id, { job, place });
    }
    if (before !== undefined && JSON.stringify(before.job) === JSON.stringify(job)) return;
    store.transaction({ durable: false }, () => store.serviceJobs.save(job, wall()));
  };

  const rowOf = (job: RemoteJob, pool: string, agent: AgentId | null): ServiceJob => {
    const { id, state } = job;
    return { ...{ id, service, pool, agent, state, note: null }, ...job.facts() };
  };

  const had = (job: RemoteJob, agent: AgentId, place: string): JobId => {
    const { id } = job;
    jobOf.set(agent, id);
    for (const old of [...jobOf.keys()].slice(0, -remembered)) jobOf.delete(old);
    save(rowOf(job, poolOf(agent) ?? known.get(id)?.job.pool ?? store.serviceJobs.get(id)?.pool ?? '', agent), place);
    return id;
  };

  const describe: JobRecords['describe'] = (job, agent, place, signal) => {
    const { id } = job;
    if (job.describe === undefined) return;
    const isUnderWay = describing.has(id);
    describing.set(id, job);
    if (isUnderWay) return;
    job
      .describe(signal)
      .then((isMore) => {
        const newest = describing.get(id);
        if (isMore && newest !== undefined && !signal.aborted) had(newest, agent, place);
      })
      // Only for people.
      .catch(() => {})
      .finally(() => describing.delete(id));
  };

  return {
    had,
    describe,
    async last(remote, agent, signal) {
      if (registry.lastJob === undefined) return jobOf.get(agent);
      try {
        const begun = await registry.lastJob(remote, signal);
        if (begun === null) return null;
        const job = had(begun, agent, remote.place);
        describe(begun, agent, remote.place, signal);
        return job;
      } catch {
        signal.throwIfAborted();
        return undefined;
      }
    },
    saw({ place, entries, unfinished, waiting = [] }) {
      const there = new Set(unfinished ?? entries.flatMap(({ job }) => (job === null ? [] : [job.id])));
      const here = new Set(waiting.map(({ job }) => job.id));
      for (const [id, one] of known) {
        if (one.place !== place) continue;
        const { job } = one;
        // One that an agent of another host has taken is not over, and waits no more.
        if (job.state === 'waiting' && !here.has(id)) known.delete(id);
        if (there.has(id) || !known.has(id)) continue;
        // An agent that is still there will say by its end how the job ended.
        if (job.agent === null || poolOf(job.agent) === null) save({ ...job, state: 'done', endedAt: wall() }, place);
      }
      for (const { job, pools } of waiting) {
        const [pool] = pools;
        if (pool !== undefined && !over.has(job.id)) known.set(job.id, { job: rowOf(job, pool, null), place });
      }
    },
    list: () => [...known.values()].map(({ job }) => job),
    hasBegun: (id) => over.has(id) || known.get(id)?.job.state === 'running',
  };
}
