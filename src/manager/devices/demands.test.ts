import { expect, test } from 'vitest';
import type { PoolConfig } from '../../config/config.ts';
import type { Pool } from '../loop/pool.ts';
import { createDemands, nextDemand, type WaitingForDevices } from './demands.ts';

/** A pool of two devices each whose service has one job, or none. */
function poolWith(job: string | null, asks: number | null): Pool {
  const jobs = { next: () => (job === null ? null : { job, limit: null, cold: false }), devicesFor: () => asks };
  return { service: { jobs }, config: { name: 'gpu', devices: { count: 2 } } } as unknown as Pool;
}

test('a job needs the devices that it asks for, and else what its pool has for each', () => {
  expect(nextDemand(poolWith('a', 4), 0)).toEqual({ turn: 'a', devices: 4 });
  expect(nextDemand(poolWith('a', 0), 0)).toEqual({ turn: 'a', devices: 0 });
  expect(nextDemand(poolWith('a', null), 0)).toEqual({ turn: 'a', devices: 2 });
  expect(nextDemand(poolWith(null, 4), 0)).toBeNull();
});

test('the pool whose next job has waited longest comes first, and another job waits anew', () => {
  let now = 0;
  const next = new Map<string, WaitingForDevices>();
  const demands = createDemands({ now: () => now }, (pool) => next.get(pool) ?? null);
  const pools = ['one', 'two', 'standing'].map((name) => ({ name, standby: name === 'standing' }) as PoolConfig);
  next.set('standing', { turn: 's', devices: 1 }).set('two', { turn: 't', devices: 'all' });
  expect(demands.of(pools)).toEqual([{ pool: 'two', count: 'all' }]);
  now = 1;
  next.set('one', { turn: 'o', devices: 1 });
  expect(demands.of(pools).map(({ pool }) => pool)).toEqual(['two', 'one']);
  now = 2;
  next.set('two', { turn: 'u', devices: 1 });
  expect(demands.of(pools).map(({ pool }) => pool)).toEqual(['one', 'two']);
});

test('a pool whose agents bind early needs devices while more jobs wait than it has agents without one', () => {
  const early = (waiting: number | null) =>
    ({ service: { jobs: null, waiting: () => waiting }, config: { name: 'gpu', devices: { count: 2 } } }) as unknown as Pool;
  expect(nextDemand(early(2), 1)).toEqual({ turn: '', devices: 2 });
  expect(nextDemand(early(1), 1)).toBeNull();
  expect(nextDemand(early(0), 0)).toBeNull();
  expect(nextDemand(early(null), 0)).toBeNull();
});

test('a service that asks for jobs is in line before it has one, and keeps its place until its turn is over', () => {
  let turn: string | null = '0';
  let job: string | null = null;
  const next = () => (job === null ? null : { job, limit: null, cold: false });
  const pool = { service: { jobs: { next }, turn: () => turn }, config: { name: 'lab', devices: { count: 1 } } } as unknown as Pool;
  let now = 0;
  const demands = createDemands({ now: () => now }, (name) => (name === 'lab' ? nextDemand(pool, 0) : { turn: 'o', devices: 1 }));
  const pools = ['lab', 'own'].map((name) => ({ name, standby: false }) as PoolConfig);
  const line = () => demands.of(pools).map((one) => one.pool);
  expect(line()).toEqual(['lab', 'own']);
  now = 10;
  job = 'j';
  expect(line()).toEqual(['lab', 'own']);
  expect(demands.waited('lab')).toBe(10);
  turn = '1';
  job = null;
  expect(line()).toEqual(['own', 'lab']);
  turn = null;
  expect(line()).toEqual(['own']);
  expect(demands.waited('lab')).toBeNull();
});

test('an agent that gets devices sends its pool to the end of the line, once', () => {
  let now = 0;
  const demands = createDemands({ now: () => now }, () => ({ turn: '', devices: 1 }));
  const pools = ['one', 'two'].map((name) => ({ name, standby: false }) as PoolConfig);
  const line = () => demands.of(pools).map((one) => one.pool);
  line();
  now = 5;
  demands.served('one/1', 'a');
  expect(line()).toEqual(['two', 'one']);
  now = 6;
  demands.served('two/1', 'b');
  expect(line()).toEqual(['one', 'two']);
  now = 7;
  demands.served('one/1', 'a');
  expect(line()).toEqual(['one', 'two']);
});
