/**
 * What a manager that has ended left at CI services, for whoever asks without being one: the database is opened to be read only, and
 * its lead is not taken.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { z } from 'zod';
import { databaseName } from './directory.ts';
import { storeFault } from './fault.ts';

const row = z.object({ service: z.string(), name: z.string() });
export type LeftRegistration = z.infer<typeof row>;

/** Registrations that are not removed, oldest first; none where there is no state. @throws OnejobError E_STATE_CORRUPT and the like */
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
