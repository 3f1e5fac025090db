/**
 * How jobs of all CI services ended: a row per job, as long as its job is kept, and sums by hour and by day, which outlive the rows
 * and answer questions about months at once, however many jobs there were.
 */

import { z } from 'zod';
import type { OutcomeFilter } from '../contract/history.ts';
import { exit, jobResult } from '../contract/job.ts';
import { type HistoryAxis, isFailure, otherImages, type Verdict, verdictKinds } from '../contract/verdict.ts';
import { failedPlaces } from '../core/job-end.ts';
import type { AgentId, JobId } from '../core/slot.ts';
import { query, type Reader } from './db.ts';

const reported = z.object({
  kind: z.literal('reported'),
  word: z.string(),
  outcome: z.enum(['passed', 'failed', 'cancelled', 'lost']).nullable(),
  /** Older rows have none: every failure was taken for the script's. */
  failedIn: z.enum(failedPlaces).nullable().default('script'),
  note: z.string().nullable(),
});

/** What the verdict is made of (`verdict/verdict.ts`), so that a later proof can change it. */
const ending = z.object({
  result: z.discriminatedUnion('kind', [...jobResult.options, reported]).nullable(),
  exit: exit.nullable(),
  memoryLimited: z.boolean(),
  memoryLimit: z.number().nullable().optional(),
  ownRecipe: z.boolean(),
  ownImage: z.boolean().default(false),
  timeLimit: z.number().nullable().optional(),
});

const body = z.object({ why: z.string(), evidence: z.array(z.string()), ending });
const json = <T extends z.ZodType>(type: T) => z.string().transform((text) => type.parse(JSON.parse(text)));

const row = z
  .object({
    seq: z.int(),
    job: z.string(),
    service: z.string(),
    pool: z.string(),
    agent: z.string().nullable(),
    image: z.string().nullable(),
    devices: json(z.array(z.string())),
    kind: z.enum(verdictKinds),
    body: json(body),
    /** ms; null if unknown. */
    wait: z.int().nullable(),
    run: z.int().nullable(),
    /** Wall clock, ms since the epoch. */
    endedAt: z.int(),
  })
  .transform(({ body: { why, evidence, ending: end }, kind, ...rest }) => ({
    ...rest,
    verdict: { kind, why, evidence },
    ending: end,
  }));
type Row = z.output<typeof row>;
export type StoredOutcome = Readonly<Omit<Row, 'verdict'>> & { readonly verdict: Verdict };

/** What sums are narrowed to; null asks for nothing. Times are wall clock, ms since the epoch. */
export interface SumsFilter {
  /** What they are compared by. */
  readonly axis: HistoryAxis;
  readonly pool: string | null;
  /** Only jobs with this service, image or device: sums are kept by one of these, so `axis` is the same or a time. */
  readonly only: { readonly axis: 'service' | 'image' | 'device'; readonly value: string } | null;
  readonly since: number | null;
  readonly until: number | null;
  /** Values, those with most jobs first: somebody may build an image for each job. */
  readonly limit: number;
}

const sums = z.object({
  value: z.string(),
  jobs: z.int(),
  passed: z.int(),
  cancelled: z.int(),
  code: z.int(),
  infrastructure: z.int(),
  unknown: z.int(),
  waits: z.int(),
  wait: z.int(),
  runs: z.int(),
  run: z.int(),
  longest: z.int(),
});
export type OutcomeSums = Readonly<z.output<typeof sums>>;

/** What is counted of one. */
const counted = z.object({
  seq: z.int(),
  job: z.string(),
  pool: z.string(),
  service: z.string(),
  agent: z.string().nullable(),
  devices: json(z.array(z.string())),
  kind: z.enum(verdictKinds),
  wait: z.int().nullable(),
  run: z.int().nullable(),
});

/** What sums are kept by. */
const axes = ['pool', 'service', 'image', 'device'] as const;
type Axis = (typeof axes)[number];

const [hourMs, dayMs] = [3_600_000, 86_400_000];
/** How long sums by hour are kept, ms: a year and a month, so that a month can be compared with that of last year. */
const keepSums = 396 * dayMs;
/** Images of a pool with sums of their own on one day: somebody may build an image for each job. The rest is summed up as one. */
export const imagesADay = 30;

export type OutcomeTable = ReturnType<typeof outcomeTable>;

export function outcomeTable(db: Reader) {
  const columns = 'seq, job, service, pool, agent, image, devices, kind, body, wait, run, ended_at AS endedAt';
  const insert = db.prepare(
    `INSERT INTO outcomes (job, service, pool, agent, image, devices, kind, failed, body, wait, run, ended_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
  );
  const update = db.prepare(
    `UPDATE outcomes SET service = ?, pool = ?, agent = ?, image = ?, devices = ?, kind = ?, failed = ?, body = ?, wait = ?, run = ?, ended_at = ?
     WHERE seq = ?`,
  );
  const get = query(db, row, `SELECT ${columns} FROM outcomes WHERE job = ?`);
  const ofAgent = query(db, row, `SELECT ${columns} FROM outcomes WHERE agent = ?`);
  const last = query(db, z.object({ seq: z.int() }), 'SELECT seq FROM outcomes ORDER BY seq DESC LIMIT 1');
  const after = query(
    db,
    counted,
    'SELECT seq, job, pool, service, agent, devices, kind, wait, run FROM outcomes WHERE seq > ? ORDER BY seq LIMIT ?',
  );
  const mark = db.prepare('INSERT OR IGNORE INTO outcome_devices (device, ended_at, seq) VALUES (?, ?, ?)');
  const unmark = db.prepare('DELETE FROM outcome_devices WHERE seq = ?');
  const sumOf = (table: string, start: string) =>
    db.prepare(
      `INSERT INTO ${table} (${start}, axis, value, pool, kind, jobs, waits, wait, runs, run, longest)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
       ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs, waits = waits + excluded.waits, wait = wait + excluded.wait,
         runs = runs + excluded.runs, run = run + excluded.run, longest = max(longest, excluded.longest)`,
    );
  const sumHour = sumOf('outcome_hours', 'hour');
  const sumDay = sumOf('outcome_days', 'day');
  const hasImage = db.prepare("SELECT 1 FROM outcome_days WHERE axis = 'image' AND day = ? AND value = ? AND pool = ? LIMIT 1");
  const images = query(
    db,
    z.object({ count: z.int() }),
    "SELECT count(DISTINCT value) AS count FROM outcome_days WHERE axis = 'image' AND day = ? AND pool = ?",
  );
  const over = db.prepare('SELECT seq FROM outcomes WHERE ended_at < ? ORDER BY ended_at LIMIT ?');
  const remove = db.prepare('DELETE FROM outcomes WHERE seq = ?');
  // With the axis it is a range of the primary key.
  const removeHours = db.prepare('DELETE FROM outcome_hours WHERE axis = ? AND hour < ?');
  const removeDays = db.prepare('DELETE FROM outcome_days WHERE axis = ? AND day < ?');
  const read = new Map<string, ReturnType<typeof query<StoredOutcome>>>();

  /** `sign`: -1 takes it out again. */
  function count(
    { service, pool, image, devices, verdict: { kind }, wait, run, endedAt }: Omit<StoredOutcome, 'seq'>,
    sign: 1 | -1,
  ): void {
    const [hour, day] = [endedAt - (endedAt % hourMs), endedAt - (endedAt % dayMs)];
    const values = [
      ...[sign, wait === null ? 0 : sign, sign * (wait ?? 0), run === null ? 0 : sign, sign * (run ?? 0)],
      sign === 1 ? (run ?? 0) : 0,
    ];
    const of = (axis: Axis, value: string) => {
      sumHour.run(hour, axis, value, pool, kind, ...values);
      sumDay.run(day, axis, value, pool, kind, ...values);
    };
    of('pool', pool);
    of('service', service);
    if (image !== null) of('image', summedImage(image, pool, day));
    for (const device of devices) of('device', device);
  }

  /** The same for all of its day, so that what is counted under a name can be taken out of it again. */
  function summedImage(image: string, pool: string, day: number): string {
    if (hasImage.get(day, image, pool) !== undefined) return image;
    return (images.get(day, pool)?.count ?? 0) < imagesADay ? image : otherImages;
  }

  return {
    /** Records the end of a job, or what is known of it now. */
    save(outcome: Omit<StoredOutcome, 'seq'>): void {
      const { job, service, pool, agent, image, devices, verdict, ending: end, wait, run, endedAt } = outcome;
      const { kind, why, evidence } = verdict;
      const rest = JSON.stringify({ why, evidence, ending: end });
      const values = [
        service,
        pool,
        agent,
        image,
        JSON.stringify(devices),
        kind,
        isFailure(kind) ? 1 : 0,
        rest,
        wait,
        run,
        endedAt,
      ] as const;
      const before = get.get(job);
      const seq = before?.seq ?? Number(insert.run(job, ...values).lastInsertRowid);
      if (before !== null) {
        count(before, -1);
        update.run(...values, seq);
        unmark.run(seq);
      }
      count(outcome, 1);
      for (const device of devices) mark.run(device, endedAt, seq);
    },
    get: (job: JobId): StoredOutcome | null => get.get(job),
    /** Number of the last one; 0 without any. */
    last: (): number => last.get()?.seq ?? 0,
    /** At most `limit` that were recorded after that number, the oldest first. */
    after: (seq: number, limit: number) => after.all(seq, limit),
    /** Of the jobs that an agent had. */
    ofAgent: (agent: AgentId): StoredOutcome[] => ofAgent.all(agent),
    /** Newest first. */
    list(filter: OutcomeFilter): StoredOutcome[] {
      const { sql, values } = listQuery(columns, filter);
      const found = read.get(sql) ?? query(db, row, sql);
      read.set(sql, found);
      return found.all(...values);
    },
    /** Sums by value of an axis, from the hour of `since` to `until`, as far as they are kept; those of most jobs first. */
    sums({ axis, pool, only, since, until, limit }: SumsFilter): OutcomeSums[] {
      const isTime = axis === 'hour' || axis === 'day';
      const value = axis === 'day' ? `CAST(start - start % ${dayMs} AS TEXT)` : axis === 'hour' ? 'CAST(start AS TEXT)' : 'value';
      const kinds = verdictKinds.map((kind) => `sum(iif(kind = '${kind}', jobs, 0)) AS ${kind}`).join(', ');
      const sql = `SELECT ${value} AS value, sum(jobs) AS jobs, ${kinds}, sum(waits) AS waits, sum(wait) AS wait, sum(runs) AS runs,
        sum(run) AS run, max(iif(jobs > 0, longest, 0)) AS longest FROM (
          SELECT hour AS start, * FROM outcome_hours WHERE axis = ?1 AND hour >= ?2 AND hour < ?3
          UNION ALL SELECT day AS start, * FROM outcome_days WHERE axis = ?1 AND day >= ?3 AND day < ?4
          UNION ALL SELECT hour AS start, * FROM outcome_hours WHERE axis = ?1 AND hour >= ?4 AND hour < ?5
        ) WHERE (?6 IS NULL OR pool = ?6) AND (?7 IS NULL OR value = ?7)
        GROUP BY 1 HAVING sum(jobs) > 0 ORDER BY 2 DESC, 1 LIMIT ?8`;
      const by = only?.axis ?? (isTime ? 'pool' : axis);
      const ranges = rangesOf(since, until, axis !== 'hour');
      return query(db, sums, sql).all(by, ...ranges, pool, only?.value ?? null, limit);
    },
    /** Deletes at most `limit` rows of jobs that ended before `time`. Returns how many. */
    prune(time: number, limit: number): number {
      const found = over.all(time, limit);
      for (const { seq } of found) {
        unmark.run(Number(seq));
        remove.run(Number(seq));
      }
      return found.length;
    },
    /** Deletes sums that are too old at `now`. */
    pruneSums(now: number): void {
      const before = now - keepSums - ((now - keepSums) % dayMs);
      for (const axis of axes) {
        removeHours.run(axis, before);
        removeDays.run(axis, before);
      }
    },
  };
}

/** From where hours are summed, then days, then hours again, and where they end. `days`: whether sums of days may be used. */
function rangesOf(since: number | null, until: number | null, days: boolean): readonly [number, number, number, number] {
  const from = since === null ? 0 : since - (since % hourMs);
  const to = until ?? Number.MAX_SAFE_INTEGER;
  const firstDay = Math.ceil(from / dayMs) * dayMs;
  const lastDay = until === null ? to : to - (to % dayMs);
  return days && firstDay < lastDay ? [from, firstDay, lastDay, to] : [from, to, to, to];
}

/** Only conditions that are asked for, so that SQLite chooses the index that fits them. */
function listQuery(columns: string, filter: OutcomeFilter): { readonly sql: string; readonly values: (string | number)[] } {
  const { pool, service, kind, failed, image, device, since, until, before, limit } = filter;
  const where: string[] = [];
  const values: (string | number)[] = [];
  const and = (text: string, ...given: (string | number)[]): void => {
    where.push(text);
    values.push(...given);
  };
  // Of the device's own index: a card may have had few of a million jobs.
  const [at, seq] = device === null ? ['outcomes.ended_at', 'outcomes.seq'] : ['d.ended_at', 'd.seq'];
  if (device !== null) and('d.device = ?', device);
  // An image is mostly of few pools, so its own index is the better one: "+" keeps SQLite from that of the pool.
  const plus = image === null ? '' : '+';
  if (image !== null) and('image = ?', image);
  if (pool !== null) and(`${plus}pool = ?`, pool);
  if (service !== null) and(`${plus}service = ?`, service);
  if (kind !== null) and('kind = ?', kind);
  if (failed) and('failed = 1');
  if (since !== null) and(`${at} >= ?`, since);
  if (until !== null) and(`${at} < ?`, until);
  if (before !== null) and(`(${at}, ${seq}) < (?, ?)`, before.endedAt, before.seq);
  const from = device === null ? 'outcomes' : 'outcome_devices d JOIN outcomes ON outcomes.seq = d.seq';
  const selected = columns.replace(/\bseq\b/, 'outcomes.seq').replace(/\bended_at\b/, 'outcomes.ended_at');
  const condition = where.length === 0 ? '' : `WHERE ${where.join(' AND ')}`;
  values.push(limit);
  return { sql: `SELECT ${selected} FROM ${from} ${condition} ORDER BY ${at} DESC, ${seq} DESC LIMIT ?`, values };
}
