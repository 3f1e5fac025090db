/** A list of jobs of the own queue and of services that keep their own, by page: reading a million rows at once would stop the loop. */

import { OnejobError } from '../base/errors.ts';
import type { JobPage } from './manager.ts';
import type { JobView } from './schema.ts';

/** Where older jobs continue: before this place in the own queue, after so many of other services. */
export interface PagePlace {
  readonly seq: number;
  readonly skip: number;
}

/** Begins keys of pages, which tells them from those of ended jobs. */
export const pagePrefix = 'jobs.';

/** null: from the newest one. @throws OnejobError E_API_REQUEST for an invalid key */
export function pagePlace(key: string | null): PagePlace {
  if (key === null) return { seq: Number.MAX_SAFE_INTEGER, skip: 0 };
  const [, seq, skip] = /^jobs\.(\d{1,16})\.(\d{1,15})$/.exec(key) ?? [];
  if (seq === undefined) throw new OnejobError('E_API_REQUEST', `Cannot read the query: before: ${key} is not the key of a page.`);
  return { seq: Number(seq), skip: Number(skip) };
}

/**
 * The newest of both, at most `limit`. Both are newest first from `place` on, and have one more than `limit` if there are more.
 * With a pool a page may have fewer though older ones follow.
 */
export function jobPage(
  own: readonly { readonly seq: number; readonly job: JobView }[],
  elsewhere: readonly JobView[],
  { place, pool, limit }: { readonly place: PagePlace; readonly pool: string | null; readonly limit: number },
): JobPage {
  const jobs: JobView[] = [];
  let [at, skipped] = [0, 0];
  while (jobs.length < limit) {
    const [mine, other] = [own[at], elsewhere[skipped]];
    // What follows is unknown.
    if (mine === undefined ? other === undefined : other === undefined && skipped > limit) break;
    if (other !== undefined && (mine === undefined || timeOf(other) > timeOf(mine.job))) {
      skipped += 1;
      if (pool === null || other.pool === pool) jobs.push(other);
    } else if (mine !== undefined) {
      at += 1;
      jobs.push(mine.job);
    }
  }
  const isAll = at === own.length && skipped === elsewhere.length && skipped <= limit;
  const seq = own[at - 1]?.seq ?? place.seq;
  return { jobs: newestLast(jobs.reverse()), next: isAll ? null : `${pagePrefix}${seq}.${place.skip + skipped}` };
}

/** Place of a job in a list. One without any time waits, and so counts as the newest. */
export function timeOf({ submittedAt, startedAt }: JobView): number {
  return submittedAt ?? startedAt ?? Number.MAX_SAFE_INTEGER;
}

export function newestLast(jobs: readonly JobView[]): JobView[] {
  return jobs.toSorted((a, b) => timeOf(a) - timeOf(b));
}
