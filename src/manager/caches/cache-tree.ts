/**
 * Measures folders that jobs have written, as `system/foreign-tree.ts` walks them: it follows no link and enters no other mount.
 * Names are bytes, not necessarily text; latin1 preserves them.
 */
import { type FileHandle, lstat } from 'node:fs/promises';
import { bytesOf, deepest, eachName, inside, mountOf, nullWhenGone, openFolder } from '../../system/foreign-tree.ts';

export interface CacheEntry {
  /** Bytes of its name as latin1. */
  readonly name: string;
  /** Bytes on disk of all below it; `Infinity` if it is nested too deep to be counted. */
  readonly bytes: number;
  /** When anything below it was last read or written, ms since the epoch. */
  readonly used: number;
}

/** `used`: 0 for an empty one. `entries`: the first 100000; `bytes` counts all. */
export type CacheSize = Counted & { readonly entries: readonly CacheEntry[] };

const mostEntries = 100_000;
/** How many files with several names are remembered, so that they are counted once. */
const mostShared = 100_000;
/** What a file costs in addition to its content. */
const perFile = 512;

/** What a folder contains and its size on disk; null when it does not exist. @throws the reason of `signal` */
export async function measure(path: string, now: number, signal: AbortSignal): Promise<CacheSize | null> {
  const top = await openFolder(path).catch(nullWhenGone);
  if (top === null) return null;
  await using handle = top;
  const mount = mountOf(handle);
  const shared = new Set<string>();
  const entries: CacheEntry[] = [];

  const count = async (at: string, depth: number): Promise<Counted> => {
    signal.throwIfAborted();
    const seen = await lstat(bytesOf(at), { bigint: true }).catch(nullWhenGone);
    if (seen === null) return nothing;
    const isFolder = seen.isDirectory();
    // Reading a folder, as this does, counts as access to it.
    const latest = Math.min(now, Math.max(Number(seen.mtimeMs), isFolder ? 0 : Number(seen.atimeMs)));
    let own = Number(seen.blocks) * 512 + perFile;
    if (!isFolder && seen.nlink > 1n) {
      const id = `${seen.dev}:${seen.ino}`;
      if (shared.has(id)) own = perFile;
      else if (shared.size < mostShared) shared.add(id);
    }
    if (!isFolder) return { bytes: own, used: latest };
    const inner = await countFolder(at, depth);
    return { bytes: own + inner.bytes, used: Math.max(latest, inner.used) };
  };
  const countFolder = async (at: string, depth: number): Promise<Counted> => {
    if (depth > deepest) return { bytes: Number.POSITIVE_INFINITY, used: 0 };
    const opened = await openFolder(bytesOf(at)).catch(nullWhenGone);
    if (opened === null) return nothing;
    await using folder = opened;
    return mountOf(folder) === mount ? await sum(folder, depth) : nothing;
  };
  const sum = async (folder: FileHandle, depth: number): Promise<Counted> => {
    let all = nothing;
    await eachName(folder, async (name) => {
      const found = await count(inside(folder, name), depth + 1);
      all = { bytes: all.bytes + found.bytes, used: Math.max(all.used, found.used) };
      if (depth === 0 && entries.length < mostEntries) entries.push({ name, ...found });
    });
    return all;
  };
  return { ...(await sum(handle, 0)), entries };
}

/** As in `CacheEntry`. */
type Counted = Pick<CacheEntry, 'bytes' | 'used'>;
const nothing: Counted = { bytes: 0, used: 0 };

/** The bytes of a path below `folder`, for a name from `CacheEntry`. */
export function pathOf(folder: string, name: string): Buffer {
  return Buffer.concat([Buffer.from(`${folder}/`), Buffer.from(name, 'latin1')]);
}
