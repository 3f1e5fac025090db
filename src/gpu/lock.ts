/**
 * One manager per device of a host, whoever runs it and wherever it keeps its state. A lock is a file, because it has to
 * outlive the manager that wrote it: its agents go on while it is dead, and use the device (S1, S5). Another boot ends every
 * agent, so it ends every lock: the boot is part of the file's name, and nobody has to take a file over from anybody.
 */
import { randomUUID } from 'node:crypto';
import {
  accessSync,
  chmodSync,
  constants,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
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
  /** A folder of this host that every user may write to and that is empty after a boot, or may be. */
  readonly dir: string;
  /** Folders in which other managers of this host lock; default those of `lockDirectory` where `dir` is one of them. */
  readonly beside?: readonly string[];
  /** Id of this installation. */
  readonly owner: string;
  readonly stateDir: string;
  readonly bootId: string;
}

/** /run/lock belongs to root alone on Fedora and Arch, so that a user's manager may have to do with the second. */
const shared: readonly string[] = ['/run/lock/onejob', '/tmp/onejob-devices'];

/** Where locks are on this host: the first folder that this user can write to, or make. */
export function lockDirectory(folders = shared): string {
  return folders.find(isWritable) ?? '/tmp/onejob-devices';
}

export function createLocks(options: LockOptions): DeviceLocks {
  const { dir, owner, stateDir, bootId } = options;
  const folders = [dir, ...(options.beside ?? (shared.includes(dir) ? shared : []))].filter(
    (each, at, all) => all.indexOf(each) === at,
  );
  const isMine = ({ holder }: Lock) => holder?.owner === owner && holder.boot === bootId;
  const mine = new Set(
    folders
      .flatMap(locksOrNone)
      .filter(isMine)
      .map(({ uuid }) => uuid),
  );

  const others = (uuid: DeviceId): Lock | undefined =>
    folders
      .flatMap(readLocks)
      .filter((lock) => lock.uuid === uuid && !isMine(lock))
      .find(({ holder, boot }) => (holder === null ? boot === null || boot === bootId : holder.boot === bootId));

  return {
    take(uuid) {
      if (mine.has(uuid)) return null;
      const path = join(dir, `${encodeURIComponent(uuid)}@${encodeURIComponent(bootId)}.lock`);
      let made = false;
      try {
        open(dir);
        made = create(path, `${JSON.stringify({ owner, stateDir, boot: bootId, pid: process.pid } satisfies LockHolder)}\n`);
        // Only now: of two that lock in different folders at the same time, both see the other, and neither nobody.
        const other = others(uuid);
        const there = read(path);
        if (other !== undefined || there?.owner !== owner) {
          if (made) remove(path);
          return heldBy(other ?? { holder: there, path });
        }
        mine.add(uuid);
      } catch (error) {
        if (made) remove(path);
        return `its lock ${path} cannot be written (${error instanceof Error ? error.message : error})`;
      }
      for (const lock of folders.flatMap(locksOrNone))
        if (lock.uuid === uuid && lock.holder !== null && lock.holder.boot !== bootId) remove(lock.path);
      return null;
    },
    keep(uuids) {
      const gone = folders.flatMap(locksOrNone).filter((lock) => isMine(lock) && !uuids.has(lock.uuid));
      const stuck = new Set(gone.filter(({ path }) => !remove(path)).map(({ uuid }) => uuid));
      for (const uuid of mine) if (!uuids.has(uuid) && !stuck.has(uuid)) mine.delete(uuid);
    },
  };
}

/** Every lock on this host with who has it; null for one that cannot be read. Of several for one device the newest. */
export function locksIn(dir: string): Map<DeviceId, LockHolder | null> {
  const locks = locksOrNone(dir).toSorted((a, b) => a.written - b.written);
  return new Map(locks.map(({ uuid, holder }) => [uuid, holder]));
}

interface Lock {
  readonly uuid: DeviceId;
  /** As the name says; null where it says none. */
  readonly boot: string | null;
  readonly holder: LockHolder | null;
  readonly path: string;
  /** ms since 1970. */
  readonly written: number;
}

/** Throws where the folder is there and cannot be read: it is unknown then who has what. */
function readLocks(dir: string): readonly Lock[] {
  try {
    return readdirSync(dir).flatMap((name) => readLock(dir, name) ?? []);
  } catch (error) {
    if (isCode(error, 'ENOENT', 'ENOTDIR')) return [];
    throw error;
  }
}

function locksOrNone(dir: string): readonly Lock[] {
  try {
    return readLocks(dir);
  } catch {
    return [];
  }
}

/** null for what is no lock, or no more. Anybody may put files there, called as he likes. */
function readLock(dir: string, name: string): Lock | null {
  const [, device, boot] = /^([^@]+)(?:@([^@]+))?\.lock$/.exec(name) ?? [];
  if (device === undefined) return null;
  const path = join(dir, name);
  try {
    const written = lstatSync(path).mtimeMs;
    const names = { uuid: decodeURIComponent(device), boot: boot === undefined ? null : decodeURIComponent(boot) };
    return { ...names, holder: read(path), path, written };
  } catch {
    return null;
  }
}

function heldBy({ holder, path }: Pick<Lock, 'holder' | 'path'>): string {
  if (holder === null) return `another onejob has it (its lock ${path} cannot be understood)`;
  return `another onejob has it (pid ${holder.pid}, state in ${holder.stateDir}; its lock is ${path})`;
}

/** Whether it was not there before. At no time there is a part of it, wherever we are killed. */
function create(path: string, text: string): boolean {
  const whole = join(dirname(path), `${randomUUID()}.new`);
  try {
    writeFileSync(whole, text, { flag: 'wx', mode: 0o644 });
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

function open(dir: string): void {
  mkdirSync(dir, { recursive: true });
  const { uid, mode } = lstatSync(dir);
  // As /tmp is: anybody may lock what he uses, and nobody may take away another's lock. Whoever made it may have died before.
  if (uid === process.getuid?.() && (mode & 0o7777) !== 0o1777) chmodSync(dir, 0o1777);
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

function read(path: string): LockHolder | null {
  try {
    // A pipe would never end.
    return lstatSync(path).isFile() ? content.parse(JSON.parse(readFileSync(path, 'utf8'))) : null;
  } catch {
    return null;
  }
}

function isCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code));
}
