/** Questions about jobs that have ended: which, and how many of them failed where and why. */
import type { HistoryView, JobView } from '../api/schema.ts';
import { OnejobError } from '../errors.ts';
import type { OutcomeFilter, OutcomeSums, OutcomeTable } from '../store/outcomes.ts';
import type { HistoryAxis, VerdictKind } from './verdict.ts';

/** What a list of ended jobs is narrowed to. `before`: the `next` of an earlier page. Times: wall clock, ms since the epoch. */
export interface EndedFilter extends Omit<OutcomeFilter, 'before'> {
  readonly before: string | null;
}

export interface EndedJobs {
  /** Newest last. */
  readonly jobs: JobView[];
  /** Key of the page of older ones; null: there are none. */
  readonly next: string | null;
}

/** `jobOf`: null for a job that is no longer kept. @throws OnejobError E_API_REQUEST for an invalid key */
export function endedJobs(
  outcomes: Pick<OutcomeTable, 'list'>,
  jobOf: (id: string) => JobView | null,
  filter: EndedFilter,
): EndedJobs {
  const found = outcomes.list({ ...filter, before: placeOf(filter.before), limit: filter.limit + 1 });
  const page = found.slice(0, filter.limit);
  const last = page.at(-1);
  return {
    jobs: page.flatMap(({ job }) => jobOf(job) ?? []).reverse(),
    next: found.length > page.length && last !== undefined ? `${last.endedAt}.${last.seq}` : null,
  };
}

function placeOf(key: string | null): OutcomeFilter['before'] {
  if (key === null) return null;
  const [, endedAt, seq] = /^(\d{1,15})\.(\d{1,15})$/.exec(key) ?? [];
  if (endedAt === undefined)
    throw new OnejobError('E_API_REQUEST', `Cannot read the query: before: ${key} is not the key of a page.`);
  return { endedAt: Number(endedAt), seq: Number(seq) };
}

/** In whole hours: from the one that `since` is in. */
export interface HistoryQuery {
  readonly by: HistoryAxis;
  readonly pool: string | null;
  readonly since: number | null;
  readonly until: number | null;
}

/** A row per value of the axis, in order of time, or the largest share of failures first. */
export function jobHistory(outcomes: Pick<OutcomeTable, 'sums'>, { by, ...rest }: HistoryQuery): HistoryView[] {
  const sums = outcomes.sums({ axis: by, ...rest });
  const rows = [...Map.groupBy(sums, ({ value }) => value)].map(([value, of]) => rowOf(value, of));
  if (by === 'hour' || by === 'day') return rows.toSorted((a, b) => Number(a.value) - Number(b.value));
  const share = ({ jobs, infrastructure, unknown, code }: HistoryView) => [infrastructure / jobs, (unknown + code) / jobs];
  return rows.toSorted((a, b) => compare(share(b), share(a)) || (a.value < b.value ? -1 : 1));
}

function compare([a = 0, c = 0]: number[], [b = 0, d = 0]: number[]): number {
  return a - b || c - d;
}

function rowOf(value: string, of: readonly OutcomeSums[]): HistoryView {
  const count = (kind: VerdictKind) => of.find((one) => one.kind === kind)?.jobs ?? 0;
  const total = (pick: (one: OutcomeSums) => number) => of.reduce((sum, one) => sum + pick(one), 0);
  const mean = (sum: number, times: number) => (times === 0 ? null : Math.round(sum / times));
  return {
    value,
    jobs: total(({ jobs }) => jobs),
    passed: count('passed'),
    cancelled: count('cancelled'),
    code: count('code'),
    infrastructure: count('infrastructure'),
    unknown: count('unknown'),
    waitMs: mean(
      total(({ wait }) => wait),
      total(({ waits }) => waits),
    ),
    runMs: mean(
      total(({ run }) => run),
      total(({ runs }) => runs),
    ),
    longestMs: Math.max(...of.map(({ longest }) => longest)),
  };
}
