/**
 * Agent pools that somebody removed at the service: what was in them went with them, and no answer says so of a single entry. A
 * credential that has lost its role is told the same, so it has to stay so for a day, while other pools are shown.
 */
import { OnejobError } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { AzureClient } from './client.ts';

export interface GonePools {
  /** Whether `error` came since that pool is gone for good; asks the service. @throws OnejobError E_CI_* */
  explains(error: unknown, pool: number, signal: AbortSignal): Promise<boolean>;
}

/** ms */
const certainAfter = 86_400_000;

/** `now`: core clock, ms. */
export function createGonePools(client: Pick<AzureClient, 'pools'>, log: Log, now: () => number): GonePools {
  const missingSince = new Map<number, number>();
  const told = new Set<number>();
  return {
    async explains(error, pool, signal) {
      if (!(error instanceof OnejobError) || error.code !== 'E_CI_POOL') return false;
      const shown = await client.pools(signal);
      if (shown.some(({ id }) => id === pool)) {
        missingSince.delete(pool);
        return false;
      }
      if (!shown.some(({ isHosted }) => !isHosted)) return false;
      const since = missingSince.get(pool) ?? now();
      missingSince.set(pool, since);
      if (now() - since < certainAfter) return false;
      if (!told.has(pool)) log.warn('an agent pool is gone from the service, and its entries are taken for gone', { place: pool });
      told.add(pool);
      return true;
    },
  };
}
