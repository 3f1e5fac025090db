/**
 * What CI services were asked to know of our agents. The intent is written before the service is asked, so that a
 * registration made right before a crash is found and removed (S4).
 */
import { z } from 'zod';
import type { AgentId } from '../core/slot.ts';
import type { Database } from './db.ts';

export interface StoredRegistration {
  readonly agent: AgentId;
  readonly service: string;
  readonly state: 'intent' | 'made' | 'removed';
  /** Id at the service; null while it is an intent, or when the service keeps none. */
  readonly remote: string | null;
}

/** Times are wall clock, ms since the epoch. A state never goes back. */
export interface RegistrationTable {
  intend(agent: AgentId, service: string, at: number): void;
  made(agent: AgentId, remote: string | null, at: number): void;
  removed(agent: AgentId, at: number): void;
  /** Those not removed yet. */
  open(): StoredRegistration[];
  get(agent: AgentId): StoredRegistration | null;
  /** Forgets those removed before `time`. */
  prune(time: number): void;
}

const row = z.object({
  agent: z.string(),
  service: z.string(),
  state: z.enum(['intent', 'made', 'removed']),
  remote: z.string().nullable(),
});

export function registrationTable(db: Database): RegistrationTable {
  const columns = 'agent, service, state, remote';
  const intend = db.prepare("INSERT OR IGNORE INTO registrations (agent, service, state, intent_at) VALUES (?, ?, 'intent', ?)");
  const made = db.prepare("UPDATE registrations SET state = 'made', remote = ?, made_at = ? WHERE agent = ? AND state = 'intent'");
  const removed = db.prepare("UPDATE registrations SET state = 'removed', removed_at = ? WHERE agent = ? AND state <> 'removed'");
  const open = db.prepare(`SELECT ${columns} FROM registrations WHERE state <> 'removed' ORDER BY intent_at`);
  const get = db.prepare(`SELECT ${columns} FROM registrations WHERE agent = ?`);
  const prune = db.prepare("DELETE FROM registrations WHERE state = 'removed' AND removed_at < ?");
  return {
    intend(agent, service, at) {
      intend.run(agent, service, at);
    },
    made(agent, remote, at) {
      made.run(remote, at, agent);
    },
    removed(agent, at) {
      removed.run(at, agent);
    },
    open: () => open.all().map((found) => row.parse(found)),
    get(agent) {
      const found = get.get(agent);
      return found === undefined ? null : row.parse(found);
    },
    prune(time) {
      prune.run(time);
    },
  };
}
