/** Slurm's queue as all agents share it: one `squeue` at a time, however many wait for it. */
import { Waiters } from '../../base/abortable.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { SlurmCommands } from './commands.ts';
import { type Jobs, jobsOf, type Phase } from './states.ts';

interface QueueParts {
  readonly clock: Clock;
  readonly commands: Pick<SlurmCommands, 'jobs'>;
  /** ms between two looks while something changes. */
  readonly every: number;
}

/** ms between two looks while nothing changes. Sites ask for few. */
export const slowly = 15_000;
/** ms until looks after something was asked of Slurm: an idle node begins a job in a tenth of a second. */
const soon = [100, 300, 1_000] as const;
/** A look at a long queue costs the controller more, so looks take no more than this share of its time, as long as they are not rarer than this (ms). */
const [share, rarest] = [0.02, 10_000];

/** What an agent's job was, and when that was first seen: core clock, ms. */
interface Known {
  readonly phase: Phase | null;
  readonly since: number;
  /** When its folder first showed that it had begun; null: it has not. */
  readonly startedAt: number | null;
}

export class SlurmQueue {
  readonly #parts: QueueParts;
  readonly #waiters = new Waiters();
  /** One timer for all that wait. */
  #due: { readonly at: number; readonly callOff: () => void } | null = null;
  #waiting = 0;
  /** The look that runs now. */
  #looking: Promise<Jobs> | null = null;
  #last: { readonly jobs: Jobs; readonly askedAt: number } | null = null;
  /** Something was asked of Slurm since the last look. */
  #isStale = false;
  /** ms that the last look took. */
  #took = 0;
  readonly #known = new Map<AgentId, Known>();

  constructor(parts: QueueParts) {
    this.#parts = parts;
  }

  /** What the last successful look showed; null: there was none. */
  get last(): Jobs | null {
    return this.#last?.jobs ?? null;
  }

  /** The jobs now, or at most half an interval ago. `fresh`: asked after this call. @throws OnejobError E_ENGINE_* */
  async look(signal?: AbortSignal, fresh = false): Promise<Jobs> {
    const { clock } = this.#parts;
    const every = this.#every;
    if (fresh) await this.#looking?.catch(() => {});
    const isNew = this.#last !== null && !this.#isStale && clock.now() - this.#last.askedAt < every / 2;
    if (isNew && !fresh && this.#last !== null) return this.#last.jobs;
    this.#looking ??= this.#ask().finally(() => {
      this.#looking = null;
    });
    const jobs = await this.#looking;
    signal?.throwIfAborted();
    return jobs;
  }

  /** How long looks have shown this of an agent's job, and whether the last one was asked after it had begun (`started`). */
  about(agent: AgentId, phase: Phase | null, started: boolean): { readonly since: number; readonly afterStart: boolean } {
    const now = this.#last?.askedAt ?? 0;
    const before = this.#known.get(agent);
    const startedAt = before?.startedAt ?? (started ? this.#parts.clock.now() : null);
    const since = before?.phase === phase ? before.since : now;
    this.#known.set(agent, { phase, since, startedAt });
    return { since: now - since, afterStart: startedAt !== null && startedAt < now };
  }

  forget(agent: AgentId): void {
    this.#known.delete(agent);
  }

  /** Waits until the next look is due, or something has begun or ended. */
  async next(signal: AbortSignal, pace: 'usual' | 'slow' = 'usual'): Promise<void> {
    const { clock } = this.#parts;
    const ms = pace === 'slow' ? Math.max(this.#every, slowly) : this.#every;
    if (this.#due === null || clock.now() + ms < this.#due.at) {
      this.#due?.callOff();
      this.#due = { at: clock.now() + ms, callOff: clock.after(ms, () => this.wake()) };
    }
    this.#waiting += 1;
    await this.#waiters.next(signal);
    this.#waiting -= 1;
    if (this.#waiting === 0) this.#stopTimer();
  }

  /** Something has begun or ended, as files show. */
  wake(): void {
    this.#stopTimer();
    this.#waiters.wake();
  }

  #stopTimer(): void {
    this.#due?.callOff();
    this.#due = null;
  }

  /** Something was asked of Slurm, which shows in a moment. */
  hurry(): void {
    this.#isStale = true;
    for (const ms of soon) if (ms <= this.#every) this.#parts.clock.after(ms, () => this.#again());
  }

  /** Another look than the last. */
  #again(): void {
    this.#isStale = true;
    this.wake();
  }

  /** ms between two looks while something changes. */
  get #every(): number {
    return Math.max(this.#parts.every, Math.min(rarest, this.#took / share));
  }

  async #ask(): Promise<Jobs> {
    const askedAt = this.#parts.clock.now();
    // What is asked of Slurm from now on may be missing in this look.
    this.#isStale = false;
    try {
      const jobs = jobsOf(await this.#parts.commands.jobs());
      this.#took = this.#parts.clock.now() - askedAt;
      this.#last = { jobs, askedAt };
      return jobs;
    } catch (error) {
      this.#isStale = true;
      throw error;
    }
  }
}
