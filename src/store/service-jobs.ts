/** Jobs of CI services that keep their own jobs, as far as onejob has seen them, for people. */
import { z } from 'zod';
import type { JobId } from '../core/slot.ts';
import { failedPlaces } from '../verdict/verdict.ts';
import { query, type Reader } from './db.ts';

const text = z.string().nullable();
const time = z.number().nullable();
const body = z.object({
  id: z.string(),
  service: z.string(),
  pool: z.string(),
  agent: text,
  title: z.string(),
  definition: text,
  build: text,
  repository: text,
  branch: text,
  /** In the service's word. */
  reason: text,
  link: text,
  demands: z.array(z.string()),
  state: z.enum(['waiting', 'assigned', 'running', 'done']),
  /** In the service's word; null while it has none. */
  result: text,
  /** What that word means for the job; null if that is unknown. Older rows have none. */
  outcome: z.enum(['passed', 'failed', 'cancelled', 'lost']).nullable().default(null),
  /** Where it failed; null: nothing shows that. Older rows have none: every failure was taken for the script's. */
  failedIn: z.enum(failedPlaces).nullable().default('script'),
  /** A sentence from onejob: why it was refused or given up, or what it did not get. Older rows have none. */
  note: text.default(null),
  /** What its adapter needs to ask the service for more of its end, in the adapter's own form; absent: the service said all. */
  unsettled: z.string().optional(),
  /** Times are wall clock, ms since the epoch. */
  queuedAt: time,
  startedAt: time,
  endedAt: time,
});
export type ServiceJob = Readonly<z.output<typeof body>>;

const row = z.object({ body: z.string().transform((json) => body.parse(JSON.parse(json))) }).transform((found) => found.body);

export type ServiceJobTable = ReturnType<typeof serviceJobTable>;

export function serviceJobTable(db: Reader) {
  const save = db.prepare(
    'INSERT INTO service_jobs (id, seen_at, body) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, body = excluded.body',
  );
  const get = query(db, row, 'SELECT body FROM service_jobs WHERE id = ?');
  const list = query(db, row, 'SELECT body FROM service_jobs ORDER BY seen_at DESC LIMIT ? OFFSET ?');
  const prune = db.prepare('DELETE FROM service_jobs WHERE seen_at < ?');
  return {
    save: (job: ServiceJob, at: number): void => void save.run(job.id, at, JSON.stringify(job)),
    get: (id: JobId): ServiceJob | null => get.get(id),
    /** Newest first, after `skip` of them. */
    list: (limit: number, skip = 0): ServiceJob[] => list.all(limit, skip),
    /** Deletes those last seen before `time`. */
    prune: (before: number): void => void prune.run(before),
  };
}
