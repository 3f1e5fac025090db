/** The real clock: CLOCK_MONOTONIC, so a jump of the wall clock moves no deadline. Only this file uses Node's timers. */
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

/** As `systemClock.after`, for a limit that must not keep the process alive. */
export function afterInBackground(ms: number, fn: () => void): () => void {
  const timer = setTimeout(fn, Math.min(Math.max(0, Math.ceil(ms)), longestTimer)).unref();
  return () => clearTimeout(timer);
}

/** A signal that aborts with a `TimeoutError` after `ms`. It keeps no process alive. */
export function timeLimit(ms: number): AbortSignal {
  return AbortSignal.timeout(ms);
}

/** Lets everything else run once, during long work. This is not a wait: it takes no time of the clock. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
