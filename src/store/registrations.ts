/**
 * Registrations of our agents at CI services. The intent is written before the service is asked, so a registration from right
 * before a crash is found and removed (S4).
 */
import { z } from 'zod';
import type { AgentId } from '../core/slot.ts';
import { type Database, query } from './db.ts';

const row = z.object({
  agent: z.string(),
  /** Name of the service in the config. */
  service: z.string(),
  /** Its location in the service's own words. */
  place: z.string(),
  /** Its name at the service. */
  name: z.string(),
  state: z.enum(['intent', 'made', 'removed']),
  /** Never goes online, and stays when the manager ends. */
  placeholder: z.int().transform((value) => value === 1),
  /** Id at the service; null for an intent, or if the service has none. */
  remote: z.string().nullable(),
  /** When it was made, or last used if that is recorded. */
  usedAt: z.int().nullable(),
});

export type StoredRegistration = Readonly<z.infer<typeof row>>;
type Intent = Pick<StoredRegistration, 'agent' | 'service' | 'place' | 'name' | 'placeholder'>;

/** Times are wall clock, ms since the epoch. Removed entries never return. */
export interface RegistrationTable {
  /** Must be written before the service is asked, and again before each retry. */
  intend(entry: Intent, at: number): void;
  made(agent: AgentId, remote: string | null, at: number): void;
  /** Records that it is still used, for entries that outlive agents. */
  used(agent: AgentId, at: number): void;
  removed(agent: AgentId, at: number): void;
  /** Entries of a service that are not removed yet, oldest first. */
  open(service: string): StoredRegistration[];
  /** Names of services with entries that are not removed yet. */
  services(): string[];
  get(agent: AgentId): StoredRegistration | null;
  /** Deletes entries that were removed before `time`. */
  prune(time: number): void;
  forget(agent: AgentId): void;
}

export function registrationTable(db: Database): RegistrationTable {
  const columns = 'agent, service, place, name, state, placeholder, remote, made_at AS usedAt';
  const intend = db.prepare(
    `INSERT INTO registrations (agent, service, place, name, placeholder, state, intent_at) VALUES (?, ?, ?, ?, ?, 'intent', ?)
    ON CONFLICT (agent) DO UPDATE SET place = excluded.place, name = excluded.name, state = 'intent', remote = NULL, made_at = NULL
    WHERE state <> 'removed'`,
  );
  const made = db.prepare("UPDATE registrations SET state = 'made', remote = ?, made_at = ? WHERE agent = ? AND state = 'intent'");
  const used = db.prepare("UPDATE registrations SET made_at = ? WHERE agent = ? AND state = 'made'");
  const removed = db.prepare("UPDATE registrations SET state = 'removed', removed_at = ? WHERE agent = ? AND state <> 'removed'");
  const open = query(db, row, `SELECT ${columns} FROM registrations WHERE service = ? AND state <> 'removed' ORDER BY intent_at`);
  const services = db.prepare("SELECT DISTINCT service FROM registrations WHERE state <> 'removed' ORDER BY service");
  const get = query(db, row, `SELECT ${columns} FROM registrations WHERE agent = ?`);
  const prune = db.prepare("DELETE FROM registrations WHERE state = 'removed' AND removed_at < ?");
  const forget = db.prepare('DELETE FROM registrations WHERE agent = ?');
  return {
    intend: ({ agent, service, place, name, placeholder }, at) =>
      void intend.run(agent, service, place, name, placeholder ? 1 : 0, at),
    made: (agent, remote, at) => void made.run(remote, at, agent),
    used: (agent, at) => void used.run(at, agent),
    removed: (agent, at) => void removed.run(at, agent),
    open: (service) => open.all(service),
    services: () => services.all().map((found) => String(found.service)),
    get: (agent) => get.get(agent),
    prune: (time) => void prune.run(time),
    forget: (agent) => void forget.run(agent),
  };
}
