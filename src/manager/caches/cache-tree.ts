/**
 * Measures and removes folders that jobs have written. Whatever they contain, and however they change meanwhile: it follows no
 * link, enters no other mount, and touches nothing outside.
 *
 * It opens each folder without following links and then uses its descriptor, never a path through what jobs can change. Names are
 * bytes, not necessarily text; latin1 preserves them.
 */
import { randomUUID } from 'node:crypto';
import { constants, readFileSync } from 'node:fs';
import { chmod, type FileHandle, lstat, open, opendir, rename, rmdir, unlink } from 'node:fs/promises';
import { codeOf as systemCode } from '../../errors.ts';

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

/** Each level takes two descriptors. No useful folder is nested this deep. */
const deepest = 100;
const mostEntries = 100_000;
/** How many files with several names are remembered, so that they are counted once. */
const mostShared = 100_000;
/** How many are read at the same time: few, since all of onejob's file work shares four threads. */
const together = 8;
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

/**
 * Removes everything in a folder of onejob's own, except for what cannot be removed. `stuck`: why not, with how often; empty when
 * all is gone. @throws the reason of `signal`
 */
export async function clear(path: string, signal: AbortSignal) {
  const stuck = new Map<string, number>();
  let removed = 0;
  const top = await openFolder(path).catch(nullWhenGone);
  if (top === null) return { removed, stuck };
  await using handle = top;
  const mount = mountOf(handle);
  let lifted = 0;

  const fail = (code: string): false => {
    stuck.set(code, (stuck.get(code) ?? 0) + 1);
    return false;
  };
  /** Whether it is gone. */
  const remove = async (from: FileHandle, name: string, depth: number): Promise<boolean> => {
    signal.throwIfAborted();
    const at = bytesOf(inside(from, name));
    try {
      await unlink(at);
      removed += 1;
      return true;
    } catch (error) {
      const code = codeOf(error);
      if (code === 'ENOENT') return true;
      if (code !== 'EISDIR' && code !== 'EPERM') return fail(code);
    }
    if (depth > deepest) {
      // At the first level it takes no more descriptors than any other.
      lifted += 1;
      return rename(at, bytesOf(inside(handle, `deep-${randomUUID()}-${lifted}`))).then(
        () => true,
        (error: unknown) => fail(codeOf(error)),
      );
    }
    const opened = await openForRemoval(at).catch((error: unknown) => codeOf(error));
    if (typeof opened === 'string')
      return opened === 'ENOENT' || fail(opened === 'ENOTDIR' || opened === 'ELOOP' ? 'EPERM' : opened);
    await using folder = opened;
    if (mountOf(folder) !== mount) return fail('EBUSY');
    await removeAll(folder, depth);
    try {
      await rmdir(at);
      removed += 1;
      return true;
    } catch (error) {
      const code = codeOf(error);
      // What keeps it full was counted already.
      return code === 'ENOENT' || (code === 'ENOTEMPTY' ? false : fail(code));
    }
  };
  /** A folder that changes while it is read may not list everything the first time. */
  const removeAll = async (folder: FileHandle, depth: number): Promise<void> => {
    const before = stuck.size;
    for (let passes = 0; passes < 3; passes++) {
      let seen = 0;
      await eachName(
        folder,
        async (name) => {
          seen += 1;
          await remove(folder, name, depth + 1);
        },
        1,
      );
      if (seen === 0 || stuck.size > before) return;
    }
  };

  do {
    lifted = 0;
    await removeAll(handle, 0);
  } while (lifted > 0);
  return { removed, stuck };
}

/** The bytes of a path below `folder`, for a name from `CacheEntry`. */
export function pathOf(folder: string, name: string): Buffer {
  return Buffer.concat([Buffer.from(`${folder}/`), Buffer.from(name, 'latin1')]);
}

async function eachName(folder: FileHandle, each: (name: string) => Promise<void>, width = together): Promise<void> {
  // One at a time where each may open folders itself: otherwise descriptors multiply with the depth.
  const names = await opendir(`/proc/self/fd/${folder.fd}`, { encoding: 'latin1', bufferSize: 256 });
  let files: Promise<void>[] = [];
  for await (const entry of names) {
    if (width === 1 || entry.isDirectory()) {
      await each(entry.name);
      continue;
    }
    files.push(each(entry.name));
    if (files.length < width) continue;
    await Promise.all(files);
    files = [];
  }
  await Promise.all(files);
}

const folderFlags = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

function openFolder(path: string | Buffer): Promise<FileHandle> {
  return open(path, folderFlags);
}

/** An ordinary user may have closed a folder to himself. */
async function openForRemoval(path: Buffer): Promise<FileHandle> {
  return openFolder(path).catch(async (error: unknown) => {
    if (codeOf(error) !== 'EACCES' || process.getuid?.() === 0) throw error;
    if ((await lstat(path)).isDirectory()) await chmod(path, 0o700);
    return openFolder(path);
  });
}

/** The id of its mount: two mounts of one file system have the same device. */
function mountOf({ fd }: FileHandle): string {
  return /^mnt_id:\s*(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '';
}

function inside({ fd }: FileHandle, name: string): string {
  return `/proc/self/fd/${fd}/${name}`;
}

function bytesOf(path: string): Buffer {
  return Buffer.from(path, 'latin1');
}

/** null for an entry that is gone, has become another kind of file, or is closed to this user. */
function nullWhenGone(error: unknown): null {
  if (['ENOENT', 'ENOTDIR', 'ELOOP', 'EACCES'].includes(codeOf(error))) return null;
  throw error;
}

function codeOf(error: unknown): string {
  return systemCode(error) || String(error);
}
