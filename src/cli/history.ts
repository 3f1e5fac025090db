/** `onejob history`: how many jobs ended how, and how long they waited and ran, by pool, device and so on. */
import type { HistoryView } from '../contract/schema.ts';
import { type HistoryAxis, otherImages } from '../contract/verdict.ts';
import { systemClock } from '../system/system-clock.ts';
import { exitCodes } from './exit.ts';
import { refuseUnknownPool, withReader } from './jobs.ts';
import type { Session } from './session.ts';
import { type Colors, formatAge, plural, printable, titledTable } from './text.ts';
import { timeAgo } from './time-ago.ts';

export interface HistoryFlags {
  readonly by?: HistoryAxis;
  readonly since?: string;
  readonly until?: string;
  readonly pool?: string;
  readonly service?: string;
  readonly image?: string;
  readonly device?: string;
}

/** How far back `history` looks by default. */
const usual = '7d';

/** @throws OnejobError E_USAGE for an invalid time; E_POOL_UNKNOWN */
export async function showHistory(session: Session, flags: HistoryFlags): Promise<number> {
  const { output } = session;
  const now = systemClock.wall();
  const since = timeAgo('--since', flags.since ?? usual, now);
  const until = flags.until === undefined ? null : timeAgo('--until', flags.until, now);
  const axes: readonly HistoryAxis[] = flags.by === undefined ? usualAxes(flags) : [flags.by];
  const { pool = null, service = null, image = null, device = null } = flags;
  const { tables, elsewhere, ended } = await withReader(session, async (reader) => {
    const read: { by: HistoryAxis; rows: HistoryView[] }[] = [];
    for (const by of axes) read.push({ by, rows: await reader.history({ by, since, until, pool, service, image, device }) });
    const isEmpty = read.every(({ rows }) => rows.length === 0);
    if (isEmpty) await refuseUnknownPool(reader, pool);
    const narrow = { since, until, pool, service: null, image: otherImages, device: null };
    const others = image === null || image === otherImages ? [] : await reader.history({ by: 'image', ...narrow });
    // Jobs without a device are in no row by device.
    const isWhole = (service ?? image ?? device) === null;
    const whole = { by: 'pool', since, until, pool, service: null, image: null, device: null } as const;
    const ended = isEmpty && isWhole && (await reader.history(whole)).length > 0;
    return { tables: read, elsewhere: others.reduce((sum, { jobs }) => sum + jobs, 0), ended };
  });
  if (image !== null && elsewhere > 0) {
    const counted = `${plural(elsewhere, 'job')} of days with many images ${elsewhere === 1 ? 'is' : 'are'} counted as "${otherImages}"`;
    output.say(`${counted}, and may be of this one: "onejob jobs --image ${printable(image)}" lists each`);
  }
  const rows = tables.flatMap((one) => one.rows.map((row) => ({ by: one.by, ...row })));
  await output.result(rows, () => {
    if (ended) return [`No job that ended in this time had ${/^[aeiou]/.test(axes[0] ?? '') ? 'an' : 'a'} ${axes[0]}.`];
    if (rows.length === 0) return [`No jobs ended in this time; --since looks further back than ${flags.since ?? usual}.`];
    const filled = tables.filter((one) => one.rows.length > 0);
    return filled.flatMap((one, at) => [...(at === 0 ? [] : ['']), ...historyTable(one.by, one.rows, output.colors, output.width)]);
  });
  return exitCodes.ok;
}

/** What sums of one service, image or device can be compared by is the time. */
function usualAxes({ service, image, device }: HistoryFlags): readonly HistoryAxis[] {
  return (service ?? image ?? device) === undefined ? ['pool', 'device', 'image'] : ['day'];
}

export function historyTable(by: HistoryAxis, rows: readonly HistoryView[], colors: Colors, width: number | null): string[] {
  const time = (ms: number | null) => (ms === null ? '-' : formatAge(ms));
  const share = (count: number, jobs: number) => `${Math.round((100 * count) / jobs)}%`;
  // Rare, and the table is wide.
  const isMisfit = rows.some(({ configuration }) => configuration > 0);
  return titledTable(
    rows.map(({ value, jobs, code, infrastructure, configuration, unknown, waitMs, runMs, longestMs }) => {
      const failed = code + infrastructure + configuration + unknown;
      const text = share(failed, jobs);
      return {
        [by.toUpperCase()]: nameOf(by, value, width),
        JOBS: String(jobs),
        FAILED: failed === 0 ? text : (infrastructure > 0 ? colors.red : colors.yellow)(text),
        'YOUR CODE': String(code),
        INFRASTRUCTURE: infrastructure === 0 ? '0' : colors.red(String(infrastructure)),
        ...(isMisfit && { CONFIGURATION: String(configuration) }),
        UNKNOWN: String(unknown),
        WAIT: time(waitMs),
        RUN: time(runMs),
        LONGEST: time(runMs === null ? null : longestMs),
      };
    }),
    { colors, width },
  );
}

/** Columns of a name at a terminal, which must leave room for the numbers. Of an image, the end tells more. */
const widestName = 48;

function nameOf(by: HistoryAxis, value: string, width: number | null): string {
  if (by !== 'hour' && by !== 'day') {
    const text = printable(value) || '-';
    return width === null || text.length <= widestName ? text : `…${text.slice(1 - widestName)}`;
  }
  const text = new Date(Number(value)).toISOString();
  return by === 'day' ? text.slice(0, 10) : `${text.slice(0, 13).replace('T', ' ')}:00Z`;
}
