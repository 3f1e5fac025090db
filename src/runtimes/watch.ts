/** Waiting for folders to change, by the kernel's notices, with a slow look as a net where those are missing. */

import { type FSWatcher, watch } from 'node:fs';
import type { Clock } from '../core/clock.ts';

export interface Watch extends Disposable {
  /** Names in the folders that changed since the last call; null when it is not known which. Waits for the first. */
  next(atMost: number): Promise<ReadonlySet<string> | null>;
}

/** How often a folder is looked at when the kernel gives no notice, in ms: its limit on watches may be reached. */
const unwatchedInterval = 100;

/** Watches folders, not what is below them. `next` also returns when `signal` aborts. */
export function watchFolders(clock: Clock, folders: readonly string[], signal: AbortSignal): Watch {
  let changed: Set<string> | null = new Set();
  const waiting = new Set<() => void>();
  const wake = (): void => {
    for (const resolve of waiting) resolve();
  };
  let blind = false;
  const note = (name: string | null): void => {
    if (name === null) changed = null;
    else changed?.add(name);
    wake();
  };
  const watchers: FSWatcher[] = [];
  for (const folder of folders) {
    try {
      const watcher = watch(folder, { persistent: true }, (_event, name) => note(name));
      watcher.on('error', () => {
        blind = true;
        note(null);
      });
      watchers.push(watcher);
    } catch {
      blind = true;
    }
  }
  signal.addEventListener('abort', wake);
  return {
    async next(atMost) {
      if (changed !== null && changed.size === 0 && !signal.aborted) {
        const { promise, resolve } = Promise.withResolvers<void>();
        waiting.add(resolve);
        const callOff = clock.after(blind ? Math.min(atMost, unwatchedInterval) : atMost, () => note(null));
        await promise;
        callOff();
        waiting.delete(resolve);
      }
      const names = changed;
      changed = new Set();
      return names;
    },
    [Symbol.dispose]() {
      signal.removeEventListener('abort', wake);
      for (const watcher of watchers) watcher.close();
      wake();
    },
  };
}
