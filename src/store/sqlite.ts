/** Opens SQLite files: whole, or not at all. */
import { closeSync, openSync, readSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { OnejobError } from '../errors.ts';
import { storeFault } from './fault.ts';

/**
 * What `begin` makes of the database; should it throw, the database is closed.
 * @throws OnejobError E_STATE_CORRUPT, E_STATE_FULL, E_STATE_BUSY, and what `begin` throws
 */
export function openSqlite<T>(path: string, begin: (db: DatabaseSync) => T): T {
  try {
    refuseForeignFile(path);
    const db = new DatabaseSync(path, { timeout: 2_000 });
    try {
      return begin(db);
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
      throw new OnejobError('E_STATE_CORRUPT', `Cannot open ${path}: it is no SQLite database.`, {
        hint: `Nothing was changed. Move ${path} aside, or give another --state-dir.`,
      });
    }
  } finally {
    closeSync(fd);
  }
}
