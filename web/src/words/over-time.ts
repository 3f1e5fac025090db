/** Ended jobs by day or hour: every one of them, and what they are in words. */
import type { HistoryView, Verdict } from '../views.ts';

export type Kind = Verdict['kind'];
export type Step = 'hour' | 'day';

/** ms; days and hours are those of UTC, as the daemon counts them. */
export const stepMs: Readonly<Record<Step, number>> = { hour: 3_600_000, day: 86_400_000 };

/** From the bottom of a bar upwards: what is bad stands on the ground, where heights can be compared. */
export const kinds = [
  'infrastructure',
  'configuration',
  'unknown',
  'code',
  'cancelled',
  'passed',
] as const satisfies readonly Kind[];

export type Bucket = Omit<HistoryView, 'value'> & {
  /** Its start, ms since the epoch. */
  readonly at: number;
};

/** The start of the day or hour that a time is in. */
export function startOf(at: number, step: Step): number {
  return at - (at % stepMs[step]);
}

const nothing = {
  jobs: 0,
  passed: 0,
  cancelled: 0,
  code: 0,
  infrastructure: 0,
  configuration: 0,
  unknown: 0,
  waitMs: null,
  runMs: null,
  longestMs: 0,
};

/** Every day or hour from `since`, or from the first with jobs if that is 0, until `now`, oldest first; also those without jobs. */
export function bucketsOf(rows: readonly HistoryView[], step: Step, since: number, now: number): Bucket[] {
  const found = new Map(rows.map(({ value, ...counts }) => [Number(value), counts]));
  if (found.size === 0) return [];
  const from = since === 0 ? Math.min(...found.keys()) : startOf(since, step);
  const count = Math.max(0, Math.floor((startOf(now, step) - from) / stepMs[step])) + 1;
  return Array.from({ length: count }, (_, n) => {
    const at = from + n * stepMs[step];
    return { at, ...(found.get(at) ?? nothing) };
  });
}

/** `26 Nov` or `14:00`. */
export function bucketName(at: number, step: Step): string {
  return step === 'day'
    ? new Date(at).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', timeZone: 'UTC' })
    : new Date(at).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
}

/** A duration at an axis, where it is a round number: `15m`. ms */
export function roundTime(ms: number): string {
  for (const [unit, letter] of [
    [86_400_000, 'd'],
    [3_600_000, 'h'],
    [60_000, 'm'],
  ] as const)
    if (ms >= unit) return `${Math.round((10 * ms) / unit) / 10}${letter}`;
  return `${Math.round(ms / 1000)}s`;
}
