/** Every agent there was: where, for which job, when, and how it ended. What `onejob logs SLOT --previous` looks through. */
import { z } from 'zod';
import type { AgentId, Exit, JobId } from '../core/slot.ts';
import type { Database } from './db.ts';

/** Times are wall clock, ms since the epoch. */
export interface HistoryEntry {
  readonly agent: AgentId;
  readonly pool: string;
  readonly slot: string;
  readonly name: string;
  readonly job: JobId | null;
  readonly madeAt: number;
  readonly releasedAt: number | null;
  readonly endedAt: number | null;
  readonly exit: Exit | null;
}

export interface HistoryTable {
  /** The first to speak of an agent wins; saying it again changes nothing. */
  made(entry: Pick<HistoryEntry, 'agent' | 'pool' | 'slot' | 'name' | 'madeAt'>): void;
  released(agent: AgentId, job: JobId | null, at: number): void;
  ended(agent: AgentId, exit: Exit | null, at: number): void;
  /** The job of an agent of which it was not known while it ran. */
  ran(agent: AgentId, job: JobId): void;
  get(agent: AgentId): HistoryEntry | null;
  /** Newest first. */
  ofSlot(slot: string, limit: number): HistoryEntry[];
  /** Newest first: a retried job has several. */
  ofJob(job: JobId, limit: number): HistoryEntry[];
  endedBefore(time: number, limit: number): AgentId[];
  remove(agent: AgentId): void;
}

const row = z.object({
  agent: z.string(),
  pool: z.string(),
  slot: z.string(),
  name: z.string(),
  job: z.string().nullable(),
  made_at: z.number(),
  released_at: z.number().nullable(),
  ended_at: z.number().nullable(),
  exit: z.string().nullable(),
});

const exitSchema = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('code'), code: z.int() }),
  z.object({ kind: z.literal('signal'), signal: z.string() }),
  z.object({ kind: z.literal('oom') }),
  z.object({ kind: z.literal('lost'), reason: z.string() }),
]) satisfies z.ZodType<Exit>;

export function historyTable(db: Pick<Database, 'path' | 'prepare'>): HistoryTable {
  const made = db.prepare('INSERT OR IGNORE INTO history (agent, pool, slot, name, made_at) VALUES (?, ?, ?, ?, ?)');
  const released = db.prepare('UPDATE history SET job = ?, released_at = ? WHERE agent = ? AND released_at IS NULL');
  const ended = db.prepare('UPDATE history SET exit = ?, ended_at = ? WHERE agent = ? AND ended_at IS NULL');
  const ran = db.prepare(
    'UPDATE history SET job = ?, released_at = COALESCE(released_at, ended_at, made_at) WHERE agent = ? AND job IS NULL',
  );
  const get = db.prepare('SELECT * FROM history WHERE agent = ?');
  const ofSlot = db.prepare('SELECT * FROM history WHERE slot = ? ORDER BY id DESC LIMIT ?');
  const ofJob = db.prepare('SELECT * FROM history WHERE job = ? ORDER BY id DESC LIMIT ?');
  const before = db.prepare('SELECT agent FROM history WHERE ended_at < ? ORDER BY ended_at LIMIT ?');
  const remove = db.prepare('DELETE FROM history WHERE agent = ?');
  return {
    made(entry) {
      made.run(entry.agent, entry.pool, entry.slot, entry.name, entry.madeAt);
    },
    released(agent, job, at) {
      released.run(job, at, agent);
    },
    ended(agent, exit, at) {
      ended.run(exit === null ? null : JSON.stringify(exit), at, agent);
    },
    ran(agent, job) {
      ran.run(job, agent);
    },
    get(agent) {
      const found = get.get(agent);
      return found === undefined ? null : understand(found);
    },
    ofSlot: (slot, limit) => ofSlot.all(slot, limit).map(understand),
    ofJob: (job, limit) => ofJob.all(job, limit).map(understand),
    endedBefore: (time, limit) => before.all(time, limit).map((found) => String(found.agent)),
    remove(agent) {
      remove.run(agent);
    },
  };
}

function understand(found: Record<string, unknown>): HistoryEntry {
  const { made_at, released_at, ended_at, exit, ...same } = row.parse(found);
  const how = exit === null ? null : exitSchema.parse(JSON.parse(exit));
  return { ...same, madeAt: made_at, releasedAt: released_at, endedAt: ended_at, exit: how };
}
