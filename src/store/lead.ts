/**
 * One manager per state directory. The lead is an exclusive SQLite lock on a file of its own, held in an open
 * transaction: a POSIX lock, so it dies with the process however that ends, is not inherited by children, and stays while
 * the process is stopped (SIGSTOP). The pid beside it is for people only; the lock decides.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { z } from 'zod';
import { OnejobError } from '../errors.ts';
import { storeFault } from './fault.ts';

export interface Lead {
  /** Writes down where the leader listens, for clients of this state directory; null: not yet, or not any more. */
  listens(socket: string | null): void;
  release(): void;
}

const leader = z.object({
  pid: z.int().positive(),
  /** Whether it ends by itself. */
  temporary: z.boolean().default(false),
  // Files of before have neither.
  started: z.string().nullable().default(null),
  /** Where it listens; null while it does not yet, or not any more. */
  socket: z.string().nullable().default(null),
});

/**
 * The manager that leads a state directory, or led it last and was killed; null when none has the lead, or nobody may know. Only the
 * lock decides who has: this is for finding it, and for people. `isAlive`: whether that very process is there; false also when it
 * cannot be seen, as from another container.
 */
export function leaderOf(dir: string) {
  try {
    const { pid, temporary, started, socket } = leader.parse(JSON.parse(readFileSync(pidFile(dir), 'utf8')));
    return { pid, temporary, socket, isAlive: started !== null && started === startOf(pid) };
  } catch {
    return null;
  }
}

/**
 * When a process started, in clock ticks after boot (proc_pid_stat(5), field 22): a pid alone may be another one's by now. Null for one
 * that only waits to be reaped, and for a pid of another container's.
 */
export function startOf(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const [state = 'X', ...fields] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return 'ZX'.includes(state) ? null : (fields[18] ?? null);
  } catch {
    return null;
  }
}

/**
 * Takes the lead of the state directory.
 * @throws OnejobError E_STATE_LED when another process, or another store in this one, has it.
 */
export function takeLead(dir: string, { temporary = false }: { readonly temporary?: boolean } = {}): Lead {
  const path = join(dir, 'lead.db');
  const tell = (socket: string | null): void => {
    const beside = `${pidFile(dir)}.new`;
    writeFileSync(beside, `${JSON.stringify({ pid: process.pid, temporary, started: startOf(process.pid), socket })}\n`);
    renameSync(beside, pidFile(dir));
  };
  let db: DatabaseSync | null = null;
  try {
    db = new DatabaseSync(path, { timeout: 0 });
    db.exec('BEGIN EXCLUSIVE');
    tell(null);
  } catch (error) {
    db?.close();
    const fault = storeFault('take the lock', path, error);
    if (!(fault instanceof OnejobError) || fault.code !== 'E_STATE_BUSY') throw fault;
    throw isLed(dir, error);
  }
  const held = db;
  return {
    listens(socket) {
      try {
        tell(socket);
      } catch {
        // A full disk: clients look where it usually is.
      }
    },
    release() {
      if (!held.isOpen) return;
      // The file goes first: once the lock is free, a pid file may be the next manager's.
      rmSync(pidFile(dir), { force: true });
      held.close();
    },
  };
}

function pidFile(dir: string): string {
  return join(dir, 'lead.json');
}

function isLed(dir: string, cause: unknown): OnejobError {
  const found = leaderOf(dir);
  const who = `${found?.temporary === true ? 'A temporary' : 'Another'} onejob (pid ${found?.pid ?? 'unknown'})`;
  return new OnejobError('E_STATE_LED', `${who} leads the state directory ${dir}.`, {
    hint: 'Use that one ("onejob status"), replace it ("onejob down --leave": its jobs go on), or give another --state-dir.',
    cause,
  });
}
