/**
 * How much of this process' time the other end of a connection may take. What its bytes cost is measured, not guessed: a few of them can
 * be thousands of frames, chunks or lines. One that asks for more waits, and nobody else does.
 */
import { type Clock, sleep } from '../core/clock.ts';
import { turn } from '../system/system-clock.ts';

export interface Pace {
  now(): number;
  /** To be called after some work that began at `since`; resolves when there may be more. */
  spent(since: number): Promise<void>;
}

/** Its part of the time, and the ms that it may take at once after a while without work. */
const [share, burst] = [0.2, 20];
/** ms that it may owe: what else this process did meanwhile counts, too, and must not stop an honest one for long. */
const largestDebt = 500;

/** `yielded`: resolves when all that the work has led to has run. */
export function createPace(clock: Clock, yielded: () => Promise<unknown> = turn): Pace {
  const never = new AbortController().signal;
  let left = burst;
  let counted = clock.now();
  return {
    now: clock.now,
    async spent(since) {
      await yielded();
      const now = clock.now();
      left = Math.max(-largestDebt, Math.min(burst, left + (now - counted) * share) - (now - since));
      counted = now;
      if (left < 0) await sleep(clock, -left / share, never);
    },
  };
}
