/** How jobs of all CI services ended: a row per job, as long as its job is kept. `outcome-sums.ts` has what outlives the rows. */

import { z } from 'zod';
import type { OutcomeFilter } from '../contract/history.ts';
import { exit, jobResult } from '../contract/job.ts';
import { varianceView } from '../contract/variance.ts';
import { isFailure, type Verdict, verdictKinds } from '../contract/verdict.ts';
import { failedPlaces } from '../core/job-end.ts';
import type { AgentId, JobId } from '../core/slot.ts';
import { type Query, query, type Reader } from './db.ts';
import { type SumTable, sumTable } from './outcome-sums.ts';

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
    /** How the card of a measurement was, as its agent's history has it. */
    variance: z
      .string()
      .nullable()
      .transform((text) => (text === null ? null : varianceView.parse(JSON.parse(text)))),
  })
  .transform(({ body: { why, evidence, ending: end }, kind, ...rest }) => ({
    ...rest,
    verdict: { kind, why, evidence },
    ending: end,
  }));
type Row = z.output<typeof row>;
export type StoredOutcome = Readonly<Omit<Row, 'verdict'>> & { readonly verdict: Verdict };

/** What is counted of one, for metrics. */
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
export type CountedOutcome = Readonly<z.output<typeof counted>>;

export interface OutcomeTable extends Pick<SumTable, 'sums'> {
  /** Records the end of a job, or what is known of it now. */
  save(outcome: Omit<StoredOutcome, 'seq' | 'variance'>): void;
  get(job: JobId): StoredOutcome | null;
  /** Number of the last one; 0 without any. */
  last(): number;
  /** At most `limit` that were recorded after that number, the oldest first. */
  after(seq: number, limit: number): CountedOutcome[];
  /** Of the jobs that an agent had. */
  ofAgent(agent: AgentId): StoredOutcome[];
  /** Newest first. */
  list(filter: OutcomeFilter): StoredOutcome[];
  /** Deletes at most `limit` rows of jobs that ended before `time`. Returns how many. */
  prune(time: number, limit: number): number;
  /** Deletes sums that are too old at `now`. */
  pruneSums(now: number): void;
}

export function outcomeTable(db: Reader): OutcomeTable {
  const variance = '(SELECT variance FROM history WHERE history.agent = outcomes.agent) AS variance';
  const columns = `seq, job, service, pool, agent, image, devices, kind, body, wait, run, ended_at AS endedAt, ${variance}`;
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
  const over = db.prepare('SELECT seq FROM outcomes WHERE ended_at < ? ORDER BY ended_at LIMIT ?');
  const remove = db.prepare('DELETE FROM outcomes WHERE seq = ?');
  const sums = sumTable(db);
  const lists = new Map<string, Query<StoredOutcome>>();

  return {
    save(outcome) {
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
        sums.count(before, -1);
        update.run(...values, seq);
        unmark.run(seq);
      }
      sums.count(outcome, 1);
      for (const device of devices) mark.run(device, endedAt, seq);
    },
    get: (job) => get.get(job),
    last: () => last.get()?.seq ?? 0,
    after: (seq, limit) => after.all(seq, limit),
    ofAgent: (agent) => ofAgent.all(agent),
    list(filter) {
      const { sql, values } = listQuery(columns, filter);
      const found = lists.get(sql) ?? query(db, row, sql);
      lists.set(sql, found);
      return found.all(...values);
    },
    sums: (filter) => sums.sums(filter),
    prune(time, limit) {
      const found = over.all(time, limit);
      for (const { seq } of found) {
        unmark.run(Number(seq));
        remove.run(Number(seq));
      }
      return found.length;
    },
    pruneSums: (now) => sums.prune(now),
  };
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
