/**
 * The database: WAL, migrated to the newest version, one transaction at a time. `durable`: a commit survives a power cut
 * (synchronous FULL), not only a crash of the process (NORMAL).
 */
import { closeSync, fdatasync, fdatasyncSync, openSync, readSync } from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite';
import { promisify } from 'node:util';
import type { z } from 'zod';
import { attempt, messageOf, OnejobError } from '../base/errors.ts';
import { syncFolder } from '../system/files.ts';
import { storeFault, translated, wrongVersion } from './fault.ts';
import { migrations } from './migrations.ts';
import { createSyncs, type Syncs } from './syncs.ts';

export interface Database extends Pick<Syncs, 'sync' | 'syncNow'> {
  readonly path: string;
  prepare(sql: string): StatementSync;
  /** Runs `fn` in one transaction; any error rolls it back. @throws OnejobError E_STATE_FULL and the like */
  readonly transaction: <T>(how: { readonly durable: boolean }, fn: () => T) => T;
  /** Moves the write-ahead log into the database in a quiet moment, so that no commit has to. */
  readonly checkpoint: () => void;
  close(): void;
}
/** What a read-only table needs. */
export type Reader = Pick<Database, 'path' | 'prepare'>;

/** @throws OnejobError E_STATE_CORRUPT, E_STATE_NEWER, E_STATE_FULL, E_STATE_BUSY */
export function openDatabase(path: string): Database {
  return translated('open', path, () => {
    refuseForeignFile(path);
    const db = new DatabaseSync(path, { timeout: 2_000 });
    try {
      db.exec('PRAGMA journal_mode = WAL');
      db.exec('PRAGMA synchronous = NORMAL');
      // Deleted data is overwritten: secrets that were removed from a job's variables must not stay in the file.
      db.exec('PRAGMA secure_delete = ON');
      // 16 MiB: a checkpoint costs two syncs, so it is left to checkpoint() while that is called regularly.
      db.exec('PRAGMA wal_autocheckpoint = 4000');
      migrate(db, path);
      return wrap(db, path);
    } catch (error) {
      db.close();
      throw error;
    }
  });
}

/** SQLite would take a short file of anything for an empty database and overwrite it. */
function refuseForeignFile(path: string): void {
  const fd = attempt(() => openSync(path, 'r'));
  if (fd === null) return;
  try {
    const head = Buffer.alloc(16);
    const length = readSync(fd, head, 0, 16, 0);
    if (length > 0 && head.toString('latin1') !== 'SQLite format 3\0') {
      const hint = `Nothing was changed. Move ${path} aside, or give another --state-dir.`;
      throw new OnejobError('E_STATE_CORRUPT', `Cannot open ${path}: it is not an SQLite database.`, { hint });
    }
  } finally {
    closeSync(fd);
  }
}

function wrap(db: DatabaseSync, path: string): Database {
  const begin = db.prepare('BEGIN IMMEDIATE');
  const commit = db.prepare('COMMIT');
  // For sync(). SQLite keeps this one file while a connection is open, and never locks it.
  const wal = openSync(`${path}-wal`, 'r');
  // What an earlier process has committed may not be on disk, and without its name, or its folder's, a synced log is lost all the same.
  translated('sync', `${path}-wal`, () => fdatasyncSync(wal));
  for (const folder of [dirname(path), dirname(dirname(path))]) syncFolder(folder);
  const syncs = createSyncs({
    sync: () =>
      syncFile(wal).catch((error) => {
        throw storeFault('sync', `${path}-wal`, error);
      }),
    syncNow: () => translated('sync', `${path}-wal`, () => fdatasyncSync(wal)),
  });
  let full = false;
  let hasCommits = true;
  const setFull = (wanted: boolean): void => {
    if (full === wanted) return;
    // Not a prepared statement: SQLite applies this pragma while preparing, so running it again has no effect (measured).
    db.exec(wanted ? 'PRAGMA synchronous = FULL' : 'PRAGMA synchronous = NORMAL');
    full = wanted;
  };
  return {
    path,
    prepare: (sql) => db.prepare(sql),
    transaction({ durable }, fn) {
      if (db.isTransaction) throw new OnejobError('E_BUG', 'A store transaction was begun inside another one.');
      try {
        setFull(durable);
        begin.run();
        const result = fn();
        commit.run();
        hasCommits = true;
        syncs.committed({ durable });
        return result;
      } catch (error) {
        // After some errors, such as a full disk, SQLite has rolled back already.
        if (db.isTransaction) db.exec('ROLLBACK');
        throw storeFault('write', path, error);
      }
    },
    sync: syncs.sync,
    syncNow: syncs.syncNow,
    checkpoint() {
      if (!hasCommits) return;
      translated('write', path, () => db.exec('PRAGMA wal_checkpoint(PASSIVE)'));
      hasCommits = false;
    },
    close() {
      if (!db.isOpen) return;
      db.close();
      closeSync(wal);
    },
  };
}

const syncFile = (file: number): Promise<void> => promisify(fdatasync)(file);

function migrate(db: DatabaseSync, path: string): void {
  const row = db.prepare('PRAGMA user_version').get();
  const version = Number(row?.user_version ?? 0);
  if (version > migrations.length) throw wrongVersion('open', path, version);
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

/** A query whose rows are parsed with a schema. */
export interface Query<T> {
  all(...values: readonly SQLInputValue[]): T[];
  /** null: there is no such row. */
  get(...values: readonly SQLInputValue[]): T | null;
}

export function query<T>(db: Reader, row: z.ZodType<T>, sql: string): Query<T> {
  const statement = db.prepare(sql);
  return {
    all: (...values) => statement.all(...values).map((found) => row.parse(found)),
    get(...values) {
      const found = statement.get(...values);
      return found === undefined ? null : row.parse(found);
    },
  };
}

/** Parses a row. `what` names it for people. @throws OnejobError E_STATE_CORRUPT if it is invalid */
export function understand<T>({ path }: Reader, what: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    const hint = 'A newer onejob may have written it. Nothing was changed.';
    throw new OnejobError('E_STATE_CORRUPT', `Cannot read ${what} from ${path}: ${messageOf(error)}.`, { hint, cause: error });
  }
}
