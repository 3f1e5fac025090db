/** Waits for changes in folders: by the kernel's notifications, with a slow look as a fallback. */
import { type FSWatcher, watch } from 'node:fs';
import { Waiters } from '../base/abortable.ts';
import type { Clock } from '../core/clock.ts';

/** ms between looks if the kernel sends no notifications, for example because its limit on watches is reached. */
const unwatchedInterval = 100;

/** Watches folders, without subfolders. `next` also returns when `signal` aborts. */
export function watchFolders(clock: Clock, folders: readonly string[], signal: AbortSignal) {
  let changed: Set<string> | null = new Set();
  const waiters = new Waiters();
  const wake = (): void => waiters.wake();
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
    /** Names that changed in the folders since the last call; null if they are unknown. Waits for the first change. */
    async next(atMost: number): Promise<ReadonlySet<string> | null> {
      if (changed !== null && changed.size === 0 && !signal.aborted) {
        const callOff = clock.after(blind ? Math.min(atMost, unwatchedInterval) : atMost, () => note(null));
        await waiters.next();
        callOff();
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
