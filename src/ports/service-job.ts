/** A job of a CI service that keeps its own jobs, as far as onejob has seen it, for people. */
import type { FailedIn, Outcome } from '../core/job-end.ts';

export interface ServiceJob {
  readonly id: string;
  readonly service: string;
  readonly pool: string;
  readonly agent: string | null;
  readonly title: string;
  readonly definition: string | null;
  readonly build: string | null;
  readonly repository: string | null;
  readonly branch: string | null;
  /** In the service's word. */
  readonly reason: string | null;
  readonly link: string | null;
  readonly demands: readonly string[];
  readonly state: 'waiting' | 'assigned' | 'running' | 'done';
  /** In the service's word; null while it has none. */
  readonly result: string | null;
  /** What that word means for the job; null if that is unknown. */
  readonly outcome: Outcome | null;
  /** Where it failed; null: nothing shows that. */
  readonly failedIn: FailedIn | null;
  /** A sentence from onejob: why it was refused or given up, or what it did not get. */
  readonly note: string | null;
  /** What its adapter needs to ask the service for more of its end, in the adapter's own form; absent: the service said all. */
  readonly unsettled?: string | undefined;
  /** Times are wall clock, ms since the epoch. */
  readonly queuedAt: number | null;
  readonly startedAt: number | null;
  readonly endedAt: number | null;
}
