/**
 * Jobs that an agent of this host is to acquire, or has: what the service says of them. Their agents speak to the service
 * themselves, so nothing but its own word tells how far they are.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { LaterError } from './api.ts';
import { type Stacks, stageOf } from './stacks.ts';
import { createWaker, retryWait } from './waker.ts';

export interface Run {
  readonly job: JobId;
  readonly agent: AgentId;
  readonly slot: string;
  /** When its agent was let go, or this manager found it (the clock's `now`). */
  readonly since: number;
  /** `expected`: the service keeps the job for its agent. `over`: the service has its result. */
  readonly phase: 'expected' | 'running' | 'ending' | 'over';
  /** When the service was heard to want its end (the clock's `now`); null: it does not. */
  readonly cancelledAt: number | null;
}

export interface RunParts {
  readonly stacks: Pick<Stacks, 'states'>;
  readonly stack: string;
  /** ms that an agent may take to acquire its job. */
  readonly bootTimeout: number;
  /** ms that the slot's sandbox may take to end after TERM. */
  readonly graceOf: (slot: string) => number;
  /** The service gave the job to an agent: it can only be this one. */
  readonly acquired: (run: Run) => void;
  /** Its agent was not heard of in time. */
  readonly late: (run: Run) => void;
  /** The job went back to its queue, or is gone, and its agent has not had it. */
  readonly missed: (run: Run, state: string) => void;
  /** The service has its result: nothing is left for its agent to do. */
  readonly over: (run: Run) => void;
  /** It was cancelled, and its agent has not ended it in its time. Said again after as long. */
  readonly unheeded: (run: Run) => void;
  /** Whether anything can be asked at all. */
  readonly isReady: () => boolean;
  /** In [0, 1). */
  readonly random: () => number;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export interface Runs {
  /** An agent is about to be let go with the job, or was by an earlier manager. */
  add(run: { readonly job: JobId; readonly agent: AgentId; readonly slot: string }): void;
  of(job: JobId): Run | null;
  /** Its sandbox is gone. */
  drop(job: JobId): void;
  /** Something has changed: there is a token. */
  wake(): void;
  /** Resolves once `signal` is aborted and nothing is under way. */
  readonly ended: Promise<void>;
}

/** ms between two looks: while an agent is on its way, and else. */
const [soon, later] = [1_000, 5_000];
/** ms beyond its grace period in which a cancelled job's agent sends the end of its log. */
const slack = 30_000;
/** ms after which an answer is too old to give an agent up by it. */
const fresh = 2_000;

export function createRuns(parts: RunParts): Runs {
  const { stacks, stack, clock, log, signal } = parts;
  const runs = new Map<JobId, Run>();
  const waker = createWaker(clock);
  signal.addEventListener('abort', waker.wake, { once: true });
  let failures = 0;
  /** Times of the clock. */
  let [asked, notBefore] = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY];

  const put = (run: Run, patch: Partial<Run>): Run => {
    const next = { ...run, ...patch };
    if (runs.has(run.job)) runs.set(run.job, next);
    return next;
  };

  function judge(run: Run, state: string, isFresh: boolean): void {
    const now = clock.now();
    switch (stageOf(state)) {
      case 'reserved':
        if (run.phase !== 'expected' || !isFresh || now - run.since <= parts.bootTimeout) return;
        put(run, { since: now });
        parts.late(run);
        return;
      case 'running':
        if (run.phase === 'expected') parts.acquired(put(run, { phase: 'running' }));
        return;
      case 'ending': {
        if (run.phase === 'expected') parts.acquired(run);
        const since = run.cancelledAt ?? now;
        const isLate = now - since > parts.graceOf(run.slot) + slack;
        put(run, { phase: 'ending', cancelledAt: isLate ? now : since });
        if (isLate) parts.unheeded(run);
        return;
      }
      case 'waiting':
        if (run.phase === 'expected') parts.missed(run, state);
        return;
      case 'over':
        if (run.phase === 'over') return;
        put(run, { phase: 'over' });
        if (run.phase === 'expected' && state !== 'finished') parts.missed(run, state);
        else parts.over(run);
        return;
      case null:
        return;
    }
  }

  async function ask(): Promise<void> {
    asked = clock.now();
    const before = [...runs.values()];
    const jobs = before.map(({ job }) => job);
    const states = await stacks.states(stack, jobs, signal);
    for (const { job, agent } of before) {
      const run = runs.get(job);
      if (run?.agent === agent) judge(run, states.get(job) ?? 'gone', clock.now() - asked < fresh);
    }
  }

  async function turn(): Promise<void> {
    try {
      await ask();
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      if (!(error instanceof OnejobError)) log.error('cannot judge jobs', { reason: toFailure(error).message });
      notBefore = clock.now() + retryWait(failures, parts.random, error instanceof LaterError ? error.retryAfter : 0);
    }
  }

  /** null: there is nothing to ask, or nobody can. */
  function due(): number | null {
    const open = [...runs.values()].filter(({ phase }) => phase !== 'over');
    if (open.length === 0 || !parts.isReady()) return null;
    return Math.max(notBefore, asked + (open.some(({ phase }) => phase === 'expected') ? soon : later));
  }

  async function follow(): Promise<void> {
    while (!signal.aborted) {
      const at = due();
      if (at === null || clock.now() < at) await waker.wait(at);
      else await turn();
    }
  }

  const ended = follow();
  return {
    ended,
    wake: waker.wake,
    add(run) {
      runs.set(run.job, { ...run, since: clock.now(), phase: 'expected', cancelledAt: null });
      waker.wake();
    },
    of: (job) => runs.get(job) ?? null,
    drop: (job) => void runs.delete(job),
  };
}
