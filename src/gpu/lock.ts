/**
 * One manager per device of a host, whoever runs it and wherever it keeps its state. A lock is a file, because it has to
 * outlive the manager that wrote it: its agents go on while it is dead, and use the device (S1, S5). Another boot ends every
 * agent, so it ends every lock.
 */
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
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
  /** Id of this installation. */
  readonly owner: string;
  readonly stateDir: string;
  readonly bootId: string;
}

/** Where locks are on this host. */
export function lockDirectory(): string {
  return existsSync('/run/lock') ? '/run/lock/onejob' : '/tmp/onejob-devices';
}

export function createLocks({ dir, owner, stateDir, bootId }: LockOptions): DeviceLocks {
  const mine = new Set<DeviceId>();
  for (const [uuid, holder] of locksIn(dir)) if (holder?.owner === owner) mine.add(uuid);

  return {
    take(uuid) {
      if (mine.has(uuid)) return null;
      const path = pathOf(dir, uuid);
      // A second time after the lock of another boot was taken away; a third would mean that somebody else was faster.
      for (let attempt = 1; ; attempt++) {
        try {
          open(dir);
          const text = JSON.stringify({ owner, stateDir, boot: bootId, pid: process.pid } satisfies LockHolder);
          writeFileSync(path, `${text}\n`, { flag: 'wx', mode: 0o644 });
          mine.add(uuid);
          return null;
        } catch (error) {
          if (!isExisting(error)) return `its lock ${path} cannot be written (${error instanceof Error ? error.message : error})`;
          const holder = read(path);
          if (holder?.owner === owner) {
            mine.add(uuid);
            return null;
          }
          if (attempt === 1 && holder !== null && holder.boot !== bootId) {
            rmSync(path, { force: true });
            continue;
          }
          return heldBy(holder, path);
        }
      }
    },
    keep(uuids) {
      for (const uuid of mine) {
        if (uuids.has(uuid)) continue;
        rmSync(pathOf(dir, uuid), { force: true });
        mine.delete(uuid);
      }
    },
  };
}

/** Every lock on this host with who has it; null for one that cannot be read. */
export function locksIn(dir: string): Map<DeviceId, LockHolder | null> {
  const names = existsSync(dir) ? readdirSync(dir).filter((name) => name.endsWith('.lock')) : [];
  return new Map(names.map((name) => [decodeURIComponent(name.slice(0, -'.lock'.length)), read(join(dir, name))]));
}

function heldBy(holder: LockHolder | null, path: string): string {
  if (holder === null) return `another onejob has it (its lock ${path} cannot be understood)`;
  return `another onejob has it (pid ${holder.pid}, state in ${holder.stateDir}; its lock is ${path})`;
}

function pathOf(dir: string, uuid: DeviceId): string {
  return join(dir, `${encodeURIComponent(uuid)}.lock`);
}

function open(dir: string): void {
  if (existsSync(dir)) return;
  mkdirSync(dir, { recursive: true });
  // As /tmp is: anybody may lock what he uses, and nobody may take away another's lock.
  chmodSync(dir, 0o1777);
}

function read(path: string): LockHolder | null {
  try {
    return content.parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch {
    return null;
  }
}

function isExisting(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'EEXIST';
}
