/**
 * Writing a step down. A commit that fails has changed nothing and is tried again; until it succeeds nothing else is
 * written, so that no step overtakes another. Results reach the disk a moment later, many at a time, and whoever waits for
 * one is told only then: a job's next neighbour need not wait for a disk.
 */
import type { CiService, JobSource } from '../../ci/ci-service.ts';
import type { Clock } from '../../core/clock.ts';
import type { Change, Slot } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';

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

export type Committer = ReturnType<typeof createCommitter>;

export function createCommitter({ store, clock, log, refused, retry, recovered }: CommitterOptions) {
  const unsynced = new Set<JobSource>();
  /** Whom to tell once the sync that is under way, or the next one, has succeeded. */
  const untold: (() => void)[] = [];
  let isSyncing = false;
  let retryTimer: (() => void) | null = null;
  let syncTimer: (() => void) | null = null;
  let problem: string | null = null;

  /** One step as one commit. False when it was refused. */
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
    // A job that is given back may end by that, as one that cannot be started.
    if (changes.some(({ change }) => change === 'ended' || change === 'settled' || change === 'returned')) syncSoon(jobs);
    return true;
  }

  /** Puts on disk what waits for it, and tells who waits for that. */
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

  /** What is committed from now on has to wait for another sync. */
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
    /** Whether a commit was refused and its time to be tried again has not come. */
    get blocked(): boolean {
      return retryTimer !== null;
    },
    ...{ commit, flush, close },
  };
}
