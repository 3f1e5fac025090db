/**
 * Commits steps. A failed commit changes nothing and is tried again; nothing else is written until it succeeds, so no step
 * overtakes another. Results reach the disk a moment later, many at a time, and those who wait for one are notified only then:
 * the next job need not wait for a disk.
 */

import { toFailure } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Clock } from '../../core/clock.ts';
import type { Change, Slot } from '../../core/slot.ts';
import type { CiService, JobSource } from '../../ports/ci-service.ts';

/** The part of the store that the loop needs. If `transaction` throws, nothing was written. */
export interface SlotStore {
  transaction(write: () => void): void;
  /** Resolves when everything committed so far survives a power cut. The loop continues meanwhile. */
  sync(): Promise<void>;
  /** The same, synchronously, for the end. */
  syncNow(): void;
  /** Writes the slot, and what the step says about its agents. */
  save(before: Slot, after: Slot, changes: readonly Change[]): void;
}

export interface CommitterOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: SlotStore;
  /** A commit failed: nothing new may begin. */
  readonly refused: (message: string) => void;
  /** Tries again. Afterwards `blocked` says whether it failed. */
  readonly retry: () => void;
  /** Commits work again. */
  readonly recovered: () => void;
}

const retryAfter = 1_000;
const syncWithin = 2;

export type Committer = ReturnType<typeof createCommitter>;

export function createCommitter({ store, clock, log, refused, retry, recovered }: CommitterOptions) {
  const unsynced = new Set<JobSource>();
  /** Notifications for when the current sync, or the next one, has succeeded. */
  const untold: (() => void)[] = [];
  let isSyncing = false;
  let retryTimer: (() => void) | null = null;
  let syncTimer: (() => void) | null = null;
  let problem: string | null = null;

  /** Commits one step. False if it failed. */
  function commit(before: Slot, after: Slot, changes: readonly Change[], { jobs }: Pick<CiService, 'jobs'>): boolean {
    try {
      store.transaction(() => {
        store.save(before, after, changes);
        for (const change of changes) jobs?.record(change);
      });
    } catch (error) {
      jobs?.rolledBack();
      whenRefused(toFailure(error).message);
      return false;
    }
    problem = null;
    jobs?.committed();
    // A returned job may end by that, for example if it cannot be started.
    if (changes.some(({ change }) => change === 'ended' || change === 'settled' || change === 'returned')) syncSoon(jobs);
    return true;
  }

  /** Syncs at once, and notifies those who wait for that. */
  function flush(): void {
    if (syncTimer === null && !isSyncing) return;
    syncTimer?.();
    syncTimer = null;
    collect();
    try {
      store.syncNow();
    } catch (error) {
      whenFailed(error);
      return;
    }
    for (const tell of untold.splice(0)) tell();
  }

  function close(): void {
    retryTimer?.();
    flush();
    syncTimer?.();
  }

  function whenRefused(message: string): void {
    refused(message);
    if (problem !== message) log.error('failed to write state', { reason: message });
    problem = message;
    retryTimer = clock.after(retryAfter, () => {
      retryTimer = null;
      retry();
      if (retryTimer !== null) return;
      log.info('state can be written again');
      recovered();
    });
  }

  function syncSoon(jobs: JobSource | null): void {
    if (jobs === null) return;
    unsynced.add(jobs);
    if (!isSyncing) arm(syncWithin);
  }

  function arm(ms: number): void {
    syncTimer ??= clock.after(ms, () => {
      syncTimer = null;
      void syncNow();
    });
  }

  /** Later commits wait for another sync. */
  function collect(): void {
    for (const jobs of unsynced) untold.push(jobs.syncing());
    unsynced.clear();
  }

  async function syncNow(): Promise<void> {
    collect();
    isSyncing = true;
    try {
      await store.sync();
    } catch (error) {
      whenFailed(error);
      return;
    } finally {
      isSyncing = false;
    }
    for (const tell of untold.splice(0)) tell();
    if (unsynced.size > 0) arm(syncWithin);
  }

  function whenFailed(error: unknown): void {
    log.error('failed to write state', { reason: toFailure(error).message });
    arm(retryAfter);
  }

  return {
    /** Whether a commit failed, and its next attempt is still to come. */
    get blocked(): boolean {
      return retryTimer !== null;
    },
    commit,
    flush,
    close,
  };
}
