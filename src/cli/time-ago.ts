/** Times that people type: how long ago, or a date. */
import { parseDuration } from '../base/units.ts';
import { wrongUsage } from './exit.ts';

const date = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?$/;

/**
 * `7d`, `90m`; or a date, or a date with a time, of this time zone if it names none. Wall clock, ms since the epoch.
 * @throws OnejobError E_USAGE
 */
export function timeAgo(option: string, text: string, now: number): number {
  // Without a time, JavaScript takes a date for UTC.
  const at = date.test(text) ? Date.parse(text.includes('T') ? text : `${text}T00:00`) : Number.NaN;
  if (!Number.isNaN(at)) return at;
  const ago = parseDuration(text);
  if (ago.ok) return now - ago.value;
  throw wrongUsage(
    `Invalid ${option} "${text}": ${ago.why}.`,
    `Write "${option} 7d", "${option} 2026-11-20" or "${option} 2026-11-20T14:30".`,
  );
}
