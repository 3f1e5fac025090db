/** Sandboxes of failed jobs that are kept for people, until a time. A row is written before its sandbox is kept, and outlives it. */
import { z } from 'zod';
import type { AgentId } from '../core/slot.ts';
import type { Recipe } from '../ports/runtime.ts';
import { type Database, query, understand } from './db.ts';

const held = z.object({
  agent: z.string(),
  job: z.string(),
  pool: z.string(),
  slot: z.string(),
  /** The agent's name. */
  name: z.string(),
  runtime: z.string(),
  /** What its sandbox was made from. */
  recipe: z.custom<Recipe>((value) => typeof value === 'object' && value !== null),
  /** Wall clock, ms since the epoch. */
  since: z.number(),
  /** When it is removed; 0: as soon as possible. */
  until: z.number(),
  /** Bytes of its files; null while that is unknown. */
  size: z.number().nullable(),
});

export type HeldSandbox = Readonly<z.infer<typeof held>>;

const row = z.object({ agent: z.string(), body: z.string() });

export interface HeldTable {
  /** Oldest first. */
  all(): HeldSandbox[];
  save(sandbox: HeldSandbox): void;
  /** A missing one is not an error. */
  remove(agent: AgentId): void;
}

export function heldTable(db: Database): HeldTable {
  const all = query(db, row, 'SELECT agent, body FROM held');
  const save = db.prepare('INSERT INTO held (agent, body) VALUES (?, ?) ON CONFLICT (agent) DO UPDATE SET body = excluded.body');
  const remove = db.prepare('DELETE FROM held WHERE agent = ?');
  return {
    all: () =>
      all
        .all()
        .map(({ agent, body }) => understand(db, `the held sandbox of agent ${agent}`, () => held.parse(JSON.parse(body))))
        .sort((a, b) => a.since - b.since),
    save: (sandbox) => void save.run(sandbox.agent, JSON.stringify(sandbox)),
    remove: (agent) => void remove.run(agent),
  };
}
