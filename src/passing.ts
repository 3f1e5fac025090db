import type { Clock } from './core/clock.ts';

/** Resolves after `ms`, or when `signal` aborts. */
export function passing(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = (): void => {
      callOff();
      signal.removeEventListener('abort', done);
      resolve();
    };
    const callOff = clock.after(ms, done);
    signal.addEventListener('abort', done, { once: true });
  });
}
