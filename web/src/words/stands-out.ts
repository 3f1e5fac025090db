/** Which of several lines fails more often by its infrastructure than the rest. */
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
