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
