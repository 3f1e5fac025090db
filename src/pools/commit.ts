/**
 * Writing a step down. A commit that fails has changed nothing and is tried again; until it succeeds nothing else is
 * written, so that no step overtakes another. Results reach the disk a moment later, many at a time, and whoever waits for
 * one is told only then: a job's next neighbour need not wait for a disk.
 */
import type { CiService, JobSource } from '../ci/ci-service.ts';
import type { Clock } from '../core/clock.ts';
import type { Change, Slot } from '../core/slot.ts';
import { toFailure } from '../errors.ts';
import type { Log } from '../log.ts';

/** The part of the store the loop needs; `transaction` throws when it could not commit, and then nothing is written. */
export interface SlotStore {
  transaction(write: () => void): void;
  /** Resolves when everything committed so far will survive a power cut; the loop goes on meanwhile. */
  sync(): Promise<void>;
  /** The same before it returns, for the end. */
  syncNow(): void;
  /** Writes the slot, and what the step says about its agents. */
  save(before: Slot, after: Slot, changes: readonly Change[]): void;
}

export interface CommitterOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly store: SlotStore;
  /** A commit failed, and why: nothing new must begin. */
  readonly refused: (message: string) => void;
  /** Time to try again; afterwards `blocked` tells whether it is still refused. */
  readonly retry: () => void;
  /** It is written again. */
  readonly recovered: () => void;
}

const retryAfter = 1_000;
const syncWithin = 2;

export class Committer {
  readonly #options: CommitterOptions;
  readonly #unsynced = new Set<JobSource>();
  /** Whom to tell once the sync that is under way, or the next one, has succeeded. */
  #untold: (() => void)[] = [];
  #isSyncing = false;
  #retryTimer: (() => void) | null = null;
  #syncTimer: (() => void) | null = null;
  #problem: string | null = null;

  constructor(options: CommitterOptions) {
    this.#options = options;
  }

  /** Whether a commit was refused and its time to be tried again has not come. */
  get blocked(): boolean {
    return this.#retryTimer !== null;
  }

  /** One step as one commit. False when it was refused. */
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
    // A job that is given back may end by that, as one that cannot be started.
    if (changes.some(({ change }) => change === 'ended' || change === 'settled' || change === 'returned')) this.#syncSoon(jobs);
    return true;
  }

  /** Puts on disk what waits for it, and tells who waits for that. */
  flush(): void {
    if (this.#syncTimer === null && !this.#isSyncing) return;
    this.#syncTimer?.();
    this.#syncTimer = null;
    this.#collect();
    try {
      this.#options.store.syncNow();
    } catch (error) {
      this.#failed(error);
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
    const { clock, log, refused, retry, recovered } = this.#options;
    refused(message);
    if (this.#problem !== message) log.error('state not written', { reason: message });
    this.#problem = message;
    this.#retryTimer = clock.after(retryAfter, () => {
      this.#retryTimer = null;
      retry();
      if (this.blocked) return;
      log.info('state is written again');
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

  /** What is committed from now on has to wait for another sync. */
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
      this.#failed(error);
      return;
    } finally {
      this.#isSyncing = false;
    }
    for (const tell of this.#untold.splice(0)) tell();
    if (this.#unsynced.size > 0) this.#arm(syncWithin);
  }

  #failed(error: unknown): void {
    this.#options.log.error('state not written', { reason: toFailure(error).message });
    this.#arm(retryAfter);
  }
}
