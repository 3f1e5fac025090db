/** Jobs of a service that binds late: those that this host has or had, for people. */

import { type ErrorCode, type Failure, isEngineAway } from '../../base/errors.ts';
import type { FailedIn, Outcome } from '../../core/job-end.ts';
import type { AgentId, JobId, JobResult } from '../../core/slot.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import { RowWriter, type RowWriterParts } from './row-writer.ts';

/**
 * How a job ended: in a word for people, and what that means; null: unknown. `failedIn`: where, if it failed; left out: in its script,
 * as the exit of its agent or a limit shows.
 */
export interface JobEnd {
  readonly word: string;
  readonly outcome: Outcome | null;
  readonly failedIn?: FailedIn | null;
  /** A sentence about it. */
  readonly note?: string | null;
}

/** How a job ended whose agent did not report it, by how its sandbox ended; null: unknown. */
export function endUnreported(result: JobResult | null): JobEnd {
  switch (result?.kind) {
    case 'timeout':
    case 'disk':
      return { word: 'stopped', outcome: 'failed' };
    case 'cancelled':
      return { word: 'stopped', outcome: 'cancelled' };
    case 'oom':
      return { word: 'lost', outcome: 'failed' };
    default:
      return { word: 'lost', outcome: 'lost' };
  }
}

/** Tries to make a sandbox for a job before it is ended. */
export const mostTries = 3;
/** Problems of this host or its service, besides an Engine that is away: any other job would fail too, so no job is ended for them. */
const passing: ReadonlySet<string> = new Set<ErrorCode>([
  ...(['E_ENGINE_SILENT', 'E_DISK_FULL', 'E_STATE_FULL', 'E_STATE_BUSY', 'E_SECRET'] as const),
  ...(['E_FILTER', 'E_FILTER_TAKEN', 'E_CI_UNREACHABLE', 'E_CI_THROTTLED', 'E_CI_ANSWER', 'E_CI_CREDENTIAL'] as const),
]);

/** A failure that counts against the job whose sandbox could not be made; null: it says nothing of the job. */
export const jobsOwnFailure = (failure: Failure | null): Failure | null =>
  failure === null || isEngineAway(failure) || passing.has(failure.code) ? null : failure;

/** What a service says of a job, without secrets. */
export type JobAbout = Pick<ServiceJob, 'id' | 'title' | 'definition' | 'build' | 'repository' | 'branch' | 'reason' | 'link'>;

/** `service`: its name in the config. `about`: of a job as the service gave it. */
export class LateRows<J> {
  readonly #service: string;
  readonly #parts: RowWriterParts;
  readonly #about: (job: J) => JobAbout;
  readonly #writer: RowWriter;

  constructor(service: string, parts: RowWriterParts, about: (job: J) => JobAbout) {
    this.#service = service;
    this.#parts = parts;
    this.#about = about;
    this.#writer = new RowWriter(this.#service, this.#parts);
  }

  /** An agent has it, or had it. `since`: wall clock, ms. */
  runs(id: JobId, agent: AgentId, since = this.#parts.clock.wall()): void {
    const before = this.#writer.get(id);
    if (before === null || (before.state === 'done' && before.result !== null)) return;
    this.#writer.save({
      ...before,
      agent,
      state: 'running',
      result: null,
      outcome: null,
      failedIn: null,
      startedAt: before.startedAt ?? since,
      endedAt: null,
    });
  }

  /** Writes a sentence about a job of this host. */
  note(job: JobId, text: string): void {
    const before = this.#writer.get(job);
    if (before !== null) this.#writer.save({ ...before, note: text.slice(0, longestNote) });
  }

  /** Reserved for a pool, and no agent has it yet. */
  reserved(job: J, pool: string): void {
    const facts = this.#about(job);
    const before = this.#writer.get(facts.id);
    this.#writer.save({
      service: this.#service,
      pool,
      agent: null,
      ...facts,
      demands: [],
      state: 'assigned',
      result: null,
      outcome: null,
      failedIn: null,
      note: before?.note ?? null,
      queuedAt: before?.queuedAt ?? this.#parts.clock.wall(),
      startedAt: before?.startedAt ?? null,
      endedAt: null,
    });
  }

  /** This host has it no more. `end`: how it ended; null: it went back to its queue. */
  left(id: JobId, end: JobEnd | null): void {
    const before = this.#writer.get(id);
    if (before === null || before.state === 'done') return;
    const agent = before.startedAt === null ? null : before.agent;
    const { word: result = null, outcome = null, failedIn = 'script' } = end ?? {};
    const note = end?.note ?? before.note;
    this.#writer.save({ ...before, agent, state: 'done', result, outcome, failedIn, note, endedAt: this.#parts.clock.wall() });
  }

  /** Those that are not over, also those of earlier managers. */
  unended(): readonly ServiceJob[] {
    const written = this.#parts.store.serviceJobs
      .list(mostUnended)
      .filter((row) => row.service === this.#service && !this.#writer.unwritten.has(row.id));
    return [...written, ...this.#writer.unwritten.values()].filter(({ state }) => state !== 'done');
  }

  /**
   * Takes over what an earlier manager had reserved and no agent had: until the service says what has become of it, people see it as it
   * was, and not as ended.
   */
  resume(): void {
    for (const row of this.unended()) if (row.agent === null) this.#writer.open.set(row.id, row);
  }

  list(): readonly ServiceJob[] {
    return [...this.#writer.open.values()];
  }
}

/** Characters of a note that are kept. */
const longestNote = 500;

/** Rows that are searched for unfinished ones, newest first. */
const mostUnended = 1_000;
