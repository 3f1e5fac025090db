import { expect, test } from 'vitest';
import type { PoolConfig } from '../../config/config.ts';
import type { Pool } from '../loop/pool.ts';
import { createDemands, nextDemand, type WaitingForDevices } from './registry.ts';

/** A pool of two devices each whose service has one job, or none. */
function poolWith(job: string | null, asks: number | null): Pool {
  const jobs = { next: () => (job === null ? null : { job, limit: null, cold: false }), devicesFor: () => asks };
  return { service: { jobs }, config: { name: 'gpu', devices: { count: 2 } } } as unknown as Pool;
}

test('a job needs the devices that it asks for, and else what its pool has for each', () => {
  expect(nextDemand(poolWith('a', 4))).toEqual({ job: 'a', devices: 4 });
  expect(nextDemand(poolWith('a', 0))).toEqual({ job: 'a', devices: 0 });
  expect(nextDemand(poolWith('a', null))).toEqual({ job: 'a', devices: 2 });
  expect(nextDemand(poolWith(null, 4))).toBeNull();
});

test('the pool whose next job has waited longest comes first, and another job waits anew', () => {
  let now = 0;
  const next = new Map<string, WaitingForDevices>();
  const demands = createDemands({ now: () => now, wall: () => 0, after: () => () => {} }, (pool) => next.get(pool) ?? null);
  const pools = ['one', 'two', 'standing'].map((name) => ({ name, standby: name === 'standing' }) as PoolConfig);
  next.set('standing', { job: 's', devices: 1 }).set('two', { job: 't', devices: 'all' });
  expect(demands(pools)).toEqual([{ pool: 'two', count: 'all' }]);
  now = 1;
  next.set('one', { job: 'o', devices: 1 });
  expect(demands(pools).map(({ pool }) => pool)).toEqual(['two', 'one']);
  now = 2;
  next.set('two', { job: 'u', devices: 1 });
  expect(demands(pools).map(({ pool }) => pool)).toEqual(['one', 'two']);
});
