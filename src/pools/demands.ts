/** Which pools' next jobs wait for devices, and which of them has waited longest. */
import type { PoolConfig } from '../config/config.ts';
import type { Clock } from '../core/clock.ts';
import type { Pool } from './pool.ts';

/** The next job of a pool that leases for each job, with how many devices it needs. */
export interface WaitingForDevices {
  readonly job: string;
  readonly devices: number | 'all';
}

/** The next job of this pool, whatever its devices; null when none waits. */
export function nextDemand({ service, config }: Pool): WaitingForDevices | null {
  const next = service.jobs?.next(config.name, null) ?? null;
  return next === null ? null : { job: next.job, devices: service.jobs?.devicesFor?.(next.job) ?? config.devices.count };
}

export class Demands {
  readonly #clock: Clock;
  readonly #waiting: (pool: string) => WaitingForDevices | null;
  /** Since when each pool's next job is that: core clock, ms. */
  readonly #since = new Map<string, { readonly job: string; readonly since: number }>();

  /** `waiting`: null when no job waits for that pool. */
  constructor(clock: Clock, waiting: (pool: string) => WaitingForDevices | null) {
    this.#clock = clock;
    this.#waiting = waiting;
  }

  /** Of those of `pools` that lease for each job, the longest-waiting first. */
  of(pools: readonly PoolConfig[]): { readonly pool: string; readonly count: number | 'all' }[] {
    const counts = new Map<string, number | 'all'>();
    for (const { name } of pools.filter((pool) => !pool.standby)) {
      const next = this.#waiting(name);
      if (next === null) {
        this.#since.delete(name);
        continue;
      }
      counts.set(name, next.devices);
      if (this.#since.get(name)?.job !== next.job) this.#since.set(name, { job: next.job, since: this.#clock.now() });
    }
    const since = (pool: string): number => this.#since.get(pool)?.since ?? 0;
    return [...counts].map(([pool, count]) => ({ pool, count })).sort((a, b) => since(a.pool) - since(b.pool));
  }
}
