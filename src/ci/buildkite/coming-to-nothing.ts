/**
 * Agents that were given a job and never called in: a pool of such would take every job of its queue and lose it, so it is offered
 * later and later (S9). The first that calls in makes all well again.
 */
import { type Backoff, backoff } from '../../core/backoff.ts';
import type { Clock } from '../../core/clock.ts';

export interface ComingToNothing {
  /** A job was lost that no agent has begun. `why` is a sentence. */
  failed(pool: string, why: string): void;
  /** An agent of the pool has called in. */
  fine(pool: string): void;
  /** Why the pool is not offered right now; null when it is. */
  reason(pool: string): string | null;
  close(): void;
}

/** @param changed called when a pool may be offered again */
export function createComingToNothing(clock: Clock, changed: () => void): ComingToNothing {
  const pools = new Map<string, { readonly backoff: Backoff; readonly callOff: () => void }>();
  const drop = (pool: string): void => {
    pools.get(pool)?.callOff();
    pools.delete(pool);
  };
  return {
    failed(pool, why) {
      const before = pools.get(pool);
      before?.callOff();
      const failure = { code: 'E_AGENT_SILENT', message: why, retry: true } as const;
      const next = backoff(before?.backoff ?? null, failure, 'release', clock.now(), 0);
      pools.set(pool, { backoff: next, callOff: clock.after(next.until - clock.now(), changed) });
      changed();
    },
    fine: drop,
    reason(pool) {
      const found = pools.get(pool)?.backoff;
      return found === undefined || clock.now() >= found.until ? null : found.last.message;
    },
    close() {
      for (const pool of [...pools.keys()]) drop(pool);
    },
  };
}
