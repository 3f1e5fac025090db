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
  // A caller may have lost interest in an earlier wait: each has a timer, and none may outlive the watch.
  const waiting = new Set<() => void>();
  const wakeAll = () => {
    for (const wake of [...waiting]) wake();
  };
  const happened = () => {
    pending = true;
    wakeAll();
  };
  const watcher = tryWatch(dirname(path), happened);
  return {
    async change(limit, signal) {
      if (!pending && !signal.aborted) {
        const { promise, resolve } = Promise.withResolvers<void>();
        // Without inotify (its watches are a limited resource) looking again now and then is what is left.
        const timer = setTimeout(resolve, watcher === null ? Math.min(limit, 50) : limit);
        waiting.add(resolve);
        signal.addEventListener('abort', () => resolve(), { once: true });
        await promise;
        clearTimeout(timer);
        waiting.delete(resolve);
      }
      pending = false;
    },
    [Symbol.dispose]() {
      watcher?.close();
      wakeAll();
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
