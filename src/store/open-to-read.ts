/** The store for reading only, with or without a manager: nothing is written or migrated, and no lead is taken. */
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import type { Reader } from './db.ts';
import { databaseName } from './directory.ts';
import { translated, wrongVersion } from './fault.ts';
import { historyTable } from './history.ts';
import { jobTable } from './jobs.ts';
import { machineTable } from './machines.ts';
import { migrations } from './migrations.ts';
import { outcomeTable } from './outcomes.ts';
import { serviceJobTable } from './service-jobs.ts';
import { slotTable } from './slots.ts';

/**
 * Without state an empty one. @throws OnejobError E_STATE_CORRUPT, E_STATE_DIR, E_STATE_NEWER, and E_STATE_OLDER until a manager has
 * migrated it
 */
export function openToRead(stateDir: string) {
  return reading(stateDir, (path, isThere) => {
    const db = new DatabaseSync(isThere ? asItIs(path) : ':memory:', { readOnly: isThere, timeout: 2_000 });
    try {
      if (!isThere) for (const statement of migrations.flat()) db.exec(statement);
      const version = isThere ? Number(db.prepare('PRAGMA user_version').get()?.user_version ?? 0) : migrations.length;
      if (version !== migrations.length) throw wrongVersion('read', path, version);
      const reader = { path, prepare: (sql: string) => db.prepare(sql) };
      return {
        jobs: jobTable(reader),
        history: historyTable(reader),
        outcomes: outcomeTable(reader),
        serviceJobs: serviceJobTable(reader),
        slots: slotTable(reader, '').all,
        machines: machineTable(reader),
        /** The id of the installation; null without state. */
        owner: ownerOf(reader),
        [Symbol.dispose]: () => db.close(),
      };
    } catch (error) {
      db.close();
      throw error;
    }
  });
}

function ownerOf(reader: Reader): string | null {
  const found = reader.prepare("SELECT value FROM meta WHERE key = 'owner'").get();
  return found === undefined ? null : String(found.value);
}

/** What `read` returns for the database of a state directory. */
function reading<T>(stateDir: string, read: (path: string, isThere: boolean) => T): T {
  const path = join(stateDir, databaseName);
  // A forbidden file is an error; only a missing one means no state.
  return translated('read', path, () => read(path, statSync(path, { throwIfNoEntry: false }) !== undefined));
}

/** Even reading a properly closed database makes SQLite create files next to it, which would belong to the reader, such as root. */
function asItIs(path: string): URL {
  const url = pathToFileURL(path);
  if (!existsSync(`${path}-wal`)) url.searchParams.set('immutable', '1');
  return url;
}

const row = z.object({ service: z.string(), name: z.string() });

/**
 * What the last manager left at CI services: registrations that are not removed, oldest first; empty without state. Unlike
 * `openToRead` it reads a database of any version.
 * @throws OnejobError E_STATE_CORRUPT and the like
 */
export function registrationsLeft(stateDir: string) {
  return reading(stateDir, (path, isThere) => {
    if (!isThere) return [];
    using db = new DatabaseSync(path, { readOnly: true, timeout: 2_000 });
    // A version without names never wrote a registration.
    const columns = db.prepare('SELECT name FROM pragma_table_info(?)').all('registrations');
    if (!columns.some(({ name }) => name === 'name')) return [];
    const left = db.prepare("SELECT service, name FROM registrations WHERE state <> 'removed' ORDER BY service, intent_at");
    return left.all().map((found) => row.parse(found));
  });
}
