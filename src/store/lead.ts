/**
 * One manager per state directory. The lead is an exclusive SQLite lock on a file of its own, held in an open
 * transaction: a POSIX lock, so it dies with the process however that ends, is not inherited by children, and stays while
 * the process is stopped (SIGSTOP). The pid beside it is for people only; the lock decides.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { z } from 'zod';
import { OnejobError } from '../errors.ts';
import { storeFault } from './fault.ts';

export interface Lead {
  release(): void;
}

const leader = z.object({ pid: z.int().positive(), temporary: z.boolean().default(false) });

/** Whether the manager that leads, or led last, ends by itself. */
export function leaderIsTemporary(dir: string): boolean {
  try {
    return leader.parse(JSON.parse(readFileSync(pidFile(dir), 'utf8'))).temporary;
  } catch {
    // It is just coming or going.
    return true;
  }
}

/** Pid of the manager that leads (or last led) this state directory; null when nobody wrote one. */
export function leaderPid(dir: string): number | null {
  try {
    return leader.parse(JSON.parse(readFileSync(pidFile(dir), 'utf8'))).pid;
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
  let db: DatabaseSync | null = null;
  try {
    db = new DatabaseSync(path, { timeout: 0 });
    db.exec('BEGIN EXCLUSIVE');
    writeFileSync(pidFile(dir), `${JSON.stringify({ pid: process.pid, temporary })}\n`);
  } catch (error) {
    db?.close();
    const fault = storeFault('take the lock', path, error);
    if (!(fault instanceof OnejobError) || fault.code !== 'E_STATE_BUSY') throw fault;
    const pid = leaderPid(dir);
    throw new OnejobError('E_STATE_LED', `Another onejob (pid ${pid ?? 'unknown'}) leads the state directory ${dir}.`, {
      hint: 'Use that one ("onejob status"), end it with "onejob down", or give another --state-dir.',
      cause: error,
    });
  }
  const held = db;
  return {
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
