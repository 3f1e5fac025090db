/** The service's jobs on this host, for people. Only `last` decides something: whether an agent had a job. */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { RowWriter, type RowWriterParts } from '../kit/row-writer.ts';
import type { Registry, Remote, RemoteJob, Shown } from './port.ts';

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
export class JobRecords {
  readonly #parts: JobRecordsParts;
  readonly #writer: RowWriter;
  readonly #known = new Map<JobId, { readonly job: ServiceJob; readonly place: string }>();
  /** Jobs that are over: a look that began before a job ended may arrive after it. */
  readonly #over = new Set<JobId>();
  /** Jobs whose description is being read, as they were seen last. */
  readonly #describing = new Map<JobId, RemoteJob>();
  readonly #jobOf = new Map<AgentId, JobId>();

  constructor(parts: JobRecordsParts) {
    this.#parts = parts;
    this.#writer = new RowWriter(this.#parts.service, this.#parts);
  }

  /** Writes down at once that an agent has this job, with what is known. */
  had(job: RemoteJob, agent: AgentId, place: string): JobId {
    const { id } = job;
    this.#jobOf.set(agent, id);
    for (const old of [...this.#jobOf.keys()].slice(0, -remembered)) this.#jobOf.delete(old);
    this.#save(
      this.#timed(
        this.#rowOf(job, this.#parts.poolOf(agent) ?? this.#known.get(id)?.job.pool ?? this.#writer.get(id)?.pool ?? '', agent),
      ),
      place,
    );
    return id;
  }

  /** Adds what more the service says, once it has been read. Nobody waits for it. */
  describe(job: RemoteJob, agent: AgentId, place: string, signal: AbortSignal): void {
    const { id } = job;
    if (job.describe === undefined) return;
    const isUnderWay = this.#describing.has(id);
    this.#describing.set(id, job);
    if (isUnderWay) return;
    job
      .describe(signal)
      .then((isMore) => {
        const newest = this.#describing.get(id);
        if (isMore && newest !== undefined && !signal.aborted) this.had(newest, agent, place);
      })
      .catch(() => {})
      .finally(() => this.#describing.delete(id));
  }

  /** Asks for the ends that the service did not know yet when an earlier manager ended. */
  resume(signal: AbortSignal): void {
    if (this.#parts.registry.reopen === undefined) return;
    for (const row of this.#parts.store.serviceJobs.list(searched)) {
      const isOpen = row.service === this.#parts.service && row.state === 'done' && row.unsettled !== undefined;
      if (!isOpen || row.agent === null || this.#parts.clock.wall() - (row.endedAt ?? 0) > settledAfter) continue;
      const job = this.#parts.registry.reopen(row);
      if (job !== null) this.describe(job, row.agent, '', signal);
    }
  }

  /** The newest job that this agent began; undefined when the service does not say. */
  async last(remote: Remote, agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> {
    if (this.#parts.registry.lastJob === undefined) return this.#jobOf.get(agent);
    try {
      const begun = await this.#parts.registry.lastJob(remote, signal);
      if (begun === null) return null;
      const job = this.had(begun, agent, remote.place);
      this.describe(begun, agent, remote.place, signal);
      return job;
    } catch {
      signal.throwIfAborted();
      return undefined;
    }
  }

  saw({ place, entries, unfinished, waiting = [] }: Shown): void {
    const there = new Set(unfinished ?? entries.flatMap(({ job }) => (job === null ? [] : [job.id])));
    const here = new Set(waiting.map(({ job }) => job.id));
    for (const [id, one] of this.#known) {
      if (one.place !== place) continue;
      const { job } = one;
      // A job that another host's agent has taken no longer waits.
      if (job.state === 'waiting' && !here.has(id)) this.#known.delete(id);
      if (there.has(id) || !this.#known.has(id)) continue;
      // A present agent reports by its end how the job ended.
      if (job.agent === null || this.#parts.poolOf(job.agent) === null) this.#save(this.#timed({ ...job, state: 'done' }), place);
    }
    for (const { job, pools } of waiting) {
      const [pool] = pools;
      if (pool !== undefined && !this.#over.has(job.id)) this.#known.set(job.id, { job: this.#rowOf(job, pool, null), place });
    }
  }

  list(): readonly ServiceJob[] {
    return [...this.#known.values()].map(({ job }) => job);
  }

  /** Whether its agent is known to work on it, or to be done. An agent is given a job before it hears of it. */
  hasBegun(id: JobId) {
    return this.#over.has(id) || this.#known.get(id)?.job.state === 'running';
  }

  #save(job: ServiceJob, place: string): void {
    if (job.state !== 'done' && this.#over.has(job.id)) return;
    if (job.state === 'done') {
      this.#known.delete(job.id);
      this.#over.add(job.id);
      for (const old of [...this.#over].slice(0, -remembered)) this.#over.delete(old);
    } else {
      this.#known.set(job.id, { job, place });
    }
    this.#writer.save(job);
  }

  #rowOf(job: RemoteJob, pool: string, agent: AgentId | null): ServiceJob {
    const { id, state } = job;
    return { id, service: this.#parts.service, pool, agent, state, note: null, ...job.facts() };
  }

  /** With this host's times where the service has none: when the job was first seen at work, and when its agent ended. */
  #timed(row: ServiceJob): ServiceJob {
    const { startedAt = null, endedAt = null } = this.#writer.get(row.id) ?? {};
    const isOver = row.state === 'done';
    const now = this.#parts.clock.wall();
    return {
      ...row,
      startedAt: row.startedAt ?? startedAt ?? (row.state === 'running' ? now : null),
      endedAt: isOver ? (row.endedAt ?? endedAt ?? this.#parts.store.history.get(row.agent ?? '')?.endedAt ?? now) : row.endedAt,
    };
  }
}
