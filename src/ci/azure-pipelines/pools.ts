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

export class AgentPools {
  readonly #client: Pick<AzureClient, 'findPool' | 'pools'>;
  readonly #url: string;
  readonly #found = new Map<string, AzureAgentPool>();

  constructor(client: Pick<AzureClient, 'findPool' | 'pools'>, url: string) {
    this.#client = client;
    this.#url = url;
  }

  /** @throws OnejobError E_CI_POOL with the names that the service shows, and what the client throws */
  async find(queue: string, signal: AbortSignal): Promise<AzureAgentPool> {
    const known = this.#found.get(keyOf(queue));
    if (known !== undefined) return known;
    const pool = await this.#client.findPool(queue, signal);
    if (pool !== null) {
      this.#found.set(keyOf(queue), pool);
      return pool;
    }
    const others = (await this.#client.pools(signal)).filter(({ isHosted }) => !isHosted).map(({ name }) => name);
    const list =
      others.length === 0
        ? 'It shows no agent pools to this credential.'
        : `It shows ${others.slice(0, named).join(', ')}${others.length > named ? ' and more' : ''}.`;
    throw new OnejobError('E_CI_POOL', `Cannot use agent pool "${queue}": ${this.#url} has no agent pool with that name. ${list}`, {
      hint: 'Create it there (Organization settings, Agent pools), give the credential\'s owner the role Administrator on it, or fix the name: "queue" in the config, the third argument of "onejob azure".',
    });
  }

  forget(queue: string): void {
    this.#found.delete(keyOf(queue));
  }
}

/** ms */
const certainAfter = 86_400_000;

/**
 * Agent pools that somebody removed at the service, with their entries. A credential that has lost its role sees the same, so
 * onejob believes it only after a day in which other pools are shown.
 */
export class GonePools {
  readonly #client: Pick<AzureClient, 'pools'>;
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #missingSince = new Map<number, number>();
  readonly #told = new Set<number>();

  constructor(client: Pick<AzureClient, 'pools'>, log: Log, clock: Clock) {
    this.#client = client;
    this.#log = log;
    this.#clock = clock;
  }

  /** Whether the pool behind `error` is gone for good; asks the service. @throws OnejobError E_CI_* */
  async explains(error: unknown, pool: number, signal: AbortSignal): Promise<boolean> {
    if (!hasCode(error, 'E_CI_POOL')) return false;
    const shown = await this.#client.pools(signal);
    if (shown.some(({ id }) => id === pool)) {
      this.#missingSince.delete(pool);
      return false;
    }
    if (!shown.some(({ isHosted }) => !isHosted)) return false;
    const since = this.#missingSince.get(pool) ?? this.#clock.now();
    this.#missingSince.set(pool, since);
    if (this.#clock.now() - since < certainAfter) return false;
    if (!this.#told.has(pool))
      this.#log.warn('an agent pool is gone from the service, so its entries count as gone', { place: pool });
    this.#told.add(pool);
    return true;
  }
}
