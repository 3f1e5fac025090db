/** The real clock: CLOCK_MONOTONIC, so that a wall clock that jumps moves no deadline. */
import type { Clock } from '../core/clock.ts';

const longestTimer = 2 ** 31 - 1;

export const systemClock: Clock = {
  now() {
    const [seconds, nanoseconds] = process.hrtime();
    return seconds * 1000 + nanoseconds / 1e6;
  },
  wall: () => Date.now(),
  after(ms, fn) {
    const timer = setTimeout(fn, Math.min(Math.max(0, Math.ceil(ms)), longestTimer));
    return () => clearTimeout(timer);
  },
};

/** Does `work` every `ms`, counted from the end of the last time, until the answer is called. What it throws goes to `failed`. */
export function every(clock: Clock, ms: number, work: () => Promise<void>, failed: (error: unknown) => void): () => void {
  let cancel = (): void => {};
  let isOver = false;
  const next = (): void => {
    if (isOver) return;
    cancel = clock.after(ms, () => void work().catch(failed).finally(next));
  };
  next();
  return () => {
    isOver = true;
    cancel();
  };
}
