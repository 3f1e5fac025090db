/** Jobs of CI services that keep their own jobs, as far as onejob has seen them, for people. */
import { z } from 'zod';
import { failedPlaces, outcomes } from '../core/job-end.ts';
import type { JobId } from '../core/slot.ts';
import type { ServiceJob } from '../ports/service-job.ts';
import { query, type Reader } from './db.ts';

const text = z.string().nullable();
const time = z.number().nullable();
const body: z.ZodType<ServiceJob, unknown> = z.object({
  id: z.string(),
  service: z.string(),
  pool: z.string(),
  agent: text,
  title: z.string(),
  definition: text,
  build: text,
  repository: text,
  branch: text,
  reason: text,
  link: text,
  demands: z.array(z.string()),
  state: z.enum(['waiting', 'assigned', 'running', 'done']),
  result: text,
  /** Older rows have none. */
  outcome: z.enum(outcomes).nullable().default(null),
  /** Older rows have none: every failure was taken for the script's. */
  failedIn: z.enum(failedPlaces).nullable().default('script'),
  /** Older rows have none. */
  note: text.default(null),
  unsettled: z.string().optional(),
  queuedAt: time,
  startedAt: time,
  endedAt: time,
});

const row = z.object({ body: z.string().transform((json) => body.parse(JSON.parse(json))) }).transform((found) => found.body);

export interface ServiceJobTable {
  save(job: ServiceJob, at: number): void;
  get(id: JobId): ServiceJob | null;
  /** Newest first, after `skip` of them. */
  list(limit: number, skip?: number): ServiceJob[];
  /** Deletes those last seen before `time`. */
  prune(time: number): void;
}

export function serviceJobTable(db: Reader): ServiceJobTable {
  const save = db.prepare(
    'INSERT INTO service_jobs (id, seen_at, body) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, body = excluded.body',
  );
  const get = query(db, row, 'SELECT body FROM service_jobs WHERE id = ?');
  const list = query(db, row, 'SELECT body FROM service_jobs ORDER BY seen_at DESC LIMIT ? OFFSET ?');
  const prune = db.prepare('DELETE FROM service_jobs WHERE seen_at < ?');
  return {
    save: (job, at) => void save.run(job.id, at, JSON.stringify(job)),
    get: (id) => get.get(id),
    list: (limit, skip = 0) => list.all(limit, skip),
    prune: (before) => void prune.run(before),
  };
}
