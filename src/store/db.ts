/**
 * The database: WAL, migrated to the newest version, one transaction at a time. `durable` says whether a commit must
 * outlive a power cut (synchronous FULL) or only a crash of the process (NORMAL).
 */
import { closeSync, fdatasync, fdatasyncSync, openSync, readSync } from 'node:fs';
import { DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite';
import { promisify } from 'node:util';
import type { z } from 'zod';
import { OnejobError } from '../errors.ts';
import { storeFault } from './fault.ts';
import { migrations } from './migrations.ts';

export type Database = ReturnType<typeof wrap>;
/** What a table needs that is only read. */
export type Reader = Pick<Database, 'path' | 'prepare'>;

/** @throws OnejobError E_STATE_CORRUPT, E_STATE_NEWER, E_STATE_FULL, E_STATE_BUSY */
export function openDatabase(path: string): Database {
  try {
    refuseForeignFile(path);
    const db = new DatabaseSync(path, { timeout: 2_000 });
    try {
      db.exec('PRAGMA journal_mode = WAL');
      db.exec('PRAGMA synchronous = NORMAL');
      // What is deleted is overwritten: a secret in a job's variables must not lie in the file after they were taken out.
      db.exec('PRAGMA secure_delete = ON');
      // 16 MiB: a checkpoint costs two syncs, so it is left to checkpoint() as long as that is called now and then.
      db.exec('PRAGMA wal_autocheckpoint = 4000');
      migrate(db, path);
      return wrap(db, path);
    } catch (error) {
      db.close();
      throw error;
    }
  } catch (error) {
    throw storeFault('open', path, error);
  }
}

/** SQLite takes a short file of anything for an empty database and would write over it. */
function refuseForeignFile(path: string): void {
  let fd: number;
  try {
    fd = openSync(path, 'r');
  } catch {
    return;
  }
  try {
    const head = Buffer.alloc(16);
    const length = readSync(fd, head, 0, 16, 0);
    if (length > 0 && head.toString('latin1') !== 'SQLite format 3\0') {
      throw new OnejobError('E_STATE_CORRUPT', `Cannot open ${path}: it is not an SQLite database.`, {
        hint: `Nothing was changed. Move ${path} aside, or give another --state-dir.`,
      });
    }
  } finally {
    closeSync(fd);
  }
}

function wrap(db: DatabaseSync, path: string) {
  const statements = new Map<string, StatementSync>();
  const begin = db.prepare('BEGIN IMMEDIATE');
  const commit = db.prepare('COMMIT');
  // Synced by hand for sync(): SQLite keeps one file for as long as a connection is open, and takes no locks on it.
  const wal = openSync(`${path}-wal`, 'r');
  let full = false;
  let hasCommits = true;
  const setFull = (wanted: boolean): void => {
    if (full === wanted) return;
    // Not a prepared statement: SQLite applies this pragma while preparing, so running it again would do nothing (measured).
    db.exec(wanted ? 'PRAGMA synchronous = FULL' : 'PRAGMA synchronous = NORMAL');
    full = wanted;
  };
  return {
    path,
    /** The statement, prepared once per text. */
    prepare(sql: string): StatementSync {
      const known = statements.get(sql);
      if (known !== undefined) return known;
      const made = db.prepare(sql);
      statements.set(sql, made);
      return made;
    },
    /** Runs `fn` in one transaction; any throw rolls all of it back. @throws OnejobError E_STATE_FULL and the like */
    transaction<T>({ durable }: { readonly durable: boolean }, fn: () => T): T {
      if (db.isTransaction) throw new OnejobError('E_BUG', 'A store transaction was begun inside another one.');
      try {
        setFull(durable);
        begin.run();
        const result = fn();
        commit.run();
        hasCommits = true;
        return result;
      } catch (error) {
        // SQLite rolls back by itself on some errors, such as a full disk.
        if (db.isTransaction) db.exec('ROLLBACK');
        throw storeFault('write', path, error);
      }
    },
    /** Makes every commit so far outlive a power cut, beside whatever else goes on. @throws OnejobError E_STATE_FULL */
    sync: (): Promise<void> =>
      syncFile(wal).catch((error) => {
        throw storeFault('sync', `${path}-wal`, error);
      }),
    /** The same before it returns. @throws OnejobError E_STATE_FULL */
    syncNow(): void {
      try {
        fdatasyncSync(wal);
      } catch (error) {
        throw storeFault('sync', `${path}-wal`, error);
      }
    },
    /** Moves the write-ahead log into the database while there is time for it, so that no commit has to. */
    checkpoint(): void {
      if (!hasCommits) return;
      try {
        db.exec('PRAGMA wal_checkpoint(PASSIVE)');
        hasCommits = false;
      } catch (error) {
        throw storeFault('write', path, error);
      }
    },
    close(): void {
      if (!db.isOpen) return;
      db.close();
      closeSync(wal);
    },
  };
}

const syncFile = promisify(fdatasync);

function migrate(db: DatabaseSync, path: string): void {
  const row = db.prepare('PRAGMA user_version').get();
  const version = Number(row?.user_version ?? 0);
  if (version > migrations.length) {
    throw new OnejobError(
      'E_STATE_NEWER',
      `Cannot open ${path}: a newer onejob wrote it (state version ${version}; this onejob supports ${migrations.length}).`,
      { hint: 'Install the newer onejob again, or give another --state-dir.' },
    );
  }
  migrations.slice(version).forEach((statements, index) => {
    db.exec('BEGIN IMMEDIATE');
    try {
      for (const statement of statements) db.exec(statement);
      db.exec(`PRAGMA user_version = ${version + index + 1}`);
      db.exec('COMMIT');
    } catch (error) {
      if (db.isTransaction) db.exec('ROLLBACK');
      throw error;
    }
  });
}

/** A query whose rows are read with a schema. */
export function query<T>(db: Reader, row: z.ZodType<T>, sql: string) {
  const statement = db.prepare(sql);
  return {
    all: (...values: readonly SQLInputValue[]): T[] => statement.all(...values).map((found) => row.parse(found)),
    get(...values: readonly SQLInputValue[]): T | null {
      const found = statement.get(...values);
      return found === undefined ? null : row.parse(found);
    },
  };
}

/** Reads what a row holds. `what`: which row it is, for people. @throws OnejobError E_STATE_CORRUPT when it cannot be understood */
export function understand<T>({ path }: Reader, what: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    const why = error instanceof Error ? error.message : error;
    throw new OnejobError('E_STATE_CORRUPT', `Cannot read ${what} from ${path}: ${why}.`, {
      hint: 'A newer onejob may have written it. Nothing was changed.',
      cause: error,
    });
  }
}
