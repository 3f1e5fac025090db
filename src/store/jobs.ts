/**
 * The own queue's jobs: their requests and progress. A request never changes, except that a waiting job may move to another pool, and
 * that the commit which completes a job also deletes the values of its variables, as they may be secrets (S8).
 */
import { z } from 'zod';
import { arrayPlace, jobRequest, jobResult } from '../contract/job.ts';
import { type Reader, understand } from './db.ts';

/** The progress of a job; `src/ci/own-queue/job.ts` explains the fields. */
const jobProgress = z.object({
  state: z.enum(['queued', 'reserved', 'assigned', 'running', 'settling', 'done']),
  attempt: z.int(),
  agent: z.string().nullable(),
  past: z.array(z.string()),
  retriesLeft: z.int(),
  unmendable: z.object({ code: z.string(), times: z.int() }).nullable(),
  cancelling: z.boolean(),
  cold: z.boolean(),
  result: jobResult.nullable(),
  note: z.string().nullable(),
  startedAt: z.number().nullable(),
  endedAt: z.number().nullable(),
  /** Jobs it needs that have not passed yet. */
  blockedBy: z.array(z.string()).default([]),
  /** When it needed no other job any more. Older rows have none. */
  readyAt: z.number().nullable().default(null),
  /** Attempts to keep its artifacts: failed ones, and ones that were begun and never finished. */
  settling: z.object({ failed: z.int(), killed: z.int() }).default({ failed: 0, killed: 0 }),
});
export type JobProgress = Readonly<z.infer<typeof jobProgress>>;

/** A newer onejob may ask more of a name than the one that accepted the job, and must read it all the same. */
const label = z.string().nullable().default(null);
const storedRequest = jobRequest.extend({
  pool: z.string(),
  array: arrayPlace.nullable().default(null),
  name: label,
  user: label,
  /** The uid of the person who submitted it, whom `user` names then; absent: root, or there were no `people`. */
  person: z.int().optional(),
});
/** A request with its chosen pool. */
export type StoredRequest = Readonly<z.infer<typeof storedRequest>>;

export interface StoredJob {
  readonly id: string;
  /** Submission order. */
  readonly seq: number;
  readonly request: StoredRequest;
  /** Wall clock, ms since the epoch. */
  readonly submittedAt: number;
  /** null if a permanent daemon accepted it; else the config of the temporary daemon that did, `''` for none. */
  readonly temporary: string | null;
  readonly progress: JobProgress;
}

/** When it began to wait for its pool, wall clock, ms: once nothing else kept it from starting. */
export function waitsSince({ submittedAt, progress }: StoredJob): number {
  return progress.readyAt ?? submittedAt;
}

export interface JobList {
  readonly pool: string | null;
  readonly limit: number;
  readonly before?: number;
}

export function jobTable(db: Reader) {
  const columns = 'seq, id, submitted_at, temporary, request, progress';
  const insert = db.prepare(
    'INSERT INTO jobs (id, pool, done, submitted_at, ended_at, temporary, request, progress) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
  );
  const save = db.prepare('UPDATE jobs SET done = ?, ended_at = ?, progress = ? WHERE id = ?');
  const move = db.prepare('UPDATE jobs SET pool = ?, request = ? WHERE id = ?');
  const forgetValues = db.prepare(
    `UPDATE jobs SET request = json_set(request, '$.env', json((SELECT json_group_object(key, '') FROM json_each(request, '$.env'))))
     WHERE id = ? AND json_extract(request, '$.env') <> '{}'`,
  );
  const get = db.prepare(`SELECT ${columns} FROM jobs WHERE id = ?`);
  const open = db.prepare(`SELECT ${columns} FROM jobs WHERE done = 0 ORDER BY seq`);
  const list = db.prepare(`SELECT ${columns} FROM jobs WHERE (?1 IS NULL OR pool = ?1) AND seq < ?3 ORDER BY seq DESC LIMIT ?2`);
  const ofArray = db.prepare(`SELECT ${columns} FROM jobs WHERE json_extract(request, '$.array.id') = ? ORDER BY seq`);
  const ended = db.prepare('SELECT id FROM jobs WHERE done = 1 AND ended_at < ? ORDER BY ended_at LIMIT ?');
  const remove = db.prepare('DELETE FROM jobs WHERE id = ?');
  const done = (progress: JobProgress): number => (progress.state === 'done' ? 1 : 0);
  const read = ({ seq, id, submitted_at, temporary, request, progress }: Record<string, unknown>): StoredJob =>
    understand(db, `job ${id}`, () => ({
      seq: Number(seq),
      id: String(id),
      submittedAt: Number(submitted_at),
      temporary: temporary === null ? null : String(temporary),
      request: storedRequest.parse(JSON.parse(String(request))),
      progress: jobProgress.parse(JSON.parse(String(progress))),
    }));
  return {
    /** Returns the job's place in submission order. */
    insert({ id, request, progress, submittedAt, temporary }: Omit<StoredJob, 'seq'>): number {
      const body = [temporary, JSON.stringify(request), JSON.stringify(progress)] as const;
      const { lastInsertRowid } = insert.run(id, request.pool, done(progress), submittedAt, progress.endedAt, ...body);
      return Number(lastInsertRowid);
    },
    /** Deletes the values of a done job's variables in the same commit. */
    save(id: string, progress: JobProgress): void {
      save.run(done(progress), progress.endedAt, JSON.stringify(progress), id);
      if (done(progress) === 1) forgetValues.run(id);
    },
    /** Of a job that waits: its request for another pool. */
    move: (id: string, request: StoredRequest): void => void move.run(request.pool, JSON.stringify(request), id),
    get(id: string): StoredJob | null {
      const row = get.get(id);
      return row === undefined ? null : read(row);
    },
    /** Jobs that are not done, in submission order. */
    open: (): StoredJob[] => open.all().map(read),
    /** Newest first, done ones too. `before`: only those with an earlier place. */
    list: ({ pool, limit, before = Number.MAX_SAFE_INTEGER }: JobList): StoredJob[] => list.all(pool, limit, before).map(read),
    /** Jobs of an array, in submission order. */
    ofArray: (array: string): StoredJob[] => ofArray.all(array).map(read),
    /** Ids of done jobs that ended before `time`. */
    endedBefore: (time: number, limit: number): string[] => ended.all(time, limit).map((row) => String(row.id)),
    remove: (id: string): void => void remove.run(id),
  };
}
