/**
 * One manager per state directory. The lead is an exclusive SQLite lock on its own file, held in an open transaction. It is a
 * POSIX lock: it ends with the process, however that ends, is not inherited by children, and stays while the process is stopped
 * (SIGSTOP). The pid file is for people only; the lock decides.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { attempt, hasCode, OnejobError } from '../base/errors.ts';
import { parseStat } from '../system/process-identity.ts';
import { storeFault } from './fault.ts';

export interface Lead {
  /** Records where the leader listens, for clients of this state directory; null: nowhere. */
  readonly listens: (socket: string | null) => void;
  release(): void;
}

/** The pid file, as JSON. Every command reads it, so it is checked by hand: loading zod would take longer than the command. */
interface Leader {
  readonly pid: number;
  /** Whether it ends by itself. */
  readonly temporary: boolean;
  /** Missing in older files. */
  readonly started: string | null;
  /** Where it listens; null: nowhere. Missing in older files. */
  readonly socket: string | null;
}

/** @throws SyntaxError, TypeError for anything else than such a file */
function parseLeader(text: string): Leader {
  const { pid, temporary, started, socket } = JSON.parse(text) as { readonly [key in keyof Leader]?: unknown };
  if (typeof pid !== 'number' || !Number.isSafeInteger(pid) || pid <= 0) throw new TypeError('no pid');
  const textOrNull = (value: unknown) => (typeof value === 'string' ? value : null);
  return { pid, temporary: temporary === true, started: textOrNull(started), socket: textOrNull(socket) };
}

/**
 * The manager that leads a state directory, or led it last and was killed; null if there is none, or it is unknown. Only the lock
 * decides who leads: this helps to find it, and informs people. `isAlive`: whether that very process exists; false if it cannot
 * be seen, for example from another container.
 */
export function leaderOf(dir: string) {
  return attempt(() => {
    const { pid, temporary, started, socket } = parseLeader(readFileSync(pidFile(dir), 'utf8'));
    return { pid, temporary, socket, isAlive: started !== null && started === startOf(pid) };
  });
}

/**
 * When a process started, in clock ticks after boot: another process may have the same pid. null for a zombie, and for a pid of
 * another container.
 */
export function startOf(pid: number): string | null {
  const found = attempt(() => parseStat(readFileSync(`/proc/${pid}/stat`, 'utf8')));
  return found === null || 'ZX'.includes(found.state) ? null : found.start;
}

/** Connections of leads. SQLite closes one that is collected as garbage, and the lock would go with it. */
const leads = new Set<DatabaseSync>();

/**
 * Takes the lead of the state directory.
 * @throws OnejobError E_STATE_LED if another process, or another store in this one, has it
 */
export function takeLead(dir: string, { temporary = false }: { readonly temporary?: boolean } = {}): Lead {
  const path = join(dir, 'lead.db');
  const tell = (socket: string | null): void => {
    const fresh = `${pidFile(dir)}.new`;
    writeFileSync(fresh, `${JSON.stringify({ pid: process.pid, temporary, started: startOf(process.pid), socket })}\n`);
    renameSync(fresh, pidFile(dir));
  };
  let db: DatabaseSync | null = null;
  try {
    db = new DatabaseSync(path, { timeout: 0 });
    db.exec('BEGIN EXCLUSIVE');
    tell(null);
  } catch (error) {
    db?.close();
    const fault = storeFault('take the lock', path, error);
    throw hasCode(fault, 'E_STATE_BUSY') ? isLed(dir, error) : fault;
  }
  const held = db;
  leads.add(held);
  return {
    listens(socket) {
      // On a full disk clients look at the usual address.
      attempt(() => tell(socket));
    },
    release() {
      if (!held.isOpen) return;
      // The file is removed first: once the lock is free, it may belong to the next manager.
      // One that stays on a disk that is read-only names a process that is gone, so nobody believes it.
      attempt(() => rmSync(pidFile(dir), { force: true }));
      held.close();
      leads.delete(held);
    },
  };
}

function pidFile(dir: string): string {
  return join(dir, 'lead.json');
}

function isLed(dir: string, cause: unknown): OnejobError {
  const found = leaderOf(dir);
  const who = `${found?.temporary === true ? 'A temporary' : 'Another'} onejob (pid ${found?.pid ?? 'unknown'})`;
  const hint =
    'Use that one ("onejob status"), replace it ("onejob down --leave": its jobs continue), or give another --state-dir.';
  return new OnejobError('E_STATE_LED', `${who} leads the state directory ${dir}.`, { hint, cause });
}
