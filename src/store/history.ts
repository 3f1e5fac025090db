/** Every agent: where it was, for which job, when, and how it ended. Used by `onejob logs SLOT --previous`. */
import { z } from 'zod';
import { exit } from '../contract/job.ts';
import type { VarianceView } from '../contract/variance.ts';
import type { AgentId, DeviceId, Exit, JobId } from '../core/slot.ts';
import { query, type Reader } from './db.ts';

const row = z.object({
  agent: z.string(),
  pool: z.string(),
  slot: z.string(),
  name: z.string(),
  job: z.string().nullable(),
  madeAt: z.number(),
  releasedAt: z.number().nullable(),
  endedAt: z.number().nullable(),
  exit: z
    .string()
    .nullable()
    .transform((text) => (text === null ? null : exit.parse(JSON.parse(text)))),
  /** Devices leased to it; empty in older rows. */
  devices: z.string().transform((text) => z.array(z.string()).parse(JSON.parse(text))),
  /** Its pool's image, for runtimes that have images. */
  image: z.string().nullable(),
  /** Its pool's memory limit in bytes; null for none, and in older rows. */
  memory: z.number().nullable(),
});

/** Times are wall clock, ms since the epoch. */
type HistoryEntry = Readonly<z.infer<typeof row>>;
type MadeAgent = Pick<HistoryEntry, 'agent' | 'pool' | 'slot' | 'name' | 'madeAt'> & {
  readonly devices?: readonly DeviceId[];
  readonly image?: string | null;
  readonly memory?: number | null;
};
export interface HistoryTable {
  /** The first record of an agent counts; repeating it changes nothing. */
  made(agent: MadeAgent): void;
  released(agent: AgentId, job: JobId | null, at: number): void;
  /** `variance`: how the card of a measurement was. */
  ended(agent: AgentId, exit: Exit | null, at: number, variance?: VarianceView | null): void;
  /** Records the job of an agent that was unknown while it ran. */
  ran(agent: AgentId, job: JobId): void;
  get(agent: AgentId): HistoryEntry | null;
  /** Newest first. */
  ofSlot(slot: string, limit: number): HistoryEntry[];
  /** Newest first: a retried job has several. */
  ofJob(job: JobId, limit: number): HistoryEntry[];
  endedBefore(time: number, limit: number): AgentId[];
  remove(agent: AgentId): void;
}

export function historyTable(db: Reader): HistoryTable {
  const columns =
    'agent, pool, slot, name, job, made_at AS madeAt, released_at AS releasedAt, ended_at AS endedAt, exit, devices, image, memory';
  const made = db.prepare(
    'INSERT OR IGNORE INTO history (agent, pool, slot, name, made_at, devices, image, memory) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
  );
  const released = db.prepare('UPDATE history SET job = ?, released_at = ? WHERE agent = ? AND released_at IS NULL');
  const ended = db.prepare('UPDATE history SET exit = ?, ended_at = ?, variance = ? WHERE agent = ? AND ended_at IS NULL');
  const ran = db.prepare(
    'UPDATE history SET job = ?, released_at = COALESCE(released_at, ended_at, made_at) WHERE agent = ? AND job IS NULL',
  );
  const get = query(db, row, `SELECT ${columns} FROM history WHERE agent = ?`);
  const ofSlot = query(db, row, `SELECT ${columns} FROM history WHERE slot = ? ORDER BY id DESC LIMIT ?`);
  const ofJob = query(db, row, `SELECT ${columns} FROM history WHERE job = ? ORDER BY id DESC LIMIT ?`);
  const before = db.prepare('SELECT agent FROM history WHERE ended_at < ? ORDER BY ended_at LIMIT ?');
  const remove = db.prepare('DELETE FROM history WHERE agent = ?');
  return {
    made: ({ agent, pool, slot, name, madeAt, devices = [], image = null, memory = null }) =>
      void made.run(agent, pool, slot, name, madeAt, JSON.stringify(devices), image, memory),
    released: (agent, job, at) => void released.run(job, at, agent),
    ended: (agent, exit, at, variance = null) =>
      void ended.run(exit === null ? null : JSON.stringify(exit), at, variance === null ? null : JSON.stringify(variance), agent),
    ran: (agent, job) => void ran.run(job, agent),
    get: (agent) => get.get(agent),
    ofSlot: (slot, limit) => ofSlot.all(slot, limit),
    ofJob: (job, limit) => ofJob.all(job, limit),
    endedBefore: (time, limit) => before.all(time, limit).map((found) => String(found.agent)),
    remove: (agent) => void remove.run(agent),
  };
}
