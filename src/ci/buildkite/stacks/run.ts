/** A run of a job: from the release of its agent to its result. */
import type { AgentId, JobId } from '../../../core/slot.ts';

export interface Run {
  readonly job: JobId;
  readonly agent: AgentId;
  readonly slot: string;
  /** When its agent was released, or this manager found it (the clock's `now`). */
  readonly since: number;
  /** `expected`: the service keeps the job for its agent. `over`: the service has its result. */
  readonly phase: 'expected' | 'running' | 'ending' | 'over';
  /** The service gave it to an agent, which can only be this one. */
  readonly wasAcquired: boolean;
  /** Why its agent was given up: it did not acquire the job in time; null: it was not. */
  readonly late: string | null;
  /** When the service reported its cancellation (the clock's `now`), or null. */
  readonly cancelledAt: number | null;
}
