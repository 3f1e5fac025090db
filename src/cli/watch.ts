/** Waiting for a socket to appear, without asking again and again. */
import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';

export interface SocketWatch extends Disposable {
  /** Resolves when something happened beside the socket since the last call, after `limit` ms, or when `signal` aborts. */
  change(limit: number, signal: AbortSignal): Promise<void>;
}

/** Watches the directory of `path`, which must be there, or else only time passes. */
export function socketWatch(path: string): SocketWatch {
  let pending = false;
  let wake: (() => void) | null = null;
  const happened = () => {
    pending = true;
    wake?.();
  };
  const watcher = tryWatch(dirname(path), happened);
  return {
    async change(limit, signal) {
      if (!pending && !signal.aborted) {
        const { promise, resolve } = Promise.withResolvers<void>();
        // Without inotify (its watches are a limited resource) looking again now and then is what is left.
        const timer = setTimeout(resolve, watcher === null ? Math.min(limit, 200) : limit);
        wake = resolve;
        signal.addEventListener('abort', () => resolve(), { once: true });
        await promise;
        clearTimeout(timer);
        wake = null;
      }
      pending = false;
    },
    [Symbol.dispose]() {
      watcher?.close();
      wake?.();
    },
  };
}

function tryWatch(dir: string, happened: () => void): FSWatcher | null {
  try {
    const watcher = watch(dir, happened);
    watcher.on('error', () => watcher.close());
    return watcher;
  } catch {
    return null;
  }
}
