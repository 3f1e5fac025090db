/** Which pools that lease devices for each job wait for some, and since when: the longest-waiting gets them first. */
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { type Pool, poolOf } from '../loop/pool.ts';
import type { InLine } from './latest-start.ts';

export interface WaitingForDevices {
  /** Keeps its pool's place in the queue. */
  readonly turn: string;
  readonly devices: number | 'all';
}

/** The next that a pool needs devices for; null: nothing. `unused`: how many of its sandboxes and agents have no job yet. */
export function nextDemand({ service, config }: Pool, unused: number): WaitingForDevices | null {
  const { name, devices } = config;
  const { jobs } = service;
  if (jobs === null) return (service.waiting?.(name) ?? 0) > unused ? { turn: '', devices: devices.count } : null;
  const job = jobs.next(name, null)?.job ?? null;
  const turn = service.turn === undefined ? job : service.turn(name);
  return turn === null ? null : { turn, devices: (job === null ? null : jobs.devicesFor?.(job)) ?? devices.count };
}

/** Waiting jobs of a pool in their order, if its service tells it. */
export function* lineOf({ service, config }: Pool): Generator<InLine> {
  for (const { job, limit, devices } of service.jobs?.line?.(config.name) ?? [])
    yield { job, count: devices ?? config.devices.count, lasts: limit === null ? null : limit + config.stopGrace };
}

/** `waiting`: null when a pool needs none. */
export function createDemands(clock: Pick<Clock, 'now'>, waiting: (pool: string) => WaitingForDevices | null) {
  /** What each pool waits for, and since when: core clock, ms. */
  const since = new Map<string, { readonly turn: string; readonly since: number }>();
  /** The newest agent of each slot that has got its devices. */
  const newest = new Map<string, AgentId>();
  return {
    /** Those that wait, the longest-waiting first. */
    of(pools: readonly PoolConfig[]): { readonly pool: string; readonly count: number | 'all' }[] {
      const counts = new Map<string, number | 'all'>();
      for (const { name } of pools.filter((pool) => !pool.standby)) {
        const next = waiting(name);
        if (next === null) {
          since.delete(name);
          continue;
        }
        counts.set(name, next.devices);
        if (since.get(name)?.turn !== next.turn) since.set(name, { turn: next.turn, since: clock.now() });
      }
      const sinceOf = (pool: string): number => since.get(pool)?.since ?? 0;
      return [...counts].map(([pool, count]) => ({ pool, count })).sort((a, b) => sinceOf(a.pool) - sinceOf(b.pool));
    },
    /** An agent is made for what the slot's pool waited for. */
    served(slot: string, agent: AgentId): void {
      if (newest.get(slot) !== agent) since.delete(poolOf(slot));
      newest.set(slot, agent);
    },
    /** ms for which a pool has waited; null: it does not. */
    waited(pool: string): number | null {
      const entry = since.get(pool);
      return entry === undefined ? null : clock.now() - entry.since;
    },
  };
}
