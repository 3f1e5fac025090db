/** Slot k of a pool with named devices gets the k-th of them, so agents' names and folders stay with their cards. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Allocation, allocate, type Supply } from './allocate.ts';
import type { Allocatable, Lease, Want } from './lease.ts';

const gpus = (...uuids: string[]): Allocatable[] => uuids.map((uuid) => ({ uuid, parent: null }));
const want = (named: readonly string[], more: Partial<Want<Allocatable>> = {}): Want<Allocatable> => {
  const names = new Set(named.map((name) => name.toLowerCase()));
  const fits = ({ uuid }: Allocatable) => names.has(uuid.toLowerCase());
  return { pool: 'p', agents: named.length, count: 1, share: 1, fits, named, ...more };
};
const got = ({ slots }: Allocation) =>
  slots.map(({ key, devices }) => `${key.slice(2)}: ${devices.map(({ uuid }) => uuid).join(' ')}`);
const run = (one: Want<Allocatable>, supply: Supply<Allocatable>) => got(allocate([one], supply));

describe('named devices', () => {
  test("go to the slots in the order of their names, whatever the host's order", () => {
    expect(run(want(['C', 'a', 'b']), { devices: gpus('a', 'b', 'c') })).toEqual(['1: c', '2: a', '3: b']);
    const near = (one: Allocatable, other: Allocatable) => (one.uuid + other.uuid === 'ab' ? 1 : 0);
    expect(run(want(['b', 'a', 'c']), { devices: gpus('a', 'b', 'c'), near })).toEqual(['1: b', '2: a', '3: c']);
  });

  test('go in the configured sets to agents with several devices', () => {
    const near = (one: Allocatable, other: Allocatable) => (one.uuid < 'c' === other.uuid < 'c' ? 1 : 0);
    const two = want(['a', 'd', 'c', 'b'], { agents: 2, count: 2 });
    expect(run(two, { devices: gpus('a', 'b', 'c', 'd'), near })).toEqual(['1: a d', '2: c b']);
  });

  test('leave a slot without its own device only those that no other slot owns', () => {
    expect(run(want(['a', 'b', 'c']), { devices: gpus('b', 'c') })).toEqual(['2: b', '3: c']);
    expect(run(want(['a', 'b', 'c'], { agents: 2 }), { devices: gpus('b', 'c') })).toEqual(['1: c', '2: b']);
    expect(run(want(['a', 'b', 'c']), { devices: gpus('a', 'b', 'c'), barred: new Set(['a']) })).toEqual(['2: b', '3: c']);
    // Two halves that nobody can use make a whole.
    expect(run(want(['a', 'b', 'c', 'd'], { agents: 2, count: 2 }), { devices: gpus('b', 'c') })).toEqual(['1: b c']);
  });

  test('do not move a slot that has a device already', () => {
    const leases: Lease[] = [{ key: 'p/1', pool: 'p', devices: gpus('b') }];
    expect(run(want(['a', 'b']), { devices: gpus('a', 'b'), leases })).toEqual(['1: b', '2: a']);
  });

  test('are shared by consecutive slots', () => {
    const shared = want(['b', 'a'], { agents: 4, share: 2 });
    expect(run(shared, { devices: gpus('a', 'b') })).toEqual(['1: b', '2: b', '3: a', '4: a']);
  });

  test('keep their order with an agent per device, too', () => {
    expect(run(want(['c', 'a', 'b'], { agents: 'per-device' }), { devices: gpus('a', 'b', 'c') })).toEqual([
      '1: c',
      '2: a',
      '3: b',
    ]);
    expect(run(want(['c', 'a', 'b'], { agents: 'per-device' }), { devices: gpus('a', 'b') })).toEqual(['1: a', '2: b']);
  });

  test('may be cards that stand for their instances', () => {
    const card = { uuid: 'g', parent: null };
    const devices = [card, { uuid: 'm1', parent: 'g' }, { uuid: 'm2', parent: 'g' }];
    const one = want(['g'], { agents: 2, fits: ({ parent }) => parent === 'g' });
    expect(run(one, { devices })).toEqual(['1: m1', '2: m2']);
  });
});

test('S1: as many slots get devices as without an order, no device twice, and the result as input gives the same result', () => {
  const names = ['a', 'b', 'c', 'd', 'e', 'f'];
  fc.assert(
    fc.property(
      fc.shuffledSubarray(names, { minLength: 1 }),
      fc.shuffledSubarray(names),
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 1, max: 2 }),
      fc.subarray(names),
      (named, there, agents, count, away) => {
        const supply = { devices: gpus(...there), barred: new Set(away) };
        const { named: _, ...plain } = want(named, { agents, count });
        const ordered = allocate([want(named, { agents, count })], supply);
        const all = ordered.slots.flatMap(({ devices }) => devices.map(({ uuid }) => uuid));
        expect(new Set(all).size).toBe(all.length);
        expect(got(allocate([want(named, { agents, count })], { ...supply, leases: ordered.slots }))).toEqual(got(ordered));
        const served = ({ slots }: Allocation) => slots.length;
        if (count === 1) expect(served(ordered)).toBe(served(allocate([plain], supply)));
      },
    ),
    { numRuns: 1000 },
  );
});

test('slots that hold devices keep them, whatever the order, and the others take what is left', () => {
  const names = ['a', 'b', 'c', 'd', 'e'];
  fc.assert(
    fc.property(
      fc.shuffledSubarray(names, { minLength: 1 }),
      fc.shuffledSubarray(names),
      fc.shuffledSubarray(names),
      fc.integer({ min: 1, max: 5 }),
      (named, there, held, agents) => {
        const leases: Lease[] = held.slice(0, agents).map((uuid, at) => ({ key: `p/${at + 1}`, pool: 'p', devices: gpus(uuid) }));
        const asked = want(named, { agents });
        const { slots } = allocate([asked], { devices: gpus(...there), leases });
        const all = slots.flatMap(({ devices }) => devices.map(({ uuid }) => uuid));
        expect(new Set(all).size).toBe(all.length);
        for (const { key, devices } of leases) {
          const [device] = devices;
          if (device !== undefined && there.includes(device.uuid) && named.includes(device.uuid))
            expect(slots.find((slot) => slot.key === key)?.devices).toEqual(devices);
        }
        const free = there.filter((uuid) => named.includes(uuid) && !all.includes(uuid));
        // Nothing lies idle while a slot has nothing.
        if (slots.length < agents) expect(free).toEqual([]);
      },
    ),
    { numRuns: 1000 },
  );
});
