import type { Clock } from './core/clock.ts';

/** Does `work` with a signal that aborts after `ms`, whose time is called off once the work is done. */
export async function within<T>(clock: Clock, ms: number, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const late = new AbortController();
  const callOff = clock.after(ms, () => late.abort(new DOMException('The time for it is over.', 'TimeoutError')));
  try {
    return await work(late.signal);
  } finally {
    callOff();
  }
}

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
