/** Why onejob ends jobs, told to the broker, which writes it behind a job's output: at once, or as soon as it can be told. */
import { type Clock, deadline } from '../../core/clock.ts';
import type { JobId, StopReason } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { EndingAgent } from '../ci-service.ts';
import type { BrokerAgent } from './broker/protocol.ts';
import type { BrokerDesk } from './broker-desk.ts';

export interface ExplainingParts {
  readonly desk: Pick<BrokerDesk, 'port' | 'explain'>;
  readonly agentOf: (job: JobId) => BrokerAgent | null;
  /** What people are told; null: there is nothing to say. */
  readonly wordsFor: (job: JobId, why: StopReason) => string | null;
  /** Told the words, also when no broker is there to hear them. */
  readonly note: (job: JobId, words: string) => void;
  readonly clock: Clock;
  readonly log: Log;
  /** Aborted once nobody listens any more. */
  readonly signal: AbortSignal;
}

export interface Explaining {
  /** Takes a second at most, and never fails. */
  ending(agent: EndingAgent): Promise<void>;
  /** The job's agent was seen: what could not be told before is told now. */
  saw(job: JobId): void;
  forget(job: JobId): void;
}

/** ms that a job's end waits for its reason to be heard. */
const patience = 1_000;

export function createExplaining({ desk, agentOf, wordsFor, note, clock, log, signal }: ExplainingParts): Explaining {
  /** Of which the broker has not heard: it, or this manager, may only be coming back. */
  const unsaid = new Map<JobId, StopReason>();

  async function explain(job: JobId, why: StopReason): Promise<void> {
    const agent = agentOf(job);
    const words = wordsFor(job, why);
    if (agent === null || words === null) return;
    note(job, words);
    if (desk.port === null) return;
    using limit = deadline(clock, patience, signal);
    try {
      await desk.explain(agent.id, { reason: words }, limit.signal);
      unsaid.delete(job);
    } catch (error) {
      if (!signal.aborted) log.warn('cannot say why a job is ended', { job, reason: toFailure(error).message });
    }
  }

  return {
    async ending({ job, why, released }) {
      // A job that has not begun goes back.
      if (job === null || !released) return;
      unsaid.set(job, why);
      await explain(job, why);
    },
    saw(job) {
      const why = unsaid.get(job);
      if (why !== undefined) void explain(job, why);
    },
    forget: (job) => void unsaid.delete(job),
  };
}
