/** The service's agent pools. onejob asks for each id once, and again after a pool was not found. */

import { hasCode, OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { Queue } from '../early/port.ts';
import type { AzureClient } from './client.ts';
import type { AzureAgentPool } from './wire.ts';

export type AzurePool = Pick<PoolConfig, 'name' | 'queue' | 'tags' | 'elsewhere'>;

/** The agent pools in use, each once, with the pools of the config; the service ignores their case. */
export function queuesOf(pools: readonly Pick<AzurePool, 'name' | 'queue'>[]): Queue[] {
  const queues = [...Map.groupBy(pools, ({ queue }) => keyOf(queue)).values()];
  return queues.map((same) => ({ name: same.at(-1)?.queue ?? '', pools: same.map(({ name }) => name) }));
}

const keyOf = (queue: string): string => queue.toLowerCase();

const named = 12;

export function createAgentPools(client: Pick<AzureClient, 'findPool' | 'pools'>, url: string) {
  const known = new Map<string, AzureAgentPool>();
  return {
    /** @throws OnejobError E_CI_POOL with the names that the service shows, and what the client throws */
    async find(queue: string, signal: AbortSignal): Promise<AzureAgentPool> {
      const found = known.get(keyOf(queue));
      if (found !== undefined) return found;
      const pool = await client.findPool(queue, signal);
      if (pool !== null) {
        known.set(keyOf(queue), pool);
        return pool;
      }
      const others = (await client.pools(signal)).filter(({ isHosted }) => !isHosted).map(({ name }) => name);
      const list =
        others.length === 0
          ? 'It shows no agent pools to this credential.'
          : `It shows ${others.slice(0, named).join(', ')}${others.length > named ? ' and more' : ''}.`;
      throw new OnejobError('E_CI_POOL', `Cannot use agent pool "${queue}": ${url} has no agent pool with that name. ${list}`, {
        hint: 'Create it there (Organization settings, Agent pools), give the credential\'s owner the role Administrator on it, or fix the name: "queue" in the config, the third argument of "onejob azure".',
      });
    },
    forget: (queue: string) => void known.delete(keyOf(queue)),
  };
}
export type AgentPools = ReturnType<typeof createAgentPools>;

/** ms */
const certainAfter = 86_400_000;

/**
 * Agent pools that somebody removed at the service, with their entries. A credential that has lost its role sees the same, so
 * onejob believes it only after a day in which other pools are shown.
 *
 * Answers whether the pool behind `error` is gone for good; asks the service. @throws OnejobError E_CI_*
 */
export function explainGonePools(client: Pick<AzureClient, 'pools'>, log: Log, clock: Clock) {
  const missingSince = new Map<number, number>();
  const told = new Set<number>();
  return async (error: unknown, pool: number, signal: AbortSignal): Promise<boolean> => {
    if (!hasCode(error, 'E_CI_POOL')) return false;
    const shown = await client.pools(signal);
    if (shown.some(({ id }) => id === pool)) {
      missingSince.delete(pool);
      return false;
    }
    if (!shown.some(({ isHosted }) => !isHosted)) return false;
    const since = missingSince.get(pool) ?? clock.now();
    missingSince.set(pool, since);
    if (clock.now() - since < certainAfter) return false;
    if (!told.has(pool)) log.warn('an agent pool is gone from the service, so its entries count as gone', { place: pool });
    told.add(pool);
    return true;
  };
}
