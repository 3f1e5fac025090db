/**
 * The database: WAL, migrated to the newest version, one transaction at a time. `durable` says whether a commit must
 * outlive a power cut (synchronous FULL) or only a crash of the process (NORMAL).
 */
import { closeSync, fdatasync, fdatasyncSync, openSync } from 'node:fs';
import type { DatabaseSync, StatementSync } from 'node:sqlite';
import { promisify } from 'node:util';
import { OnejobError } from '../errors.ts';
import { storeFault } from './fault.ts';
import { migrations } from './migrations/index.ts';
import { openSqlite } from './sqlite.ts';

export interface Database {
  readonly path: string;
  /** The statement, prepared once per text. */
  prepare(sql: string): StatementSync;
  /** Runs `fn` in one transaction; any throw rolls all of it back. @throws OnejobError E_STATE_FULL and the like */
  transaction<T>(options: { readonly durable: boolean }, fn: () => T): T;
  /** Makes every commit so far outlive a power cut, beside whatever else goes on. @throws OnejobError E_STATE_FULL */
  sync(): Promise<void>;
  /** The same before it returns. @throws OnejobError E_STATE_FULL */
  syncNow(): void;
  /** Moves the write-ahead log into the database while there is time for it, so that no commit has to. */
  checkpoint(): void;
  close(): void;
}

/** @throws OnejobError E_STATE_CORRUPT, E_STATE_NEWER, E_STATE_FULL, E_STATE_BUSY */
export function openDatabase(path: string): Database {
  return openSqlite(path, (db) => {
    db.exec('PRAGMA journal_mode = WAL');
    db.exec('PRAGMA synchronous = NORMAL');
    // What is deleted is overwritten: a secret in a job's variables must not lie in the file after they were taken out.
    db.exec('PRAGMA secure_delete = ON');
    // 16 MiB: a checkpoint costs two syncs, so it is left to checkpoint() as long as that is called now and then.
    db.exec('PRAGMA wal_autocheckpoint = 4000');
    migrate(db, path);
    return wrap(db, path);
  });
}

function wrap(db: DatabaseSync, path: string): Database {
  const statements = new Map<string, StatementSync>();
  const begin = db.prepare('BEGIN IMMEDIATE');
  const commit = db.prepare('COMMIT');
  // Synced by hand for sync(): SQLite keeps one file for as long as a connection is open, and takes no locks on it.
  const wal = openSync(`${path}-wal`, 'r');
  let full = false;
  const setFull = (wanted: boolean): void => {
    if (full === wanted) return;
    // Not a prepared statement: SQLite applies this pragma while preparing, so running it again would do nothing (measured).
    db.exec(wanted ? 'PRAGMA synchronous = FULL' : 'PRAGMA synchronous = NORMAL');
    full = wanted;
  };
  return {
    path,
    prepare(sql) {
      const known = statements.get(sql);
      if (known !== undefined) return known;
      const made = db.prepare(sql);
      statements.set(sql, made);
      return made;
    },
    transaction({ durable }, fn) {
      if (db.isTransaction) throw new OnejobError('E_BUG', 'A store transaction was begun inside another one.');
      try {
        setFull(durable);
        begin.run();
        const result = fn();
        commit.run();
        return result;
      } catch (error) {
        // SQLite rolls back by itself on some errors, such as a full disk.
        if (db.isTransaction) db.exec('ROLLBACK');
        throw storeFault('write', path, error);
      }
    },
    sync: () =>
      promisify(fdatasync)(wal).catch((error) => {
        throw storeFault('sync', `${path}-wal`, error);
      }),
    syncNow() {
      try {
        fdatasyncSync(wal);
      } catch (error) {
        throw storeFault('sync', `${path}-wal`, error);
      }
    },
    checkpoint() {
      try {
        db.exec('PRAGMA wal_checkpoint(PASSIVE)');
      } catch (error) {
        throw storeFault('write', path, error);
      }
    },
    close() {
      if (!db.isOpen) return;
      db.close();
      closeSync(wal);
    },
  };
}

function migrate(db: DatabaseSync, path: string): void {
  const row = db.prepare('PRAGMA user_version').get();
  const version = Number(row?.user_version ?? 0);
  if (version > migrations.length) {
    throw new OnejobError(
      'E_STATE_NEWER',
      `Cannot open ${path}: it was written by a newer onejob (state version ${version}, this one knows ${migrations.length}).`,
      {
        hint: 'Install the newer onejob again, or give another --state-dir.',
      },
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
