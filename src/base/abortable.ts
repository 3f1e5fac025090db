/** Waiting for something that others wait for, too. */

/** The same promise for a caller that may give up. It then rejects at once, and the work continues. */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

export type Progress = (line: string) => void;

/** Callers that wait for the next change. */
export class Waiters {
  readonly #waiting = new Set<() => void>();

  /** Resolves at the next `wake`, or when `signal` aborts. */
  next(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      if (signal?.aborted === true) return resolve();
      const done = (): void => {
        this.#waiting.delete(done);
        signal?.removeEventListener('abort', done);
        resolve();
      };
      this.#waiting.add(done);
      signal?.addEventListener('abort', done, { once: true });
    });
  }

  wake(): void {
    for (const done of [...this.#waiting]) done();
  }
}

/** At most so many at a time; the others wait, in their order. */
export class Turns {
  #free: number;
  readonly #waiting = new Set<() => void>();

  constructor(atOnce: number) {
    this.#free = atOnce;
  }

  /** Resolves to a turn, which ends when it is disposed of. Rejects when `signal` aborts before. */
  async take(signal?: AbortSignal): Promise<Disposable> {
    signal?.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await this.#next(signal);
    return { [Symbol.dispose]: () => this.#end() };
  }

  #next(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const stop = (): void => {
        this.#waiting.delete(begin);
        reject(signal?.reason);
      };
      const begin = (): void => {
        signal?.removeEventListener('abort', stop);
        resolve();
      };
      this.#waiting.add(begin);
      signal?.addEventListener('abort', stop, { once: true });
    });
  }

  #end(): void {
    const [first] = this.#waiting;
    if (first === undefined) {
      this.#free += 1;
      return;
    }
    this.#waiting.delete(first);
    first();
  }
}

type Work<T> = (progress: Progress, signal: AbortSignal) => Promise<T>;

interface Running<T> {
  readonly done: Promise<T>;
  readonly listeners: Set<Progress>;
  readonly stop: AbortController;
  /** The last progress, for those who join later. */
  last: string | null;
}

/**
 * Work that many callers wait for, done once at a time per key. All get the same result, and progress from where it is. It is
 * aborted when the last caller leaves; with `waits` the last caller then waits for its end.
 */
export function createShared<T>({ waits = false } = {}) {
  const all = new Map<string, Running<T>>();

  const begin = (key: string, work: Work<T>): Running<T> => {
    const stop = new AbortController();
    const listeners = new Set<Progress>();
    const say: Progress = (line) => {
      running.last = line;
      for (const listener of listeners) listener(line);
    };
    const done = Promise.resolve().then(() => work(say, stop.signal));
    const running: Running<T> = { done, listeners, stop, last: null };
    const forget = () => {
      if (all.get(key) === running) all.delete(key);
    };
    done.then(forget, forget);
    all.set(key, running);
    return running;
  };

  const join = async (key: string, work: Work<T>, progress: Progress, signal: AbortSignal): Promise<T> => {
    signal.throwIfAborted();
    const running = all.get(key) ?? begin(key, work);
    // A separate function, since two callers may pass the same one.
    const listener: Progress = (line) => progress(line);
    running.listeners.add(listener);
    if (running.last !== null) progress(running.last);
    try {
      return await abortable(running.done, signal);
    } finally {
      running.listeners.delete(listener);
      if (running.listeners.size === 0) {
        // A new caller must not join work that is being aborted.
        if (all.get(key) === running) all.delete(key);
        running.stop.abort();
        if (waits) await running.done.catch(() => {});
      }
    }
  };
  return Object.assign(join, { isBusy: (): boolean => all.size > 0 });
}
