/** For tests: time that is moved by hand. */
import type { Clock } from '../../src/core/clock.ts';

export interface HandClock extends Clock {
  /** Moves it, and calls what is due in between. */
  advance(ms: number): void;
  /** ms until the next thing that is waited for; null if there isn't one. */
  next(): number | null;
}

/** `wall`: what it says of the day at first, ms since the epoch; `start`: what `now` says at first. */
export function handClock(wall = Date.UTC(2030, 0, 1), start = 0): HandClock {
  let now = start;
  const timers = new Set<{ readonly at: number; readonly fn: () => void }>();
  const due = () => [...timers].filter(({ at }) => at <= now).sort((a, b) => a.at - b.at);
  return {
    now: () => now,
    wall: () => wall + now,
    after(ms, fn) {
      const timer = { at: now + Math.max(0, ms), fn };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    advance(ms) {
      now += ms;
      for (const timer of due()) if (timers.delete(timer)) timer.fn();
    },
    next: () => (timers.size === 0 ? null : Math.min(...[...timers].map(({ at }) => at)) - now),
  };
}
