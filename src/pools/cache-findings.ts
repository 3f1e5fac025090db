/** What `doctor` says of named caches: what each pool has, and what could not be kept within its limit. */
import type { Finding } from '../runtimes/runtime.ts';
import type { Known, WantedCaches } from './cache-known.ts';
import type { CachePlace } from './cache-places.ts';

export interface CacheFacts {
  readonly known: readonly Known[];
  readonly wanted: readonly WantedCaches[];
  /** ms since the epoch. */
  readonly now: number;
  /** What was given up last. */
  readonly last: { readonly place: CachePlace; readonly bytes: number; readonly at: number } | null;
  /** Why something that was given up could not be removed, with how often. */
  readonly stuck: ReadonlyMap<string, number>;
  /** Why nothing could be moved out of a cache, by its path. */
  readonly blocked: ReadonlyMap<string, string>;
  readonly trash: string;
}

/** `depot of gpu.1`, or `depot of untrusted jobs in pool gpu`. */
export function titleOf({ pool, agent, cache }: CachePlace): string {
  return agent === null ? `${cache} of untrusted jobs in pool ${pool}` : `${cache} of ${agent}`;
}

export function cacheFindings({ known, wanted, now, last, stuck, blocked, trash }: CacheFacts): Finding[] {
  const found: Finding[] = wanted.flatMap(({ pool, caches, limit }) => {
    if (caches.length === 0) return [];
    const own = known.filter(({ place }) => place.pool === pool);
    const bytes = own.reduce((sum, { size }) => sum + size.bytes, 0);
    const counted = own.length === 0 ? 'were not counted yet' : `hold ${human(bytes)} in ${own.length} of their folders`;
    const trimmed =
      last?.place.pool === pool ? ` ${human(last.bytes)} of ${titleOf(last.place)} were removed ${ago(now - last.at)}.` : '';
    const over = own.filter(({ size }) => size.bytes > limit);
    const message = `Its named caches ${counted}; each may have ${human(limit)}.${trimmed}`;
    const base: Finding = { level: 'ok', subject: `pool ${pool}`, message, hint: null };
    if (over.length === 0) return [base];
    const names = over.map(({ place, size }) => `${titleOf(place)} (${human(size.bytes)})`).join(', ');
    const reason = over.map(({ place }) => blocked.get(place.path)).find((why) => why !== undefined);
    const why = reason === undefined ? 'that is removed once its agent has ended' : `nothing can be removed: ${reason}`;
    const hint = reason === undefined ? null : 'Look at what lies there, also with "lsattr".';
    return [base, { level: 'warning', subject: `pool ${pool}`, message: `More than that has ${names}; ${why}.`, hint }];
  });
  if (stuck.size === 0) return found;
  const why = [...stuck].map(([code, times]) => `${code}, ${times} times`).join('; ');
  const message = `What caches gave up could not all be removed from ${trash} (${why}).`;
  return [...found, { level: 'warning', subject: 'caches', message, hint: `Look at it with "lsattr -R ${trash}", and remove it.` }];
}

function human(bytes: number): string {
  if (!Number.isFinite(bytes)) return 'more than can be counted';
  const unit = ['B', 'KiB', 'MiB', 'GiB', 'TiB'][Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10))] ?? 'B';
  const size = bytes / 2 ** (10 * ['B', 'KiB', 'MiB', 'GiB', 'TiB'].indexOf(unit));
  return `${size >= 100 || unit === 'B' ? Math.round(size) : size.toFixed(1)} ${unit}`;
}

function ago(ms: number): string {
  const minutes = Math.max(0, Math.round(ms / 60_000));
  if (minutes < 1) return 'just now';
  return minutes < 120 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`;
}
