/** Failures of devices, pools and images in words, and which of them fails more often by its infrastructure than the rest. */
import type { HistoryView } from '../views.ts';

/** Fewer failures may be chance. */
const least = 3;
/** Times the share of all others together. */
const times = 3;

/** Values whose share of infrastructure failures is at least three times that of the others, with at least three of them. */
export function standsOut(lines: readonly HistoryView[]): ReadonlySet<string> {
  const total = lines.reduce((sum, { jobs }) => sum + jobs, 0);
  const failed = lines.reduce((sum, { infrastructure }) => sum + infrastructure, 0);
  const found = lines.filter(({ jobs, infrastructure }) => {
    if (infrastructure < least || jobs === total) return false;
    const others = (failed - infrastructure) / (total - jobs);
    return infrastructure / jobs >= times * others;
  });
  return new Set(found.map(({ value }) => value));
}

/** A card is judged by what may be its fault; a pool or an image by everything that failed in it, as in `onejob history`. */
function judged(by: string, { code, infrastructure, configuration, unknown }: HistoryView): number {
  return by === 'device' ? infrastructure : code + infrastructure + configuration + unknown;
}

/** By the share that `failuresText` begins with, then by infrastructure failures, then by jobs. */
export function worstFirst(by: string) {
  const share = (count: number, jobs: number) => (jobs === 0 ? 0 : count / jobs);
  return (a: HistoryView, b: HistoryView): number =>
    share(judged(by, b), b.jobs) - share(judged(by, a), a.jobs) || b.infrastructure - a.infrastructure || b.jobs - a.jobs;
}

/** The main number first, such as `3 of 7 failed (43%)`, then the others that are not 0. */
export function failuresText(line: HistoryView, by: string): [main: string, ...others: string[]] {
  const { jobs, code, infrastructure, configuration, unknown } = line;
  const isDevice = by === 'device';
  const main = judged(by, line);
  const failed = code + infrastructure + configuration + unknown;
  const others: [count: number, word: string][] = [
    isDevice ? [failed, 'failed in all'] : [infrastructure, 'infrastructure'],
    [configuration, 'configuration'],
    [code, 'your code'],
    [unknown, 'unknown'],
  ];
  return [
    `${main} of ${jobs} ${isDevice ? 'infrastructure' : 'failed'} (${Math.round((100 * main) / Math.max(1, jobs))}%)`,
    ...others.filter(([count]) => count > 0).map(([count, word]) => `${count} ${word}`),
  ];
}
