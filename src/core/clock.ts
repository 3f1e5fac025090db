/** Time for everything that waits. It is an interface, so that tests can control it. */
export interface Clock {
  /** Milliseconds since boot. Never goes back, and is the same for every process of this boot. */
  now(): number;
  /** Wall clock, ms since the epoch, for people only. */
  wall(): number;
  /** Calls `fn` once after `ms`. The returned function cancels that. */
  after(ms: number, fn: () => void): () => void;
}

/** Resolves after `ms`, or when `signal` aborts. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = (): void => {
      callOff();
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const callOff = clock.after(ms, done);
    signal?.addEventListener('abort', done, { once: true });
  });
}

/** A time limit. Disposing of it removes its timer and listeners. */
export interface Deadline extends Disposable {
  /** Aborts with a `TimeoutError` when the time is over, or with the first of the outer signals. */
  readonly signal: AbortSignal;
  /** Whether `signal` aborted because the time is over. */
  readonly passed: boolean;
}

/** A limit of `ms` from now on. It also ends with any of `outer`. */
export function deadline(clock: Clock, ms: number, ...outer: readonly AbortSignal[]): Deadline {
  const controller = new AbortController();
  const { signal } = controller;
  let passed = false;
  const stop = (): void => controller.abort(outer.find(({ aborted }) => aborted)?.reason);
  const callOff = clock.after(ms, () => {
    if (signal.aborted) return;
    passed = true;
    controller.abort(new DOMException('The operation was aborted due to timeout', 'TimeoutError'));
  });
  const end = (): void => {
    callOff();
    for (const one of outer) one.removeEventListener('abort', stop);
  };
  signal.addEventListener('abort', end, { once: true });
  for (const one of outer) one.addEventListener('abort', stop, { once: true });
  if (outer.some(({ aborted }) => aborted)) stop();
  return {
    signal,
    get passed() {
      return passed;
    },
    [Symbol.dispose]: end,
  };
}

/** Does `work` every `ms` after the end of the previous run, until the returned function is called. Errors go to `failed`. */
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

/** A wait that doubles with each failure in a row: from `first` to at most `longest` ms. */
export function doubling(first: number, longest: number, failures: number): number {
  return Math.min(longest, first * 2 ** Math.min(failures - 1, 20));
}

/** Timers by key, at most one each, for times on the core's clock. */
export class Timers {
  readonly #clock: Clock;
  readonly #armed = new Map<string, { readonly at: number; readonly cancel: () => void }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Calls `fire` at `at`; null cancels it. The same time again changes nothing. */
  arm(key: string, at: number | null, fire: () => void): void {
    if (this.#armed.get(key)?.at === at) return;
    this.cancel(key);
    if (at === null) return;
    const cancel = this.#clock.after(at - this.#clock.now(), () => {
      this.#armed.delete(key);
      fire();
    });
    this.#armed.set(key, { at, cancel });
  }

  cancel(key: string): void {
    this.#armed.get(key)?.cancel();
    this.#armed.delete(key);
  }

  clear(): void {
    for (const { cancel } of this.#armed.values()) cancel();
    this.#armed.clear();
  }
}
