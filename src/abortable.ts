/** Waiting for what others wait for, too. */

/** The same promise for one who may give up: who waits no longer is told so at once, and what it waited for goes on. */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

export type Progress = (line: string) => void;
type Work<T> = (progress: Progress, signal: AbortSignal) => Promise<T>;

interface Running<T> {
  readonly done: Promise<T>;
  readonly listeners: Set<Progress>;
  readonly stop: AbortController;
  /** The last thing said, for who comes later. */
  last: string | null;
}

/**
 * Work that many wait for and one does. Of each key it is done once at a time; all who ask meanwhile get the same end, and the progress from where it is. It is given up
 * when the last who waits has gone.
 */
export function createShared<T>() {
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
    // One of its own, since two who wait may pass the same function.
    const listener: Progress = (line) => progress(line);
    running.listeners.add(listener);
    if (running.last !== null) progress(running.last);
    try {
      return await abortable(running.done, signal);
    } finally {
      running.listeners.delete(listener);
      if (running.listeners.size === 0) {
        // What is being given up must not be joined by who comes now.
        if (all.get(key) === running) all.delete(key);
        running.stop.abort();
      }
    }
  };
  return Object.assign(join, { isBusy: (): boolean => all.size > 0 });
}
