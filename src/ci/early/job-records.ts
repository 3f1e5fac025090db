/** The service's jobs on this host, for people. Only `last` decides something: whether an agent had a job. */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { createRowWriter, type RowWriterParts } from '../kit/row-writer.ts';
import type { Registry, Remote, RemoteJob, Shown } from './port.ts';

export type JobRecords = ReturnType<typeof createJobRecords>;

/** How many finished jobs are remembered, and how many agents with their job. */
const remembered = 1_000;
/** How many of the newest rows are searched for unsettled ends at the start, and ms after which a service is not asked for an end any more. */
const [searched, settledAfter] = [1_000, 86_400_000];

export interface JobRecordsParts extends RowWriterParts {
  readonly service: string;
  readonly registry: Pick<Registry, 'lastJob' | 'reopen'>;
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
}

/** `place`, in what follows: of the queue at the service. */
export function createJobRecords(parts: JobRecordsParts) {
  const { service, clock, registry, poolOf, store } = parts;
  const writer = createRowWriter(service, parts);
  const known = new Map<JobId, { readonly job: ServiceJob; readonly place: string }>();
  /** Jobs that are over: a look that began before a job ended may arrive after it. */
  const over = new Set<JobId>();
  /** Jobs whose description is being read, as they were seen last. */
  const describing = new Map<JobId, RemoteJob>();
  const jobOf = new Map<AgentId, JobId>();

  const save = (job: ServiceJob, place: string): void => {
    if (job.state !== 'done' && over.has(job.id)) return;
    if (job.state === 'done') {
      known.delete(job.id);
      over.add(job.id);
      for (const old of [...over].slice(0, -remembered)) over.delete(old);
    } else {
      known.set(job.id, { job, place });
    }
    writer.save(job);
  };

  const rowOf = (job: RemoteJob, pool: string, agent: AgentId | null): ServiceJob => {
    const { id, state } = job;
    return { id, service, pool, agent, state, note: null, ...job.facts() };
  };

  /** With this host's times where the service has none: when the job was first seen at work, and when its agent ended. */
  const timed = (row: ServiceJob): ServiceJob => {
    const { startedAt = null, endedAt = null } = writer.get(row.id) ?? {};
    const isOver = row.state === 'done';
    const now = clock.wall();
    return {
      ...row,
      startedAt: row.startedAt ?? startedAt ?? (row.state === 'running' ? now : null),
      endedAt: isOver ? (row.endedAt ?? endedAt ?? store.history.get(row.agent ?? '')?.endedAt ?? now) : row.endedAt,
    };
  };

  /** Writes down at once that an agent has this job, with what is known. */
  const had = (job: RemoteJob, agent: AgentId, place: string): JobId => {
    const { id } = job;
    jobOf.set(agent, id);
    for (const old of [...jobOf.keys()].slice(0, -remembered)) jobOf.delete(old);
    save(timed(rowOf(job, poolOf(agent) ?? known.get(id)?.job.pool ?? writer.get(id)?.pool ?? '', agent)), place);
    return id;
  };

  /** Adds what more the service says, once it has been read. Nobody waits for it. */
  const describe = (job: RemoteJob, agent: AgentId, place: string, signal: AbortSignal): void => {
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
      .catch(() => {})
      .finally(() => describing.delete(id));
  };

  return {
    had,
    describe,
    /** Asks for the ends that the service did not know yet when an earlier manager ended. */
    resume(signal: AbortSignal): void {
      if (registry.reopen === undefined) return;
      for (const row of store.serviceJobs.list(searched)) {
        const isOpen = row.service === service && row.state === 'done' && row.unsettled !== undefined;
        if (!isOpen || row.agent === null || clock.wall() - (row.endedAt ?? 0) > settledAfter) continue;
        const job = registry.reopen(row);
        if (job !== null) describe(job, row.agent, '', signal);
      }
    },
    /** The newest job that this agent began; undefined when the service does not say. */
    async last(remote: Remote, agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> {
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
    saw({ place, entries, unfinished, waiting = [] }: Shown): void {
      const there = new Set(unfinished ?? entries.flatMap(({ job }) => (job === null ? [] : [job.id])));
      const here = new Set(waiting.map(({ job }) => job.id));
      for (const [id, one] of known) {
        if (one.place !== place) continue;
        const { job } = one;
        // A job that another host's agent has taken no longer waits.
        if (job.state === 'waiting' && !here.has(id)) known.delete(id);
        if (there.has(id) || !known.has(id)) continue;
        // A present agent reports by its end how the job ended.
        if (job.agent === null || poolOf(job.agent) === null) save(timed({ ...job, state: 'done' }), place);
      }
      for (const { job, pools } of waiting) {
        const [pool] = pools;
        if (pool !== undefined && !over.has(job.id)) known.set(job.id, { job: rowOf(job, pool, null), place });
      }
    },
    list: (): readonly ServiceJob[] => [...known.values()].map(({ job }) => job),
    /** Whether its agent is known to work on it, or to be done. An agent is given a job before it hears of it. */
    hasBegun: (id: JobId) => over.has(id) || known.get(id)?.job.state === 'running',
  };
}
