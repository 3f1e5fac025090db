/**
 * The broker's own small database. What it shows of an agent lies in clear, tokens and the job itself are sealed. A row that
 * is deleted is overwritten: nothing of an agent that is over can be read from the file.
 */
import { chmodSync } from 'node:fs';
import { join } from 'node:path';
import type { DatabaseSync } from 'node:sqlite';
import { OnejobError } from '../../../errors.ts';
import { storeFault } from '../../../store/fault.ts';
import { openSqlite } from '../../../store/sqlite.ts';

export interface StoredAgent {
  readonly id: string;
  /** JSON. */
  readonly shown: string;
  readonly sealed: Uint8Array;
}

export interface BrokerStore {
  all(): readonly StoredAgent[];
  /**
   * Writes a row; `sealed` null leaves what is there. `durable`: it outlives a power cut, else only the end of this process.
   * @throws OnejobError E_STATE_FULL and the like; then nothing has changed
   */
  put(row: { readonly id: string; readonly shown: string; readonly sealed: Uint8Array | null }, durable: boolean): void;
  remove(id: string): void;
  /** A fact about the broker itself, such as its port; null when there is none. */
  fact(name: string): string | null;
  setFact(name: string, value: string): void;
  close(): void;
}

const newest = 1;
const schema = `
  CREATE TABLE agents (id TEXT PRIMARY KEY, shown TEXT NOT NULL, sealed BLOB NOT NULL) STRICT;
  CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
  PRAGMA user_version = ${newest};
`;

/**
 * @param dir the broker's own folder, there already
 * @throws OnejobError E_STATE_CORRUPT, E_STATE_NEWER, E_STATE_FULL, E_STATE_BUSY
 */
export function openBrokerStore(dir: string): BrokerStore {
  const path = join(dir, 'broker.db');
  return openSqlite(path, (db) => {
    chmodSync(path, 0o600);
    db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON');
    prepare(db, path);
    return wrap(db, path);
  });
}

function prepare(db: DatabaseSync, path: string): void {
  const version = Number(db.prepare('PRAGMA user_version').get()?.user_version ?? 0);
  if (version > newest) {
    throw new OnejobError('E_STATE_NEWER', `Cannot open ${path}: it was written by a newer onejob (version ${version}).`, {
      hint: 'Install the newer onejob again, or give another --state-dir.',
    });
  }
  if (version === 0) db.exec(`BEGIN IMMEDIATE; ${schema} COMMIT;`);
}

function wrap(db: DatabaseSync, path: string): BrokerStore {
  const select = db.prepare('SELECT id, shown, sealed FROM agents ORDER BY rowid');
  const put = db.prepare(
    `INSERT INTO agents (id, shown, sealed) VALUES (?, ?, ?)
     ON CONFLICT (id) DO UPDATE SET shown = excluded.shown, sealed = excluded.sealed`,
  );
  const show = db.prepare('UPDATE agents SET shown = ? WHERE id = ?');
  const remove = db.prepare('DELETE FROM agents WHERE id = ?');
  const fact = db.prepare('SELECT value FROM facts WHERE name = ?');
  const setFact = db.prepare(
    'INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value',
  );
  let isFull = false;
  const write = (durable: boolean, fn: () => void): void => {
    try {
      if (isFull !== durable) db.exec(`PRAGMA synchronous = ${durable ? 'FULL' : 'NORMAL'}`);
      isFull = durable;
      fn();
    } catch (error) {
      throw storeFault('write', path, error);
    }
  };
  return {
    all: () =>
      select.all().map(({ id, shown, sealed }) => ({
        id: String(id),
        shown: String(shown),
        sealed: sealed instanceof Uint8Array ? sealed : new Uint8Array(),
      })),
    put: ({ id, shown, sealed }, durable) =>
      write(durable, () => void (sealed === null ? show.run(shown, id) : put.run(id, shown, sealed))),
    remove: (id) =>
      write(true, () => {
        remove.run(id);
        // Until a checkpoint the log still holds the row as it was.
        db.exec('PRAGMA wal_checkpoint(TRUNCATE)');
      }),
    fact(name) {
      const value = fact.get(name)?.value;
      return typeof value === 'string' ? value : null;
    },
    setFact: (name, value) => write(true, () => void setFact.run(name, value)),
    close() {
      if (db.isOpen) db.close();
    },
  };
}
