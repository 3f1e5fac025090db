/** Work that many wait for and one does: it is given up when the last who waits has gone. */

export type Progress = (line: string) => void;
type Work<T> = (progress: Progress, signal: AbortSignal) => Promise<T>;

interface Running<T> {
  readonly done: Promise<T>;
  readonly listeners: Set<Progress>;
  readonly stop: AbortController;
  /** The last thing said, for who comes later. */
  last: string | null;
}

/** Does the work of a key once at a time; all who ask meanwhile get the same end, and the progress from where it is. */
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
    const gone = Promise.withResolvers<never>();
    const leave = () => gone.reject(signal.reason);
    signal.addEventListener('abort', leave, { once: true });
    try {
      return await Promise.race([running.done, gone.promise]);
    } finally {
      signal.removeEventListener('abort', leave);
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
