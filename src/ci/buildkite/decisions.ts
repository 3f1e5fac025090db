/**
 * What becomes of each accepted job, from the moment the broker tells of it until its sandbox has called in: decided once, given up
 * when it takes too long, refused with a reason that the service shows.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { Failure, JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import { type Board, needsSandbox } from './board.ts';
import type { BrokerAgent, RefuseRequest } from './broker/protocol.ts';
import type { BrokerDesk } from './broker-desk.ts';
import { createDeadlines } from './deadlines.ts';
import type { Ruling } from './ruling.ts';

export interface DecisionParts {
  readonly desk: Pick<BrokerDesk, 'refuse'>;
  readonly board: Board;
  readonly rule: (agent: BrokerAgent, pool: PoolConfig) => Promise<Ruling>;
  readonly poolOf: (slot: string) => PoolConfig | undefined;
  /** Jobs that a slot has, in whatever lane. */
  readonly jobsOf: (slot: string) => readonly JobId[];
  /** Whether nothing begins in this slot any more. */
  readonly isGone: (slot: string) => boolean;
  readonly emit: (event: CiEvent) => void;
  /** The job may run: said once that is decided, and again whenever it is heard of while it waits. */
  readonly run: (agent: BrokerAgent, ruling: Extract<Ruling, { kind: 'run' }>) => void;
  /** Tells people what was made of a job. */
  readonly note: (job: JobId, text: string) => void;
  /** ms */
  readonly holdTimeout: number;
  /** ms */
  readonly bootTimeout: number;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export interface Decisions {
  saw(agent: BrokerAgent): void;
  /** By the broker's id of the agent; undefined while nothing is decided. */
  of(id: string): Ruling | undefined;
  refuse(agent: BrokerAgent, reason: string, signalReason: RefuseRequest['signalReason']): Promise<void>;
  /** Its sandbox could not be made, or was given up before anything began in it. */
  returned(agent: BrokerAgent, failure: Failure | null): void;
  close(): void;
}

/** Tries to make a sandbox for a job before it is given up. */
const mostTries = 3;
/** ms until a broker that could not be told is told again. */
const tellAgain = 5_000;

export function createDecisions(parts: DecisionParts): Decisions {
  const { desk, board, emit, log, signal } = parts;
  const rulings = new Map<string, Ruling>();
  /** The broker is being told that these never run: until it has said so, they are offered to no slot. */
  const givenUp = new Set<string>();
  const deciding = new Set<string>();
  const tries = new Map<JobId, number>();
  const deadlines = createDeadlines(parts);

  const forget = ({ id, job }: BrokerAgent): void => {
    rulings.delete(id);
    givenUp.delete(id);
    if (job !== null) tries.delete(job.id);
  };

  /** The broker keeps at it; one that is away is told again once it is back, since the job is still there then. */
  const refuse: Decisions['refuse'] = async (agent, reason, signalReason) => {
    givenUp.add(agent.id);
    if (agent.job !== null) parts.note(agent.job.id, reason);
    try {
      await desk.refuse(agent.id, { reason, signalReason }, signal);
    } catch (error) {
      givenUp.delete(agent.id);
      if (signal.aborted) return;
      log.warn('cannot refuse a job', { job: agent.job?.id ?? null, reason: toFailure(error).message });
      const again = parts.clock.after(tellAgain, () => {
        signal.removeEventListener('abort', again);
        if (board.ofJob(agent.job?.id ?? '')?.id === agent.id) void refuse(agent, reason, signalReason);
      });
      signal.addEventListener('abort', again, { once: true });
    }
  };

  async function decide(agent: BrokerAgent, pool: PoolConfig): Promise<void> {
    const job = agent.job?.id ?? '';
    deciding.add(agent.id);
    try {
      const ruling = await parts.rule(agent, pool);
      // It may have been cancelled meanwhile.
      const now = board.ofJob(job);
      if (now === null || now.id !== agent.id || !needsSandbox(now)) return;
      rulings.set(now.id, ruling);
      if (ruling.kind === 'run' && ruling.why !== null) parts.note(job, ruling.why);
      if (ruling.kind === 'run') parts.run(now, ruling);
      else {
        log.warn('job refused', { job, pipeline: ruling.facts.pipeline, reason: ruling.reason });
        await refuse(now, `onejob refused this job: ${ruling.reason}`, 'agent_refused');
      }
    } catch (error) {
      if (signal.aborted) return;
      const { message } = toFailure(error);
      log.error('cannot decide about a job', { job, reason: message });
      await refuse(agent, `onejob cannot run this job: ${message}`, 'process_run_error');
    } finally {
      deciding.delete(agent.id);
    }
  }

  /** What came too late is ended here and at the service, whatever is in its sandbox. */
  const tooLate = (agent: BrokerAgent, why: string): void => {
    const job = agent.job?.id;
    if (job === undefined) return;
    log.warn('job given up', { job, reason: why });
    void refuse(agent, `onejob gave this job up: ${why}`, 'process_run_error');
    if (agent.agent !== null && parts.jobsOf(agent.slot).includes(job)) emit({ kind: 'cancel', job, agent: agent.agent, grace: 0 });
  };

  return {
    of: (id) => (givenUp.has(id) ? undefined : rulings.get(id)),
    refuse,
    saw(agent) {
      const job = agent.job?.id;
      deadlines.saw(agent, tooLate);
      if (agent.phase === 'gone') forget(agent);
      if (job === undefined || !needsSandbox(agent)) return;
      const inSlot = parts.jobsOf(agent.slot).includes(job);
      if (agent.cancelled && agent.agent !== null && inSlot) {
        emit({ kind: 'cancel', job, agent: agent.agent, grace: null });
        return;
      }
      if (parts.isGone(agent.slot) && !inSlot) {
        if (!givenUp.has(agent.id)) void refuse(agent, 'onejob was told to stop before this job had begun.', 'agent_stop');
        return;
      }
      const known = rulings.get(agent.id);
      if (known !== undefined) {
        if (known.kind === 'run') parts.run(agent, known);
        else if (!givenUp.has(agent.id)) void refuse(agent, `onejob refused this job: ${known.reason}`, 'agent_refused');
        return;
      }
      const pool = parts.poolOf(agent.slot);
      if (pool !== undefined && !deciding.has(agent.id)) void decide(agent, pool);
      if (pool === undefined && !inSlot)
        void refuse(agent, 'The slot that this job was for is not in the config of onejob any more.', 'agent_stop');
    },
    returned(agent, failure) {
      const job = agent.job?.id;
      if (job === undefined) return;
      const count = (tries.get(job) ?? 0) + (failure === null ? 0 : 1);
      tries.set(job, count);
      if (failure !== null && (count >= mostTries || !failure.retry)) {
        void refuse(agent, `onejob could not make a sandbox for this job: ${failure.message}`, 'process_run_error');
        return;
      }
      deadlines.returned(agent, tooLate);
      // Not within the commit that gave it back.
      const ruling = rulings.get(agent.id);
      if (ruling?.kind === 'run') queueMicrotask(() => parts.run(agent, ruling));
    },
    close: () => deadlines.close(),
  };
}
