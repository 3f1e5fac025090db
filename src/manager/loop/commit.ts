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

export class Committer {
  readonly #options: CommitterOptions;
  readonly #unsynced = new Set<JobSource>();
  /** Notifications for when the current sync, or the next one, has succeeded. */
  readonly #untold: (() => void)[] = [];
  #isSyncing = false;
  #retryTimer: (() => void) | null = null;
  #syncTimer: (() => void) | null = null;
  #problem: string | null = null;

  constructor(options: CommitterOptions) {
    this.#options = options;
  }

  /** Whether a commit failed, and its next attempt is still to come. */
  get blocked(): boolean {
    return this.#retryTimer !== null;
  }

  /** Commits one step. False if it failed. */
  commit(before: Slot, after: Slot, changes: readonly Change[], { jobs }: Pick<CiService, 'jobs'>): boolean {
    const { store } = this.#options;
    try {
      store.transaction(() => {
        store.save(before, after, changes);
        for (const change of changes) jobs?.record(change);
      });
    } catch (error) {
      jobs?.rolledBack();
      this.#refused(toFailure(error).message);
      return false;
    }
    this.#problem = null;
    jobs?.committed();
    // A returned job may end by that, for example if it cannot be started.
    if (changes.some(({ change }) => change === 'ended' || change === 'settled' || change === 'returned')) this.#syncSoon(jobs);
    return true;
  }

  /** Syncs at once, and notifies those who wait for that. */
  flush(): void {
    if (this.#syncTimer === null && !this.#isSyncing) return;
    this.#syncTimer?.();
    this.#syncTimer = null;
    this.#collect();
    try {
      this.#options.store.syncNow();
    } catch (error) {
      this.#syncFailed(error);
      return;
    }
    for (const tell of this.#untold.splice(0)) tell();
  }

  close(): void {
    this.#retryTimer?.();
    this.flush();
    this.#syncTimer?.();
  }

  #refused(message: string): void {
    const { log, clock, refused, retry, recovered } = this.#options;
    refused(message);
    if (this.#problem !== message) log.error('failed to write state', { reason: message });
    this.#problem = message;
    this.#retryTimer = clock.after(retryAfter, () => {
      this.#retryTimer = null;
      retry();
      if (this.blocked) return;
      log.info('state can be written again');
      recovered();
    });
  }

  #syncSoon(jobs: JobSource | null): void {
    if (jobs === null) return;
    this.#unsynced.add(jobs);
    if (!this.#isSyncing) this.#arm(syncWithin);
  }

  #arm(ms: number): void {
    this.#syncTimer ??= this.#options.clock.after(ms, () => {
      this.#syncTimer = null;
      void this.#sync();
    });
  }

  /** Later commits wait for another sync. */
  #collect(): void {
    for (const jobs of this.#unsynced) this.#untold.push(jobs.syncing());
    this.#unsynced.clear();
  }

  async #sync(): Promise<void> {
    this.#collect();
    this.#isSyncing = true;
    try {
      await this.#options.store.sync();
    } catch (error) {
      this.#syncFailed(error);
      return;
    } finally {
      this.#isSyncing = false;
    }
    for (const tell of this.#untold.splice(0)) tell();
    if (this.#unsynced.size > 0) this.#arm(syncWithin);
  }

  #syncFailed(error: unknown): void {
    this.#options.log.error('failed to write state', { reason: toFailure(error).message });
    this.#arm(retryAfter);
  }
}
