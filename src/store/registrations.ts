/**
 * What CI services were asked to know of our agents. The intent is written before the service is asked, so that a
 * registration made right before a crash is found and removed (S4).
 */
import { z } from 'zod';
import type { AgentId } from '../core/slot.ts';
import type { Database } from './db.ts';

export interface StoredRegistration {
  readonly agent: AgentId;
  /** Name of the service in the config. */
  readonly service: string;
  /** Where at the service it is, in the service's own words. */
  readonly place: string;
  /** As the service shows it. */
  readonly name: string;
  readonly state: 'intent' | 'made' | 'removed';
  /** Never goes online, and stays when the manager ends. */
  readonly placeholder: boolean;
  /** Id at the service; null while it is an intent, or when the service keeps none. */
  readonly remote: string | null;
  /** When it was made, or was used last if anybody says so. */
  readonly usedAt: number | null;
}

/** Times are wall clock, ms since the epoch. What was removed never comes back. */
export interface RegistrationTable {
  /** To be written before the service is asked; once more before it is asked again. */
  intend(registration: Pick<StoredRegistration, 'agent' | 'service' | 'place' | 'name' | 'placeholder'>, at: number): void;
  made(agent: AgentId, remote: string | null, at: number): void;
  /** It is still of use: for those that outlive agents. */
  used(agent: AgentId, at: number): void;
  removed(agent: AgentId, at: number): void;
  /** Those of a service that are not removed yet, oldest first. */
  open(service: string): StoredRegistration[];
  /** Names of the services with some that are not removed yet. */
  services(): string[];
  get(agent: AgentId): StoredRegistration | null;
  /** Forgets those removed before `time`. */
  prune(time: number): void;
  /** As if it had never been. */
  forget(agent: AgentId): void;
}

const row = z.object({
  agent: z.string(),
  service: z.string(),
  place: z.string(),
  name: z.string(),
  state: z.enum(['intent', 'made', 'removed']),
  placeholder: z.int().transform((value) => value === 1),
  remote: z.string().nullable(),
  usedAt: z.int().nullable(),
});

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
  const open = db.prepare(`SELECT ${columns} FROM registrations WHERE service = ? AND state <> 'removed' ORDER BY intent_at`);
  const services = db.prepare("SELECT DISTINCT service FROM registrations WHERE state <> 'removed' ORDER BY service");
  const get = db.prepare(`SELECT ${columns} FROM registrations WHERE agent = ?`);
  const prune = db.prepare("DELETE FROM registrations WHERE state = 'removed' AND removed_at < ?");
  const forget = db.prepare('DELETE FROM registrations WHERE agent = ?');
  return {
    intend({ agent, service, place, name, placeholder }, at) {
      intend.run(agent, service, place, name, placeholder ? 1 : 0, at);
    },
    made(agent, remote, at) {
      made.run(remote, at, agent);
    },
    used(agent, at) {
      used.run(at, agent);
    },
    removed(agent, at) {
      removed.run(at, agent);
    },
    open: (service) => open.all(service).map((found) => row.parse(found)),
    services: () => services.all().map((found) => String(found.service)),
    get(agent) {
      const found = get.get(agent);
      return found === undefined ? null : row.parse(found);
    },
    prune(time) {
      prune.run(time);
    },
    forget(agent) {
      forget.run(agent);
    },
  };
}
