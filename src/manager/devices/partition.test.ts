import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { gpu as card, oneDevice } from '../../../test/support/devices.ts';
import type { Device } from '../../gpu/inventory.ts';
import { leaseOf, type PartitionInput, type PartitionPool, partition } from './partition.ts';

const pool = (name: string, more: Partial<PartitionPool> & { count?: number | 'all' } = {}): PartitionPool => ({
  name,
  agents: 4,
  standby: false,
  ...more,
  devices: { ...oneDevice, count: more.count ?? 1, ...more.devices },
});
const gpu = (n: number): Device => card(n, { uuid: `GPU-${n}`, pciId: null, mig: null });
const gpus = (count: number): Device[] => Array.from({ length: count }, (_, n) => gpu(n));
const input = (more: Partial<PartitionInput>): PartitionInput => ({
  pools: [],
  devices: [],
  leases: [],
  inUse: new Set(),
  barred: new Set(),
  occupied: new Set(),
  demands: [],
  near: () => 0,
  ...more,
});
const lease = (key: string, ...devices: string[]) => leaseOf({ key, devices }, () => null);
const dealt = (result: ReturnType<typeof partition>): string[] =>
  result.slots.map((slot) => `${slot.key}: ${slot.devices.map(({ uuid }) => uuid).join(' ')}`);

describe('pools that lease for each job', () => {
  const two = pool('two', { count: 2 });
  const one = pool('one');

  test('hold nothing while no job waits', () => {
    expect(dealt(partition(input({ pools: [one, two], devices: gpus(4) })))).toEqual([]);
  });

  test('share what pools with standbys leave, the longest-waiting job first', () => {
    const fixed = pool('fixed', { standby: true, agents: 1 });
    const result = partition(
      input({
        pools: [fixed, one, two],
        devices: gpus(3),
        demands: [
          { pool: 'two', count: 2 },
          { pool: 'one', count: 1 },
        ],
      }),
    );
    expect(dealt(result).sort()).toEqual(['fixed/1: GPU-0', 'two/1: GPU-1 GPU-2']);
    expect([...result.waiting]).toEqual(['one']);
  });

  test('a waiting job for two is not starved by jobs for one: what becomes free is kept for it', () => {
    const leases = [lease('one/1', 'GPU-0'), lease('one/2', 'GPU-1')];
    const demands = [
      { pool: 'two', count: 2 },
      { pool: 'one', count: 1 },
    ];
    const busy = partition(input({ pools: [one, two], devices: gpus(2), leases, inUse: new Set(['one/1', 'one/2']), demands }));
    expect([...busy.waiting].sort()).toEqual(['one', 'two']);
    const half = partition(input({ pools: [one, two], devices: gpus(2), leases, inUse: new Set(['one/2']), demands }));
    expect(dealt(half)).toEqual(['one/2: GPU-1']);
    expect([...half.waiting].sort()).toEqual(['one', 'two']);
    const free = partition(input({ pools: [one, two], devices: gpus(2), leases, demands }));
    expect(dealt(free)).toEqual(['two/1: GPU-0 GPU-1']);
  });

  test('a job asks for any number, and keeps them while the next one asks for others', () => {
    const first = partition(input({ pools: [one], devices: gpus(4), demands: [{ pool: 'one', count: 3 }] }));
    expect(dealt(first)).toEqual(['one/1: GPU-0 GPU-1 GPU-2']);
    const leases = [lease('one/1', 'GPU-0', 'GPU-1', 'GPU-2')];
    const then = partition(
      input({ pools: [one], devices: gpus(4), leases, inUse: new Set(['one/1']), demands: [{ pool: 'one', count: 1 }] }),
    );
    expect(dealt(then)).toEqual(['one/1: GPU-0 GPU-1 GPU-2', 'one/2: GPU-3']);
    expect(then.slots.some((slot) => slot.outdated)).toBe(false);
  });

  test('take what is unused, and reserve nothing for a job that would not have enough anyway', () => {
    const demands = [
      { pool: 'two', count: 2 },
      { pool: 'one', count: 1 },
    ];
    const result = partition(input({ pools: [one, two], devices: gpus(2), occupied: new Set(['GPU-0']), demands }));
    expect(dealt(result)).toEqual(['one/1: GPU-1']);
    expect([...result.waiting]).toEqual(['two']);
    // Those that have their devices for good wait for them.
    const fixed = pool('fixed', { standby: true, agents: 1 });
    expect(dealt(partition(input({ pools: [fixed], devices: gpus(2), occupied: new Set(['GPU-0']) })))).toEqual(['fixed/1: GPU-0']);
  });

  test('take nothing for a job that waits for one of their agents', () => {
    const single = pool('single', { agents: 1 });
    const leases = [lease('single/1', 'GPU-0')];
    const demands = [
      { pool: 'single', count: 1 },
      { pool: 'one', count: 1 },
    ];
    const result = partition(input({ pools: [single, one], devices: gpus(2), leases, inUse: new Set(['single/1']), demands }));
    expect(dealt(result)).toEqual(['single/1: GPU-0', 'one/1: GPU-1']);
    expect([...result.waiting]).toEqual([]);
  });
});

test('S1: no device is dealt twice, whatever waits and whatever is in use', () => {
  const pools = [
    pool('fixed', { standby: true, agents: 2 }),
    pool('one'),
    pool('two', { count: 2 }),
    pool('all', { count: 'all' }),
  ];
  fc.assert(
    fc.property(
      fc.integer({ min: 0, max: 8 }),
      fc.subarray(['one', 'two', 'all', 'fixed'], { minLength: 0 }),
      fc.array(fc.constantFrom('one', 'two', 'all'), { maxLength: 3 }),
      fc.subarray([0, 1, 2, 3, 4, 5, 6, 7]),
      (count, busy, waiting, away) => {
        const leases = busy.map((name, n) => lease(`${name}/1`, `GPU-${n}`));
        const demands = [...new Set(waiting)].map((name) => ({
          pool: name,
          count: name === 'all' ? ('all' as const) : name === 'two' ? 2 : 1,
        }));
        const barred = new Set(away.map((n) => `GPU-${n}`));
        const inUse = new Set(leases.map(({ key }) => key));
        const result = partition(input({ pools, devices: gpus(count), leases, inUse, demands, barred }));
        const all = result.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid));
        expect(new Set(all).size).toBe(all.length);
        for (const { key, devices } of leases) {
          expect(result.slots.find((slot) => slot.key === key)?.devices.map(({ uuid }) => uuid)).toEqual(
            devices.map(({ uuid }) => uuid),
          );
        }
      },
    ),
    { numRuns: 2000 },
  );
});
