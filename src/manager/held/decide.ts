/** Which sandboxes of failed jobs are kept, and which held ones end. Pure. */
import type { AgentId } from '../../core/slot.ts';
import type { HeldSandbox } from '../../store/held.ts';

/** How many held sandboxes a pool may have. */
const heldAtMost = 5;

export interface Quota {
  /** Wall clock, ms since the epoch. */
  readonly now: number;
  /** Bytes that held sandboxes of each pool may have together, null for no limit; null: the pools are not known here. */
  readonly pools: ReadonlyMap<string, number | null> | null;
  /** Runtimes whose disk has less free space than `disk.min_free`. */
  readonly full: ReadonlySet<string>;
}

/** Bytes of a held sandbox in which a shell is open: when they were first known, and with what open shells have written since. */
export interface HeldWritten {
  readonly first: number;
  readonly now: number;
}

/** Of a pool's `disk`, what a shell may write to a sandbox although its pool has no room: an editor's or a shell's own files. */
const leeway = 0.1;

/**
 * Of the sandboxes in `written`, those whose shells must end, each with the bytes and the limit of its pool. `pools` as in `Quota`. A
 * sandbox that is too large by itself has shells, since that may be why its job failed, but they may not make it larger.
 */
export function overQuota(
  held: readonly HeldSandbox[],
  written: ReadonlyMap<AgentId, HeldWritten>,
  pools: Quota['pools'],
): Map<AgentId, { readonly bytes: number; readonly limit: number }> {
  const over = new Map<AgentId, { bytes: number; limit: number }>();
  for (const { agent, pool } of held) {
    const limit = pools?.get(pool) ?? null;
    const its = written.get(agent);
    if (limit === null || its === undefined || its.now - its.first <= leeway * limit) continue;
    const ofPool = held.filter((one) => one.pool === pool);
    const bytes = ofPool.reduce((sum, one) => sum + (written.get(one.agent)?.now ?? one.size ?? 0), 0);
    if (bytes > limit) over.set(agent, { bytes, limit });
  }
  return over;
}

/** Held sandboxes that must be removed, and why, as a clause. */
export function endedHolds(held: readonly HeldSandbox[], { now, pools, full }: Quota): Map<AgentId, string> {
  const ended = new Map<AgentId, string>();
  const kept = new Map<string, { count: number; bytes: number }>();
  // The newest of a pool stays if possible, even if it alone is larger than the quota: it may be why the job failed.
  for (const one of held.toSorted((a, b) => b.since - a.since)) {
    const why = reason(one);
    if (why !== null) ended.set(one.agent, why);
  }
  return ended;

  function reason({ agent: _, pool, runtime, since, until, size }: HeldSandbox): string | null {
    if (until === 0) return 'it was given up';
    // After the clock was set back, too.
    if (now >= until || now < since - (until - since)) return 'its time is over';
    if (full.has(runtime)) return 'less than disk.min_free of the disk is free';
    if (pools !== null && !pools.has(pool)) return 'the config no longer has its pool';
    const before = kept.get(pool) ?? { count: 0, bytes: 0 };
    const after = { count: before.count + 1, bytes: before.bytes + (size ?? 0) };
    const limit = pools?.get(pool) ?? null;
    if (after.count > heldAtMost) return `its files were given up for newer ones, because a pool holds ${heldAtMost} at most`;
    if (before.count > 0 && limit !== null && after.bytes > limit)
      return 'its files were given up for newer ones, because those of a pool may not exceed its "disk" together';
    kept.set(pool, after);
    return null;
  }
}
