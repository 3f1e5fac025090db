/** What the books of a state directory say is still there: slots, leases, registrations, files, sockets. Reads only. */
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { lockDirectory, locksIn } from '../../src/gpu/lock.ts';
import { databaseName } from '../../src/store/directory.ts';
import { slotSchema } from '../../src/store/slots.ts';

export interface StateThing {
  readonly kind: 'slot' | 'lease' | 'registration' | 'job' | 'file' | 'socket';
  readonly id: string;
  readonly detail: string;
}

/** Folders of a state directory that hold what lives only as long as an agent or a job's start. */
const passing = ['agents/agents', 'agents/exits', 'workspaces'];

/** The installation's id; null when the directory has no database yet. */
export function ownerOf(stateDir: string): string | null {
  const row = ask(stateDir, "SELECT value FROM meta WHERE key = 'owner'")[0];
  return row === undefined ? null : String(row.value);
}

/** Everything the books still hold that a stopped manager should have given up. */
export function stateThings(stateDir: string): StateThing[] {
  const slots = ask(stateDir, 'SELECT key, body FROM slots').flatMap(({ key, body }): StateThing[] => {
    const slot = slotSchema.safeParse(JSON.parse(String(body)));
    if (!slot.success) return [{ kind: 'slot', id: String(key), detail: 'cannot be read' }];
    const { standby, agent, leaving } = slot.data;
    if (standby.kind === 'none' && agent.kind === 'free' && leaving.length === 0) return [];
    return [{ kind: 'slot', id: String(key), detail: `standby ${standby.kind}, agent ${agent.kind}, leaving ${leaving.length}` }];
  });
  const owner = ownerOf(stateDir);
  const leases = locksIn(lockDirectory()).flatMap(({ uuid, holder }): StateThing[] =>
    owner !== null && holder?.owner === owner ? [{ kind: 'lease', id: uuid, detail: `of pid ${holder.pid}` }] : [],
  );
  const open = "SELECT agent, service, state FROM registrations WHERE state <> 'removed' AND placeholder = 0";
  const registrations = ask(stateDir, open).map(
    ({ agent, service, state }): StateThing => ({ kind: 'registration', id: String(agent), detail: `${state} at ${service}` }),
  );
  const jobs = ask(stateDir, "SELECT id, json_extract(progress, '$.state') AS state FROM jobs WHERE done = 0").flatMap(
    ({ id, state }): StateThing[] => (state === 'queued' ? [] : [{ kind: 'job', id: String(id), detail: `still ${state}` }]),
  );
  return [...slots, ...leases, ...registrations, ...jobs, ...files(stateDir)];
}

function files(stateDir: string): StateThing[] {
  const inside = passing.flatMap((folder) =>
    entries(join(stateDir, folder)).map(
      (name): StateThing => ({ kind: 'file', id: `${folder}/${name}`, detail: 'of an agent or job' }),
    ),
  );
  const lead = existsSync(join(stateDir, 'lead.json'));
  return [
    ...inside,
    ...entries(stateDir)
      .filter((name) => isSocket(join(stateDir, name)))
      .map((name): StateThing => ({ kind: 'socket', id: name, detail: 'in the state directory' })),
    ...(lead ? [{ kind: 'file', id: 'lead.json', detail: 'of a manager that did not end by itself' } as const] : []),
  ];
}

export function isSocket(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isSocket() ?? false;
}

function entries(dir: string): string[] {
  return existsSync(dir) ? readdirSync(dir) : [];
}

/** Anyone who closes the database last removes what belongs to it, and a reader may come in between. */
function ask(stateDir: string, sql: string, tries = 5): Record<string, unknown>[] {
  try {
    return askOnce(stateDir, sql);
  } catch (error) {
    if (tries <= 1 || !(error instanceof Error && error.message.includes('disk I/O error'))) throw error;
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 100);
    return ask(stateDir, sql, tries - 1);
  }
}

function askOnce(stateDir: string, sql: string): Record<string, unknown>[] {
  const path = join(stateDir, databaseName);
  if (!existsSync(path)) return [];
  const db = new DatabaseSync(path, { readOnly: true, timeout: 2_000 });
  try {
    return db.prepare(sql).all();
  } catch (error) {
    // A database that was never migrated holds nothing.
    if (error instanceof Error && error.message.includes('no such table')) return [];
    throw error;
  } finally {
    db.close();
  }
}
