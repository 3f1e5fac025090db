/** What of a cache is given up, and how: moved aside entry by entry between two agents, never while one works in it. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { type CacheEntry, pathOf } from './cache-tree.ts';

/**
 * The entries to give up until at most `target` bytes are left, in order: what was not used for longest first, and before
 * it what cannot be counted. Pure.
 */
export function toGiveUp(entries: readonly CacheEntry[], bytes: number, target: number): CacheEntry[] {
  const isEndless = (entry: CacheEntry): boolean => !Number.isFinite(entry.bytes);
  const endless = entries.filter(isEndless);
  const others = entries.filter((entry) => !isEndless(entry)).sort((a, b) => a.used - b.used || b.bytes - a.bytes);
  // Without the endless ones, `bytes` is what is left.
  let left = Number.isFinite(bytes) ? bytes : others.reduce((sum, entry) => sum + entry.bytes, 0);
  const chosen: CacheEntry[] = [];
  for (const entry of others) {
    if (left <= target) break;
    chosen.push(entry);
    left -= entry.bytes;
  }
  return [...endless, ...chosen];
}

export interface Cut {
  readonly bytes: number;
  readonly moved: ReadonlySet<string>;
  /** Why something could not be moved; null when nothing was in the way. */
  readonly failure: string | null;
  /** Whether it ended because an agent came. */
  readonly isInterrupted: boolean;
}

/**
 * Moves entries of the folder `from` into `trash`. `mayTrim` is asked right before each move, in the same turn, so that nothing
 * is taken away below an agent that was released meanwhile.
 */
export function moveAside(
  from: string,
  entries: readonly CacheEntry[],
  { trash, mayTrim }: { readonly trash: string; readonly mayTrim: () => boolean },
): Cut {
  const moved = new Set<string>();
  let bytes = 0;
  let failure: string | null = null;
  for (const entry of entries) {
    if (!mayTrim()) return { bytes, moved, failure, isInterrupted: true };
    const path = pathOf(from, entry.name);
    try {
      moveTo(trash, path);
      bytes += Number.isFinite(entry.bytes) ? entry.bytes : 0;
      moved.add(entry.name);
    } catch (error) {
      const isGone = error instanceof Error && 'code' in error && error.code === 'ENOENT';
      if (isGone) moved.add(entry.name);
      else failure = error instanceof Error ? error.message.replace(/, (rename|mkdir) '.*$/s, '') : String(error);
    }
  }
  return { bytes, moved, failure, isInterrupted: false };
}

/** Gives it a name of its own in the trash, which is made when it is missing. */
export function moveTo(trash: string, path: string | Buffer): void {
  mkdirSync(trash, { recursive: true, mode: 0o700 });
  renameSync(path, join(trash, randomBytes(8).toString('hex')));
}
