/**
 * Walks and removes folders that others can write to: jobs, and logins of this host. Whatever they contain, and however they change
 * meanwhile, it follows no link, enters no other mount, and touches nothing outside.
 *
 * A path is resolved anew with each call, so somebody who exchanges a folder for a link leads root to any file. Here each folder is
 * opened without following links, and from then on only its descriptor is used. Names are bytes, not necessarily text; latin1
 * preserves them.
 */
import { randomUUID } from 'node:crypto';
import { constants, readFileSync } from 'node:fs';
import { chmod, type FileHandle, lstat, open, opendir, rename, rmdir, unlink } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { codeOf as systemCode } from '../base/errors.ts';

/** What was removed, and why the rest was not, with how often; `stuck` is empty when all is gone. */
export interface Removed {
  readonly removed: number;
  readonly stuck: ReadonlyMap<string, number>;
}

export interface RemovalOptions {
  readonly signal?: AbortSignal;
}

/** Each level takes two descriptors. No useful folder is nested this deep. */
export const deepest = 100;
/** How many are read at the same time: few, since all of onejob's file work shares four threads. */
const together = 8;

/** Removes a file, or a folder with all that is in it. @throws the reason of `signal` */
export async function removeTree(path: string, options: RemovalOptions = {}): Promise<Removed> {
  const removal = startRemoval(options);
  const remove = (above: FileHandle): Promise<void> => removal.remove(above, Buffer.from(basename(path)).toString('latin1'));
  // What leads to the folder above belongs to the caller, also where it is a link.
  return removal.within(open(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY), remove);
}

/** Removes everything in a folder, and keeps the folder. @throws the reason of `signal` */
export async function clearFolder(path: string, options: RemovalOptions = {}): Promise<Removed> {
  const removal = startRemoval(options);
  return removal.within(openFolder(path), removal.clear);
}

/** Removes what belongs to a user in a folder that all share, such as /tmp. @throws the reason of `signal` */
export async function removeOwned(path: string, uid: number, options: RemovalOptions = {}): Promise<Removed> {
  const removal = startRemoval(options);
  return removal.within(open(path, constants.O_RDONLY | constants.O_DIRECTORY), (folder) => {
    const removeOwn = async (name: string): Promise<void> => {
      // What cannot be looked at, such as a file system whose program has ended, must not stop this.
      const seen = await lstat(bytesOf(inside(folder, name))).catch(() => null);
      if (seen?.uid === uid) await removal.remove(folder, name);
    };
    return eachName(folder, removeOwn, 1);
  });
}

/** In words, for a message: `EPERM, 3 times; EBUSY`. */
export function whyStuck({ stuck }: Pick<Removed, 'stuck'>): string {
  return [...stuck].map(([code, times]) => (times === 1 ? code : `${code}, ${times} times`)).join('; ');
}

function startRemoval({ signal }: RemovalOptions) {
  const stuck = new Map<string, number>();
  let removed = 0;
  let failures = 0;

  const fail = (code: string): void => {
    failures += 1;
    stuck.set(code, (stuck.get(code) ?? 0) + 1);
  };
  /** Removes anything but a folder. Whether it is a folder, and so is still there. */
  const isFolder = async (at: Buffer): Promise<boolean> => {
    signal?.throwIfAborted();
    try {
      await unlink(at);
      removed += 1;
    } catch (error) {
      const code = codeOf(error);
      // The kernel says EISDIR, other systems EPERM.
      if (code === 'EISDIR' || code === 'EPERM') return true;
      if (code !== 'ENOENT') fail(code);
    }
    return false;
  };
  const removeFolder = async (at: Buffer, mount: string, empty: (folder: FileHandle) => Promise<void>): Promise<void> => {
    const opened = await openForRemoval(at).catch((error: unknown) => codeOf(error));
    if (opened === 'ENOENT') return;
    // A file that refused to be removed, or a link that was put there meanwhile.
    if (typeof opened === 'string') return fail(opened === 'ENOTDIR' || opened === 'ELOOP' ? 'EPERM' : opened);
    await using folder = opened;
    if (mountOf(folder) !== mount) return fail('EBUSY');
    const before = failures;
    await closeToOthers(folder);
    await empty(folder);
    try {
      await rmdir(at);
      removed += 1;
    } catch (error) {
      const code = codeOf(error);
      // What keeps it full may have been counted already.
      if (code !== 'ENOENT' && (code !== 'ENOTEMPTY' || failures === before)) fail(code);
    }
  };
  /** Removes all below `top`, which stays. */
  const clear = async (top: FileHandle): Promise<void> => {
    const mount = mountOf(top);
    let lifted = 0;
    const remove = async (from: FileHandle, name: string, depth: number): Promise<void> => {
      const at = bytesOf(inside(from, name));
      if (!(await isFolder(at))) return;
      if (depth <= deepest) return removeFolder(at, mount, (folder) => removeAll(folder, depth));
      // At the first level it takes no more descriptors than any other.
      lifted += 1;
      await rename(at, bytesOf(inside(top, `deep-${randomUUID()}`))).catch((error: unknown) => fail(codeOf(error)));
    };
    /** A folder that changes while it is read may not list everything the first time. */
    const removeAll = async (folder: FileHandle, depth: number): Promise<void> => {
      const before = failures;
      for (let passes = 0; passes < 3; passes++) {
        let seen = 0;
        const each = (name: string): Promise<void> => {
          seen += 1;
          return remove(folder, name, depth + 1);
        };
        await eachName(folder, each, 1);
        if (seen === 0 || failures > before) return;
      }
    };
    do {
      lifted = 0;
      await removeAll(top, 0);
    } while (lifted > 0);
  };
  return {
    clear,
    async remove(from: FileHandle, name: string): Promise<void> {
      const at = bytesOf(inside(from, name));
      if (await isFolder(at)) await removeFolder(at, mountOf(from), clear);
    },
    /** Does it in a folder, if there is one, and says what became of it. */
    async within(opening: Promise<FileHandle>, work: (folder: FileHandle) => Promise<void>): Promise<Removed> {
      const opened = await opening.catch((error: unknown) => codeOf(error));
      if (typeof opened !== 'string') {
        await using folder = opened;
        await work(folder);
      } else if (opened !== 'ENOENT') fail(opened);
      return { removed, stuck };
    },
  };
}

/** `width`: how many at a time. One where each may open folders itself: otherwise descriptors multiply with the depth. */
export async function eachName(folder: FileHandle, each: (name: string) => Promise<void>, width = together): Promise<void> {
  const names = await opendir(`/proc/self/fd/${folder.fd}`, { encoding: 'latin1', bufferSize: 256 });
  let files: Promise<void>[] = [];
  for await (const entry of names) {
    if (width === 1 || entry.isDirectory()) {
      await each(entry.name);
      continue;
    }
    const one = each(entry.name);
    // It may fail while the next names are read; `Promise.all` throws it then.
    one.catch(() => {});
    files.push(one);
    if (files.length < width) continue;
    await Promise.all(files);
    files = [];
  }
  await Promise.all(files);
}

const folderFlags = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
/** Opens what this user may not read (asm-generic/fcntl.h); Node has no name for it. */
const pathOnly = 0o10000000;

export function openFolder(path: string | Buffer): Promise<FileHandle> {
  return open(path, folderFlags);
}

/** An ordinary user may have closed a folder to himself. */
async function openForRemoval(path: Buffer): Promise<FileHandle> {
  return openFolder(path).catch(async (error: unknown) => {
    if (codeOf(error) !== 'EACCES' || isRoot()) throw error;
    await using closed = await open(path, pathOnly | constants.O_DIRECTORY | constants.O_NOFOLLOW);
    await chmod(`/proc/self/fd/${closed.fd}`, 0o700).catch(() => {});
    return openFolder(path);
  });
}

/** Lets root's user alone, or the owner, add to it and remove from it: who has it open could fill it for ever. */
async function closeToOthers(folder: FileHandle): Promise<void> {
  const { mode } = await folder.stat();
  const isOpen = isRoot() ? (mode & 0o022) !== 0 : (mode & 0o700) !== 0o700;
  // It may belong to another, or be marked as immutable. Then removing what is in it says so.
  if (isOpen) await folder.chmod(0o700).catch(() => {});
}

function isRoot(): boolean {
  return process.getuid?.() === 0;
}

/** The id of its mount: two mounts of one file system have the same device. */
export function mountOf({ fd }: FileHandle): string {
  return /^mnt_id:\s*(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '';
}

export function inside({ fd }: FileHandle, name: string): string {
  return `/proc/self/fd/${fd}/${name}`;
}

export function bytesOf(path: string): Buffer {
  return Buffer.from(path, 'latin1');
}

/** null for an entry that is gone, has become another kind of file, or is closed to this user. */
export function nullWhenGone(error: unknown): null {
  if (['ENOENT', 'ENOTDIR', 'ELOOP', 'EACCES'].includes(codeOf(error))) return null;
  throw error;
}

function codeOf(error: unknown): string {
  return systemCode(error) || String(error);
}
