/** The store for whoever only looks, without a manager or beside one: nothing is written, no lead is taken, nothing is migrated. */
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { pathToFileURL } from 'node:url';
import { z } from 'zod';
import { OnejobError } from '../errors.ts';
import { databaseName } from './directory.ts';
import { storeFault } from './fault.ts';
import { type HistoryTable, historyTable } from './history.ts';
import { type JobTable, jobTable } from './jobs.ts';
import { migrations } from './migrations.ts';
import { type ServiceJobTable, serviceJobTable } from './service-jobs.ts';
import { type StoredSlot, slotTable } from './slots.ts';

export interface ReadStore extends Disposable {
  readonly dir: string;
  readonly jobs: Pick<JobTable, 'get' | 'open' | 'list'>;
  readonly history: Pick<HistoryTable, 'get' | 'ofJob' | 'ofSlot'>;
  readonly serviceJobs: Pick<ServiceJobTable, 'get' | 'list'>;
  readonly slots: () => StoredSlot[];
}

/** Null where there is no state. @throws OnejobError E_STATE_CORRUPT, E_STATE_DIR, E_STATE_NEWER, and E_STATE_OLDER until a manager has migrated it */
export function openToRead(stateDir: string): ReadStore | null {
  const path = join(stateDir, databaseName);
  try {
    // One that may not be looked at is not one that is not there.
    if (statSync(path, { throwIfNoEntry: false }) === undefined) return null;
    const db = new DatabaseSync(asItIs(path), { readOnly: true, timeout: 2_000 });
    try {
      checkVersion(Number(db.prepare('PRAGMA user_version').get()?.user_version ?? 0), path);
      const reader = { path, prepare: (sql: string) => db.prepare(sql) };
      const slots = slotTable(reader, '');
      return {
        dir: stateDir,
        jobs: jobTable(reader),
        history: historyTable(reader),
        serviceJobs: serviceJobTable(reader),
        slots: () => slots.all(),
        [Symbol.dispose]: () => db.close(),
      };
    } catch (error) {
      db.close();
      throw error;
    }
  } catch (error) {
    throw storeFault('read', path, error);
  }
}

/** Of a database that was closed well SQLite makes files beside it even to read; they would belong to whoever looks, such as root. */
function asItIs(path: string): URL {
  const url = pathToFileURL(path);
  if (!existsSync(`${path}-wal`)) url.searchParams.set('immutable', '1');
  return url;
}

function checkVersion(version: number, path: string): void {
  if (version === migrations.length) return;
  const [code, what, hint] =
    version > migrations.length
      ? (['E_STATE_NEWER', 'a newer', 'Install the newer onejob again, or give another --state-dir.'] as const)
      : ([
          'E_STATE_OLDER',
          'an older',
          'Start a daemon of this version once with "onejob up": it brings the state up to date.',
        ] as const);
  throw new OnejobError(
    code,
    `Cannot read ${path}: ${what} onejob wrote it (state version ${version}; this onejob supports ${migrations.length}).`,
    { hint },
  );
}

const row = z.object({ service: z.string(), name: z.string() });
type LeftRegistration = z.infer<typeof row>;

/**
 * What a manager that has ended left at CI services: registrations that are not removed, oldest first; none where there is no state.
 * Unlike `openToRead` it reads a database of any version.
 * @throws OnejobError E_STATE_CORRUPT and the like
 */
export function registrationsLeft(stateDir: string): LeftRegistration[] {
  const path = join(stateDir, databaseName);
  try {
    // One that may not be looked at is not one that is not there.
    if (statSync(path, { throwIfNoEntry: false }) === undefined) return [];
    using db = new DatabaseSync(path, { readOnly: true, timeout: 2_000 });
    // Of a version that knew no names there is none: it never wrote any.
    const columns = db.prepare('SELECT name FROM pragma_table_info(?)').all('registrations');
    if (!columns.some(({ name }) => name === 'name')) return [];
    const left = db.prepare("SELECT service, name FROM registrations WHERE state <> 'removed' ORDER BY service, intent_at");
    return left.all().map((found) => row.parse(found));
  } catch (error) {
    throw storeFault('read', path, error);
  }
}
