/**
 * Puts commits on disk, many at a time. Commits reach the write-ahead log in order, so one sync covers every commit before it: who
 * asks in the same turn shares a sync, who asks during one shares the next, and nobody syncs what already is on disk.
 */

export interface SyncDisk {
  /** Syncs the log in the background. */
  readonly sync: () => Promise<void>;
  readonly syncNow: () => void;
}

interface Waiting {
  /** Number of the last commit that must be on disk. */
  readonly upTo: number;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

export interface Syncs {
  /** Something was committed. `durable`: the commit itself was synced. */
  readonly committed: (how: { readonly durable: boolean }) => void;
  /** Makes every commit so far survive a power cut, in the background: one sync for many commits. @throws OnejobError E_STATE_FULL */
  readonly sync: () => Promise<void>;
  /** The same, synchronously. It also serves those who wait. @throws OnejobError E_STATE_FULL */
  readonly syncNow: () => void;
}

export function createSyncs(disk: SyncDisk): Syncs {
  let written = 0;
  let safe = 0;
  let waiting: Waiting[] = [];
  let isRunning = false;

  function reached(upTo: number): void {
    safe = Math.max(safe, upTo);
    const served = waiting.filter((one) => one.upTo <= safe);
    waiting = waiting.filter((one) => one.upTo > safe);
    for (const { resolve } of served) resolve();
  }

  function failed(upTo: number, error: unknown): void {
    const refused = waiting.filter((one) => one.upTo <= upTo);
    waiting = waiting.filter((one) => one.upTo > upTo);
    for (const { reject } of refused) reject(error);
  }

  async function run(): Promise<void> {
    // What else this turn commits joins.
    await Promise.resolve();
    while (waiting.length > 0) {
      const upTo = written;
      try {
        await disk.sync();
        reached(upTo);
      } catch (error) {
        failed(upTo, error);
      }
    }
    isRunning = false;
  }

  return {
    committed({ durable }) {
      written += 1;
      if (durable) reached(written);
    },
    sync() {
      if (safe === written) return Promise.resolve();
      return new Promise((resolve, reject) => {
        waiting.push({ upTo: written, resolve, reject });
        if (isRunning) return;
        isRunning = true;
        void run();
      });
    },
    syncNow() {
      if (safe === written) return;
      const upTo = written;
      disk.syncNow();
      reached(upTo);
    },
  };
}
