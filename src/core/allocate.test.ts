import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type Allocatable, allocate, type Want } from './allocate.ts';

const gpu = (uuid: string, parent: string | null = null): Allocatable => ({ uuid, parent });
const any = () => true;

test('pools lease in order, and a pool that comes too late is told how short it is', () => {
  const devices = ['g1', 'g2', 'g3'].map((uuid) => gpu(uuid));
  const allocation = allocate(
    [
      { pool: 'multi', agents: 1, count: 2, share: 1, fits: any },
      { pool: 'single', agents: 2, count: 1, share: 1, fits: any },
      { pool: 'cpu', agents: 2, count: 0, share: 1, fits: any },
    ],
    devices,
  );
  expect(allocation.slots.map((slot) => [slot.key, slot.devices])).toEqual([
    ['multi/1', ['g1', 'g2']],
    ['single/1', ['g3']],
    ['cpu/1', []],
    ['cpu/2', []],
  ]);
  expect(allocation.short).toEqual([{ pool: 'single', wanted: 2, got: 1 }]);
});

test('per-device gives one slot to each device that fits', () => {
  const devices = [gpu('a'), gpu('b'), gpu('c')];
  const { slots, short } = allocate(
    [{ pool: 'lab', agents: 'per-device', count: 1, share: 1, fits: (d) => d.uuid !== 'b' }],
    devices,
  );
  expect(slots.map((slot) => slot.devices)).toEqual([['a'], ['c']]);
  expect(short).toEqual([]);
});

test('a GPU with MIG instances is not handed out whole', () => {
  const devices = [gpu('g'), gpu('m1', 'g'), gpu('m2', 'g')];
  const { slots } = allocate([{ pool: 'all', agents: 'per-device', count: 1, share: 1, fits: any }], devices);
  expect(slots.map((slot) => slot.devices)).toEqual([['m1'], ['m2']]);
});

test('a shared device is in as many slots of its pool as asked, and in no other pool', () => {
  const { slots } = allocate(
    [
      { pool: 'shared', agents: 'per-device', count: 1, share: 2, fits: any },
      { pool: 'late', agents: 'per-device', count: 1, share: 1, fits: any },
    ],
    [gpu('a'), gpu('b')],
  );
  expect(slots.map((slot) => slot.devices)).toEqual([['a'], ['a'], ['b'], ['b']]);
});

const fleet = fc
  .array(fc.nat(4), { maxLength: 10 })
  .map((parts) =>
    parts.flatMap((instances, i) => [gpu(`g${i}`), ...Array.from({ length: instances }, (_, n) => gpu(`m${i}.${n}`, `g${i}`))]),
  );
const wants: fc.Arbitrary<Want<Allocatable>[]> = fc.array(
  fc.record({
    pool: fc.uuid(),
    agents: fc.oneof(fc.nat(12), fc.constant('per-device' as const)),
    count: fc.nat(3),
    share: fc.constantFrom(1, 1, 2, 3),
    fits: fc.constantFrom(
      any,
      (d: Allocatable) => d.parent === null,
      (d: Allocatable) => d.parent !== null,
    ),
  }),
  { maxLength: 6 },
);

test('S1: whatever the fleet and the pools, no device and no part of it is handed out twice', () => {
  fc.assert(
    fc.property(fleet, wants, (devices, asked) => {
      const { slots } = allocate(asked, devices);
      const holders = new Map<string, Set<string>>();
      for (const slot of slots) {
        const want = asked.find((one) => one.pool === slot.pool);
        expect(slot.devices).toHaveLength(want?.count ?? -1);
        expect(new Set(slot.devices).size).toBe(slot.devices.length);
        for (const uuid of slot.devices) {
          const device = devices.find((one) => one.uuid === uuid);
          expect(device !== undefined && want?.fits(device)).toBe(true);
          expect(devices.some((one) => one.parent === uuid)).toBe(false);
          const keys = holders.get(uuid) ?? new Set();
          keys.add(slot.key);
          holders.set(uuid, keys);
          expect(keys.size).toBeLessThanOrEqual(want?.share ?? 0);
          expect(new Set([...keys].map((key) => key.split('/')[0])).size).toBe(1);
        }
      }
    }),
    { numRuns: 3000 },
  );
});
