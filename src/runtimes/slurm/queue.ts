/** Slurm's queue as all agents share it: one `squeue` at a time, however many wait for it. */
import { Waiters } from '../../base/abortable.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { SlurmCommands, SlurmJob } from './commands.ts';
import type { Phase } from './states.ts';

interface QueueParts {
  readonly clock: Clock;
  readonly commands: Pick<SlurmCommands, 'jobs'>;
  /** ms between two looks while something changes. */
  readonly every: number;
}

/** ms between two looks while nothing changes. Sites ask for few. */
const slowly = 15_000;
/** ms until a look after something was asked of Slurm, or has begun or ended. */
const soon = 300;

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
  /** The look that runs now. */
  #looking: Promise<readonly SlurmJob[]> | null = null;
  #last: { readonly jobs: readonly SlurmJob[]; readonly askedAt: number } | null = null;
  /** Something was asked of Slurm since the last look. */
  #isStale = false;
  readonly #known = new Map<AgentId, Known>();

  constructor(parts: QueueParts) {
    this.#parts = parts;
  }

  /** What the last successful look showed; null: there was none. */
  get last(): readonly SlurmJob[] | null {
    return this.#last?.jobs ?? null;
  }

  /** The jobs now, or at most half an interval ago. `fresh`: asked after this call. @throws OnejobError E_ENGINE_* */
  async look(signal?: AbortSignal, fresh = false): Promise<readonly SlurmJob[]> {
    const { clock, every } = this.#parts;
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
    const { clock, every } = this.#parts;
    const waiting = this.#waiters.next();
    const over = new AbortController();
    await Promise.race([
      waiting,
      sleep(clock, pace === 'slow' ? Math.max(every, slowly) : every, AbortSignal.any([signal, over.signal])),
    ]);
    over.abort();
  }

  /** Something has begun or ended, as files show. */
  wake(): void {
    this.#waiters.wake();
  }

  /** Something was asked of Slurm, which shows in a moment. */
  hurry(): void {
    this.#isStale = true;
    this.#parts.clock.after(Math.min(soon, this.#parts.every), () => this.wake());
  }

  async #ask(): Promise<readonly SlurmJob[]> {
    const askedAt = this.#parts.clock.now();
    const jobs = await this.#parts.commands.jobs();
    this.#last = { jobs, askedAt };
    this.#isStale = false;
    return jobs;
  }
}
