/**
 * One manager per device of a host, for all users and state directories. A lock is a file, because it must outlive
 * the manager that wrote it, whose agents continue to use the device (S1, S5). Another boot ends every agent, so it ends every
 * lock: the boot is part of the file's name, and no manager has to take over another's file.
 *
 * Root's locks are in a folder that only root may write. Other users share one that anyone may write: what is opened there must
 * be a small plain file, not a link or a pipe, and only so much is read. A user can hold a device by a lock as well as by a
 * process on it; the user of a job cannot.
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
import { attempt, codeOf, messageOf } from '../base/errors.ts';
import type { DeviceId } from '../core/slot.ts';
import { jsonOf } from '../system/json.ts';

const content = z.object({ owner: z.string(), stateDir: z.string(), boot: z.string(), pid: z.int() });
type LockHolder = z.infer<typeof content>;

export interface DeviceLocks {
  /** Takes the lock, or has it already: null. Otherwise which manager has it, in words that say what to do. */
  take(uuid: DeviceId): string | null;
  /** Gives up all but these. */
  keep(uuids: ReadonlySet<DeviceId>): void;
}

export interface LockOptions {
  /** A folder of this host that a boot empties: `lockDirectory`. */
  readonly dir: string;
  /** Folders in which other managers of this host lock; default the usual ones where `dir` is one of them. */
  readonly others?: readonly string[];
  readonly owner: string;
  readonly stateDir: string;
  readonly bootId: string;
  /** Whether only root may write to `dir`, or everyone, as to /tmp. Default: whether this process is root. */
  readonly root?: boolean;
  /** Whether a user is a job's, whose locks do not count. */
  readonly isJob?: (uid: number) => boolean;
}

const ofRoot = '/run/onejob-devices';
/** On Fedora and Arch only root may write to /run/lock, so a user's manager may need the second. */
const shared: readonly string[] = ['/run/lock/onejob', '/tmp/onejob-devices'];

/** A lock has some 200 bytes: no manager writes more. */
const largest = 4_096;
/** How many names of one folder are read. */
const most = 4_096;

/** Where locks are on this host: root's folder, or the first that this user can write to or create. */
export function lockDirectory(folders = process.getuid?.() === 0 ? [ofRoot] : shared): string {
  return folders.find(isWritable) ?? folders.at(-1) ?? ofRoot;
}

export function createLocks(options: LockOptions): DeviceLocks {
  const { dir, owner, stateDir, bootId, isJob = () => false } = options;
  const root = options.root ?? process.getuid?.() === 0;
  const usual = [ofRoot, ...shared];
  const folders = [...new Set([dir, ...(options.others ?? (usual.includes(dir) ? usual : []))])];
  const isMine = ({ holder, uid }: LockFile) => uid === process.getuid?.() && holder?.owner === owner && holder.boot === bootId;
  const mine = new Set(locksIn(dir).flatMap((lock) => (isMine(lock) ? lock.uuid : [])));

  // A manager of this owner that was killed while it wrote a lock left a file that only this owner knows.
  for (const name of isFolder(dir) ? namesIn(dir) : [])
    if (name.startsWith(beginning(owner)) && name.endsWith(unfinished)) remove(join(dir, name));

  /** Found by name and not by reading the folder, which anyone may have filled. */
  const others = (uuid: DeviceId): LockFile | undefined =>
    folders
      .filter(isFolder)
      .flatMap((folder) => [pathOf(folder, uuid, `@${encodeURIComponent(bootId)}`), pathOf(folder, uuid)])
      .flatMap((path) => read(path) ?? [])
      .find((lock) => !isJob(lock.uid) && !isMine(lock) && (lock.holder === null || lock.holder.boot === bootId));

  return {
    take(uuid) {
      if (mine.has(uuid)) return null;
      const path = pathOf(dir, uuid, `@${encodeURIComponent(bootId)}`);
      let made = false;
      try {
        open(dir, root);
        const holder: LockHolder = { owner, stateDir, boot: bootId, pid: process.pid };
        made = createFor(owner, path, `${JSON.stringify(holder)}\n`);
        // Only now: if two managers lock in different folders at the same time, at least one sees the other.
        const other = others(uuid);
        const there = read(path);
        if (other !== undefined || there === null || !isMine(there)) {
          if (made) remove(path);
          return other === undefined ? `its lock ${path} cannot be written (something else is at that path)` : heldBy(other);
        }
        mine.add(uuid);
      } catch (error) {
        if (made) remove(path);
        return `its lock ${path} cannot be written (${messageOf(error)})`;
      }
      for (const lock of locksIn(dir))
        if (lock.uuid === uuid && lock.holder !== null && lock.holder.boot !== bootId) remove(lock.path);
      return null;
    },
    keep(uuids) {
      const gone = folders.flatMap(locksIn).filter((lock) => isMine(lock) && !uuids.has(lock.uuid));
      const stuck = new Set(gone.filter(({ path }) => !remove(path)).map(({ uuid }) => uuid));
      for (const uuid of mine) if (!uuids.has(uuid) && !stuck.has(uuid)) mine.delete(uuid);
    },
  };
}

function pathOf(folder: string, uuid: DeviceId, boot = ''): string {
  return join(folder, `${encodeURIComponent(uuid)}${boot}.lock`);
}

interface LockFile {
  /** null for an invalid lock: a newer manager, or a failing disk, may have written it. */
  readonly holder: LockHolder | null;
  readonly path: string;
  readonly uid: number;
}

/** The locks in a folder; empty where it cannot be read. */
export function locksIn(dir: string): readonly (LockFile & { readonly uuid: DeviceId })[] {
  if (!isFolder(dir)) return [];
  return namesIn(dir).flatMap((name) => {
    const device = /^([^@]+)(?:@[^@]+)?\.lock$/.exec(name)?.[1];
    if (device === undefined) return [];
    const uuid = attempt(() => decodeURIComponent(device));
    const lock = attempt(() => read(join(dir, name)));
    return lock === null || uuid === null ? [] : [{ ...lock, uuid }];
  });
}

function namesIn(dir: string): readonly string[] {
  const names: string[] = [];
  try {
    using folder = opendirSync(dir);
    for (let entry = folder.readSync(); entry !== null && names.length < most; entry = folder.readSync()) names.push(entry.name);
  } catch {
    // Gone meanwhile, or not readable for us: then it contains no lock of ours.
  }
  return names;
}

function isFolder(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

/** null for a file that is not a lock. @throws where it is unknown whether it is one, and so who has the device */
function read(path: string): LockFile | null {
  let fd: number;
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if (['ENOENT', 'ENOTDIR', 'ELOOP', 'ENXIO'].includes(codeOf(error))) return null;
    if (codeOf(error) !== 'EACCES') throw error;
    return { holder: null, path, uid: lstatSync(path).uid };
  }
  try {
    const { uid, size, mode } = fstatSync(fd);
    if ((mode & constants.S_IFMT) !== constants.S_IFREG || size > largest) return null;
    const bytes = Buffer.alloc(largest);
    const text = bytes.toString('utf8', 0, readSync(fd, bytes, 0, largest, 0));
    return { holder: content.safeParse(jsonOf(text)).data ?? null, path, uid };
  } finally {
    closeSync(fd);
  }
}

function heldBy({ holder, path, uid }: LockFile): string {
  const who = uid === process.getuid?.() ? '' : ` of user ${uid}`;
  if (holder === null) return `another onejob${who} has it (its lock ${path} is invalid)`;
  return `another onejob${who} has it (pid ${holder.pid}, state in ${holder.stateDir}; its lock is ${path})`;
}

const unfinished = '.new';
/** How the names of this owner's unfinished locks begin: the rest is random, so that no file can be there before. */
const beginning = (owner: string): string => `${encodeURIComponent(owner)}.`;

/** Whether the file did not exist before. It is never incomplete, even if this process is killed. */
function createFor(owner: string, path: string, text: string): boolean {
  const whole = join(dirname(path), `${beginning(owner)}${randomUUID()}${unfinished}`);
  try {
    writeFileSync(whole, text, { flag: 'wx' });
    // Regardless of the umask: every manager of the host must be able to read it.
    chmodSync(whole, 0o644);
    linkSync(whole, path);
    return true;
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false;
    throw error;
  } finally {
    remove(whole);
  }
}

/** Whether it is gone. In a folder like /tmp another user's file stays. */
function remove(path: string): boolean {
  const gone = attempt(() => {
    rmSync(path, { force: true });
    return true;
  });
  return gone ?? false;
}

/** @throws Error where the folder is not as it must be */
function open(dir: string, root: boolean): void {
  mkdirSync(dir, { recursive: true, mode: 0o755 });
  const folder = lstatSync(dir);
  if (!folder.isDirectory()) throw new Error(`${dir} is not a folder`);
  const isOwn = folder.uid === process.getuid?.();
  if (root) {
    if (!isOwn) throw new Error(`${dir} belongs to user ${folder.uid}: remove it`);
    if ((folder.mode & 0o7777) !== 0o755) chmodSync(dir, 0o755);
  }
  // Like /tmp: anyone may lock a device, and nobody may remove another's lock. The mode may be unset after a crash.
  else if (isOwn && (folder.mode & 0o7777) !== 0o1777) chmodSync(dir, 0o1777);
}

function isWritable(dir: string): boolean {
  const can = (folder: string) => {
    accessSync(folder, constants.W_OK | constants.X_OK);
    return statSync(folder).isDirectory();
  };
  for (const folder of [dir, dirname(dir)]) {
    try {
      return can(folder);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') return false;
    }
  }
  return false;
}
