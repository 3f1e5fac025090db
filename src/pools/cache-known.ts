/** What is known of the caches of a host: what config asks for, and what was counted. */
import type { CachePlace } from './cache-places.ts';
import type { CacheSize } from './cache-tree.ts';

/** What config asks of a pool's named caches. */
export interface WantedCaches {
  readonly pool: string;
  /** Names of the agents of all its slots. */
  readonly agents: readonly string[];
  /** Names of its caches. */
  readonly caches: readonly string[];
  /** Bytes that each may have. */
  readonly limit: number;
  /** Whether untrusted jobs have caches of their own. */
  readonly untrusted: boolean;
}

/** A cache as it was counted last. */
export interface Known {
  readonly place: CachePlace;
  readonly size: CacheSize;
  /** When it was counted, ms since the epoch, and how many ms that took. */
  readonly at: number;
  readonly took: number;
}
