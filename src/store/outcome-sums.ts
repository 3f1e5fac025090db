/**
 * Sums of how jobs ended, by hour and by day: by pool, service, image and device. They outlive the rows of the jobs, and answer
 * questions about months at once, however many jobs there were.
 */
import { z } from 'zod';
import { type HistoryAxis, otherImages, type VerdictKind, verdictKinds } from '../contract/verdict.ts';
import { query, type Reader } from './db.ts';

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
  configuration: z.int(),
  unknown: z.int(),
  waits: z.int(),
  wait: z.int(),
  runs: z.int(),
  run: z.int(),
  longest: z.int(),
});
export type OutcomeSums = Readonly<z.output<typeof sums>>;

/** What sums are kept by. */
const axes = ['pool', 'service', 'image', 'device'] as const;
type Axis = (typeof axes)[number];

const [hourMs, dayMs] = [3_600_000, 86_400_000];
/** How long sums by hour are kept, ms: a year and a month, so that a month can be compared with that of last year. */
const keepSums = 396 * dayMs;
/** Images of a pool with sums of their own on one day: somebody may build an image for each job. The rest is summed up as one. */
export const imagesADay = 30;

/** What is counted of the end of a job. */
export interface CountedEnd {
  readonly service: string;
  readonly pool: string;
  readonly image: string | null;
  readonly devices: readonly string[];
  readonly verdict: { readonly kind: VerdictKind };
  /** ms; null if unknown. */
  readonly wait: number | null;
  readonly run: number | null;
  /** Wall clock, ms since the epoch. */
  readonly endedAt: number;
}

export interface SumTable {
  /** Counts the end of a job. `sign`: -1 takes it out again. */
  count(end: CountedEnd, sign: 1 | -1): void;
  /** Sums by value of an axis, from the hour of `since` to `until`, as far as they are kept; those of most jobs first. */
  sums(filter: SumsFilter): OutcomeSums[];
  /** Deletes sums that are too old at `now`. */
  prune(now: number): void;
}

export function sumTable(db: Reader): SumTable {
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
  // With the axis it is a range of the primary key.
  const removeHours = db.prepare('DELETE FROM outcome_hours WHERE axis = ? AND hour < ?');
  const removeDays = db.prepare('DELETE FROM outcome_days WHERE axis = ? AND day < ?');

  function count({ service, pool, image, devices, verdict: { kind }, wait, run, endedAt }: CountedEnd, sign: 1 | -1): void {
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
    count,
    sums({ axis, pool, only, since, until, limit }) {
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
    prune(now) {
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
