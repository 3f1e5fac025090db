/**
 * Virtual time for a whole manager. Nothing waits for real: once every microtask and file operation is done, the earliest
 * timer fires. Timers that are due at the same moment fire in an order that the seed draws.
 */
import type { Clock } from '../../src/core/clock.ts';

/** Numbers in [0, 1) that follow from the seed alone (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

interface Timer {
  readonly at: number;
  readonly order: number;
  readonly fn: () => void;
}

/** A clock of one process of the simulated host. What it has begun ends with it. */
export interface ProcessClock extends Clock {
  /** The process died: none of its timers fires any more. */
  kill(): void;
}

export class SimTime {
  #now = 1_000;
  readonly #wall = Date.UTC(2030, 0, 1);
  readonly #timers = new Set<Timer>();
  readonly #random: () => number;

  constructor(random: () => number) {
    this.#random = random;
  }

  /** ms since the simulated boot. */
  get now(): number {
    return this.#now;
  }

  /** Nanoseconds since the epoch, as a runtime stamps output. */
  get stamp(): bigint {
    return BigInt(this.#wall + Math.floor(this.#now)) * 1_000_000n;
  }

  after(ms: number, fn: () => void): () => void {
    const timer = { at: this.#now + Math.max(0, ms), order: this.#random(), fn };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }

  process(): ProcessClock {
    const own = new Set<() => void>();
    let isDead = false;
    return {
      now: () => this.#now,
      wall: () => this.#wall + Math.floor(this.#now),
      after: (ms, fn) => {
        if (isDead) return () => {};
        const cancel = this.after(ms, () => {
          own.delete(cancel);
          fn();
        });
        own.add(cancel);
        return () => {
          own.delete(cancel);
          cancel();
        };
      },
      kill() {
        isDead = true;
        for (const cancel of own) cancel();
        own.clear();
      },
    };
  }

  /**
   * Runs until `isDone` holds when all is quiet. @throws Error when `limit` virtual ms have passed, or nothing is left to
   * wait for.
   */
  async run(isDone: () => boolean | Promise<boolean>, limit: number): Promise<void> {
    const end = this.#now + limit;
    for (;;) {
      await quiet();
      if (await isDone()) return;
      const next = this.#earliest();
      if (next === null) throw new Error('nothing is left to wait for');
      if (next.at > end) throw new Error(`not done after ${limit / 1000} s of virtual time`);
      this.#timers.delete(next);
      this.#now = Math.max(this.#now, next.at);
      next.fn();
    }
  }

  #earliest(): Timer | null {
    let first: Timer | null = null;
    for (const timer of this.#timers) {
      if (first === null || timer.at < first.at || (timer.at === first.at && timer.order < first.order)) first = timer;
    }
    return first;
  }
}

/** Resolves once no microtask and no file operation is under way: what is left waits for a timer. */
async function quiet(): Promise<void> {
  do await new Promise((resolve) => setImmediate(resolve));
  while (process.getActiveResourcesInfo().some((kind) => kind.startsWith('FSReq') || kind === 'CloseReq'));
}
