/** Questions about jobs that have ended: which, and how many of them failed where and why. */

import { OnejobError } from '../base/errors.ts';
import type { EndedFilter, HistoryQuery, OutcomeFilter } from '../contract/history.ts';
import type { JobPage } from '../contract/manager.ts';
import type { HistoryView, JobView } from '../contract/schema.ts';
import type { OutcomeSums, SumsFilter } from '../store/outcome-sums.ts';
import type { OutcomeTable, StoredOutcome } from '../store/outcomes.ts';
import { jobHas } from './shown.ts';

/** `jobOf`: null for a job that is no longer kept. @throws OnejobError E_API_REQUEST for an invalid key */
export function endedJobs(
  outcomes: Pick<OutcomeTable, 'list'>,
  jobOf: (id: string) => JobView | null,
  filter: EndedFilter,
): JobPage {
  if (filter.text !== null) return searchedJobs(outcomes, jobOf, filter, filter.text);
  const rows = outcomes.list({ ...filter, before: placeOf(filter.before), limit: filter.limit + 1 });
  const page = rows.slice(0, filter.limit);
  const last = page.at(-1);
  return {
    jobs: page.flatMap(({ job }) => jobOf(job) ?? []).reverse(),
    next: rows.length > page.length && last !== undefined ? keyOf(last) : null,
  };
}

/** Jobs that are looked at for one page of a search: the daemon does nothing else meanwhile. A page may be empty and have a next one. */
export const searchedAtOnce = 1_000;

function searchedJobs(
  outcomes: Pick<OutcomeTable, 'list'>,
  jobOf: (id: string) => JobView | null,
  { before, limit, ...rest }: EndedFilter,
  text: string,
): JobPage {
  const exact = before === null ? jobOf(text) : null;
  const jobs: JobView[] = exact?.state === 'done' ? [exact] : [];
  const looked = outcomes.list({ ...rest, before: placeOf(before), limit: searchedAtOnce + 1 });
  for (const [at, outcome] of looked.entries()) {
    const last = looked[at - 1];
    if (last !== undefined && (at === searchedAtOnce || jobs.length >= limit)) return { jobs: jobs.reverse(), next: keyOf(last) };
    const job = outcome.job === text ? null : jobOf(outcome.job);
    if (job !== null && jobHas(job, text)) jobs.push(job);
  }
  return { jobs: jobs.reverse(), next: null };
}

function keyOf({ endedAt, seq }: StoredOutcome): string {
  return `${endedAt}.${seq}`;
}

function placeOf(key: string | null): OutcomeFilter['before'] {
  if (key === null) return null;
  const [, endedAt, seq] = /^(\d{1,15})\.(\d{1,15})$/.exec(key) ?? [];
  if (endedAt === undefined)
    throw new OnejobError('E_API_REQUEST', `Cannot read the query: before: ${key} is not the key of a page.`);
  return { endedAt: Number(endedAt), seq: Number(seq) };
}

/** Rows of one answer: of pools, images and so on, and of times, which are more than the hours that sums are kept for. */
const [valuesAtMost, timesAtMost] = [1_000, 10_000];

/**
 * A row per value of the axis, in order of time, or the largest share of failures first.
 * @throws OnejobError E_API_REQUEST for more filters than sums are kept by
 */
export function jobHistory(outcomes: Pick<OutcomeTable, 'sums'>, query: HistoryQuery): HistoryView[] {
  const { by, pool, since, until } = query;
  const isTime = by === 'hour' || by === 'day';
  const limit = isTime ? timesAtMost : valuesAtMost;
  const rows = outcomes.sums({ axis: by, pool, only: onlyOf(query), since, until, limit }).map(rowOf);
  if (isTime) return rows.toSorted((a, b) => Number(a.value) - Number(b.value));
  const share = ({ jobs, infrastructure, configuration, unknown, code }: HistoryView) => [
    infrastructure / jobs,
    (configuration + unknown + code) / jobs,
  ];
  return rows.toSorted((a, b) => compare(share(b), share(a)) || (a.value < b.value ? -1 : 1));
}

/** What sums by `by` can be narrowed to, besides the pool. */
function onlyOf({ by, ...query }: HistoryQuery): SumsFilter['only'] {
  const given = (['service', 'image', 'device'] as const).flatMap((axis) => {
    const value = query[axis];
    return value === null ? [] : [{ axis, value }];
  });
  const [only = null, ...more] = given;
  if (only === null) return null;
  if (more.length === 0 && (by === only.axis || by === 'hour' || by === 'day')) return only;
  const asked = given.map(({ axis }) => axis).join(' and ');
  const hint = 'Ask for them by hour or day, and narrow them by a pool and one of service, image and device.';
  throw new OnejobError('E_API_REQUEST', `Cannot count jobs by ${by} for one ${asked}: sums are not kept that fine.`, { hint });
}

function compare([a = 0, c = 0]: number[], [b = 0, d = 0]: number[]): number {
  return a - b || c - d;
}

function rowOf({ waits, wait, runs, run, longest, ...counts }: OutcomeSums): HistoryView {
  const mean = (sum: number, times: number) => (times === 0 ? null : Math.round(sum / times));
  return { ...counts, waitMs: mean(wait, waits), runMs: mean(run, runs), longestMs: longest };
}
