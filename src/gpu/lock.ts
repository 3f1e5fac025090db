/**
 * One manager per device of a host, whoever runs it and wherever it keeps its state. A lock is a file, because it has to
 * outlive the manager that wrote it: its agents go on while it is dead, and use the device (S1, S5). Another boot ends every
 * agent, so it ends every lock: the boot is part of the file's name, and nobody has to take a file over from anybody.
 *
 * Root locks in a folder that only root may write, so that nobody takes its locks away. Other users share one in which anybody
 * may put anything: what is opened there is a small plain file, no link, no pipe, never more than is read at once. A user can
 * hold a device by a lock as he can by a process on it; what runs as the user of a job cannot.
 */
import { randomUUID } from 'node:crypto';
import {
  accessSync,
  chmodSync,
  closeSync,
  constants,
  fstatSync,
  linkSync,
  lstatSync,
  mkdirSync,
  opendirSync,
  openSync,
  readSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import type { DeviceId } from '../core/slot.ts';

const content = z.object({ owner: z.string(), stateDir: z.string(), boot: z.string(), pid: z.int() });
export type LockHolder = z.infer<typeof content>;

export interface DeviceLocks {
  /** Takes the lock, or has it already; else who has it, in words that say what to do. */
  take(uuid: DeviceId): string | null;
  /** Gives up all but these. */
  keep(uuids: ReadonlySet<DeviceId>): void;
}

export interface LockOptions {
  /** A folder of this host that is empty after a boot, or may be: `lockDirectory`. */
  readonly dir: string;
  /** Folders in which other managers of this host lock; default the usual ones where `dir` is one of them. */
  readonly beside?: readonly string[];
  /** Id of this installation. */
  readonly owner: string;
  readonly stateDir: string;
  readonly bootId: string;
  /** Whether only root may write to `dir`, or everybody, as to /tmp. Default: whether this process is root. */
  readonly root?: boolean;
  /** Whether a user is a job's, whose locks count for nothing. */
  readonly isJob?: (uid: number) => boolean;
}

const ofRoot = '/run/onejob-devices';
/** /run/lock belongs to root alone on Fedora and Arch, so that a user's manager may have to do with the second. */
const shared: readonly string[] = ['/run/lock/onejob', '/tmp/onejob-devices'];

/** A lock is some 200 bytes: what is larger was written by nobody who locks. */
const largest = 4_096;
/** Names looked at in one folder. */
const most = 4_096;

/** Where locks are on this host: root's folder, or the first that this user can write to, or make. */
export function lockDirectory(folders = process.getuid?.() === 0 ? [ofRoot] : shared): string {
  return folders.find(isWritable) ?? folders.at(-1) ?? ofRoot;
}

export function createLocks(options: LockOptions): DeviceLocks {
  const { dir, owner, stateDir, bootId, isJob = () => false } = options;
  const root = options.root ?? process.getuid?.() === 0;
  const usual = [ofRoot, ...shared];
  const folders = [...new Set([dir, ...(options.beside ?? (usual.includes(dir) ? usual : []))])];
  const isMine = ({ holder, uid }: Found) => uid === process.getuid?.() && holder?.owner === owner && holder.boot === bootId;
  const mine = new Set(
    list(dir)
      .filter(isMine)
      .map(({ uuid }) => uuid),
  );

  // Killed before its lock was whole, the last manager of this owner left a file that nobody else knows.
  for (const name of isFolder(dir) ? namesIn(dir) : [])
    if (name.startsWith(beginning(owner)) && name.endsWith(unfinished)) remove(join(dir, name));
  const create = (path: string, text: string): boolean => createFor(owner, path, text);

  /** Found by name and not by looking through the folder, which anybody may have filled. */
  const others = (uuid: DeviceId): Found | undefined =>
    folders
      .filter(isFolder)
      .flatMap((folder) =>
        [`@${encodeURIComponent(bootId)}`, ''].map((boot) => join(folder, `${encodeURIComponent(uuid)}${boot}.lock`)),
      )
      .flatMap((path) => read(path) ?? [])
      .find((lock) => !isJob(lock.uid) && !isMine(lock) && (lock.holder === null || lock.holder.boot === bootId));

  return {
    take(uuid) {
      if (mine.has(uuid)) return null;
      const path = join(dir, `${encodeURIComponent(uuid)}@${encodeURIComponent(bootId)}.lock`);
      let made = false;
      try {
        open(dir, root);
        made = create(path, `${JSON.stringify({ owner, stateDir, boot: bootId, pid: process.pid } satisfies LockHolder)}\n`);
        // Only now: of two that lock in different folders at the same time, both see the other, and neither nobody.
        const other = others(uuid);
        const there = read(path);
        if (other !== undefined || there === null || !isMine(there)) {
          if (made) remove(path);
          return other === undefined ? `its lock ${path} cannot be written (something else is at that path)` : heldBy(other);
        }
        mine.add(uuid);
      } catch (error) {
        if (made) remove(path);
        return `its lock ${path} cannot be written (${error instanceof Error ? error.message : error})`;
      }
      for (const lock of list(dir))
        if (lock.uuid === uuid && lock.holder !== null && lock.holder.boot !== bootId) remove(lock.path);
      return null;
    },
    keep(uuids) {
      const gone = folders.flatMap(list).filter((lock) => isMine(lock) && !uuids.has(lock.uuid));
      const stuck = new Set(gone.filter(({ path }) => !remove(path)).map(({ uuid }) => uuid));
      for (const uuid of mine) if (!uuids.has(uuid) && !stuck.has(uuid)) mine.delete(uuid);
    },
  };
}

/** Every lock in a folder with who has it; null for one that cannot be read. Of several for one device the newest. */
export function locksIn(dir: string): Map<DeviceId, LockHolder | null> {
  const locks = list(dir).toSorted((a, b) => a.written - b.written);
  return new Map(locks.map(({ uuid, holder }) => [uuid, holder]));
}

interface Found {
  /** null for one that cannot be understood: a manager that is newer, or a disk that fails, may have written it. */
  readonly holder: LockHolder | null;
  readonly path: string;
  /** Of its file. */
  readonly uid: number;
  /** ms since 1970. */
  readonly written: number;
}

/** What can be found in a folder; nothing where it cannot be read. */
function list(dir: string): readonly (Found & { readonly uuid: DeviceId })[] {
  if (!isFolder(dir)) return [];
  return namesIn(dir).flatMap((name) => {
    const device = /^([^@]+)(?:@[^@]+)?\.lock$/.exec(name)?.[1];
    if (device === undefined) return [];
    try {
      const uuid = decodeURIComponent(device);
      const found = read(join(dir, name));
      return found === null ? [] : [{ ...found, uuid }];
    } catch {
      return [];
    }
  });
}

function namesIn(dir: string): readonly string[] {
  const names: string[] = [];
  try {
    const folder = opendirSync(dir);
    try {
      for (let entry = folder.readSync(); entry !== null && names.length < most; entry = folder.readSync()) names.push(entry.name);
    } finally {
      folder.closeSync();
    }
  } catch {
    // Gone meanwhile, or closed to us: no lock of ours is in it.
  }
  return names;
}

function isFolder(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

/** null for what is no lock. @throws where nobody can tell: it is unknown then who has the device. */
function read(path: string): Found | null {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if (isCode(error, 'ENOENT', 'ENOTDIR', 'ELOOP', 'ENXIO')) return null;
    if (!isCode(error, 'EACCES')) throw error;
    const { uid, mtimeMs: written } = lstatSync(path);
    return { holder: null, path, uid, written };
  }
  try {
    const { uid, size, mtimeMs: written, ...found } = fstatSync(fd);
    if ((found.mode & constants.S_IFMT) !== constants.S_IFREG || size > largest) return null;
    const bytes = Buffer.alloc(largest);
    const text = bytes.toString('utf8', 0, readSync(fd, bytes, 0, largest, 0));
    return { holder: understood(text), path, uid, written };
  } finally {
    closeSync(fd);
  }
}

function understood(text: string): LockHolder | null {
  try {
    return content.parse(JSON.parse(text));
  } catch {
    return null;
  }
}

function heldBy({ holder, path, uid }: Found): string {
  const who = uid === process.getuid?.() ? '' : ` of user ${uid}`;
  if (holder === null) return `another onejob${who} has it (its lock ${path} is invalid)`;
  return `another onejob${who} has it (pid ${holder.pid}, state in ${holder.stateDir}; its lock is ${path})`;
}

const unfinished = '.new';
/** Of the names of files that become locks of this owner: the rest is chance, so that nobody can be there before. */
const beginning = (owner: string): string => `${encodeURIComponent(owner)}.`;

/** Whether it was not there before. At no time there is a part of it, wherever we are killed. */
function createFor(owner: string, path: string, text: string): boolean {
  const whole = join(dirname(path), `${beginning(owner)}${randomUUID()}${unfinished}`);
  try {
    writeFileSync(whole, text, { flag: 'wx' });
    // Whatever the umask is: every manager of the host has to read it.
    chmodSync(whole, 0o644);
    linkSync(whole, path);
    return true;
  } catch (error) {
    if (isCode(error, 'EEXIST')) return false;
    throw error;
  } finally {
    remove(whole);
  }
}

/** Whether it is gone. In a folder as /tmp is, that of another user stays. */
function remove(path: string): boolean {
  try {
    rmSync(path, { force: true });
    return true;
  } catch {
    return false;
  }
}

/** @throws Error where the folder is not what it has to be. */
function open(dir: string, root: boolean): void {
  mkdirSync(dir, { recursive: true, mode: 0o755 });
  const found = lstatSync(dir);
  if (!found.isDirectory()) throw new Error(`${dir} is not a folder`);
  const isOwn = found.uid === process.getuid?.();
  if (root) {
    if (!isOwn) throw new Error(`${dir} belongs to user ${found.uid}: remove it`);
    if ((found.mode & 0o7777) !== 0o755) chmodSync(dir, 0o755);
  }
  // As /tmp is: anybody may lock what he uses, and nobody may take away another's lock. Whoever made it may have died before.
  else if (isOwn && (found.mode & 0o7777) !== 0o1777) chmodSync(dir, 0o1777);
}

function isWritable(dir: string): boolean {
  const can = (folder: string) => {
    accessSync(folder, constants.W_OK | constants.X_OK);
    return statSync(folder).isDirectory();
  };
  try {
    return can(dir);
  } catch (error) {
    if (!isCode(error, 'ENOENT')) return false;
  }
  try {
    return can(dirname(dir));
  } catch {
    return false;
  }
}

function isCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code));
}
