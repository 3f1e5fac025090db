/** Jobs of CI services that keep their jobs themselves, as far as onejob has seen them: for people. */
import { z } from 'zod';
import type { ServiceJob } from '../ci/ci-service.ts';
import type { JobId } from '../core/slot.ts';
import type { Database } from './db.ts';

/** Times are wall clock, ms since the epoch. */
export interface ServiceJobTable {
  save(job: ServiceJob, at: number): void;
  get(id: JobId): ServiceJob | null;
  /** Newest first. */
  list(limit: number): ServiceJob[];
  /** Forgets those seen last before `time`. */
  prune(time: number): void;
}

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
  reason: text,
  link: text,
  demands: z.array(z.string()),
  state: z.enum(['waiting', 'assigned', 'running', 'done']),
  result: text,
  // Rows of before have none.
  note: text.default(null),
  queuedAt: time,
  startedAt: time,
  endedAt: time,
}) satisfies z.ZodType<ServiceJob>;

export function serviceJobTable(db: Pick<Database, 'path' | 'prepare'>): ServiceJobTable {
  const save = db.prepare(
    'INSERT INTO service_jobs (id, seen_at, body) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, body = excluded.body',
  );
  const get = db.prepare('SELECT body FROM service_jobs WHERE id = ?');
  const list = db.prepare('SELECT body FROM service_jobs ORDER BY seen_at DESC LIMIT ?');
  const prune = db.prepare('DELETE FROM service_jobs WHERE seen_at < ?');
  const read = (found: Record<string, unknown>): ServiceJob => body.parse(JSON.parse(String(found.body)));
  return {
    save(job, at) {
      save.run(job.id, at, JSON.stringify(job));
    },
    get(id) {
      const found = get.get(id);
      return found === undefined ? null : read(found);
    },
    list: (limit) => list.all(limit).map(read),
    prune(before) {
      prune.run(before);
    },
  };
}
