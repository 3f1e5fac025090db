/**
 * S1 where it begins: whatever the fleet, the pools and what happens to both, no device and no part of one is handed out twice,
 * and nothing is taken away that could have stayed. Checked with `node:assert`: so many checks take ten times as long with `expect`.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type Allocation, allocate, type Supply } from '../../src/core/allocate.ts';
import type { Allocatable, Lease, Want } from '../../src/core/lease.ts';

type Wants = readonly Want<Allocatable>[];

/** A card that is there or not, whole or in MIG instances. The same instance in two layouts has the same UUID, as in reality. */
interface Card {
  readonly isPresent: boolean;
  readonly instances: readonly number[];
}

interface Step {
  readonly cards: readonly Card[] | null;
  readonly wants: Wants | null;
  /** Of all devices there could be, those barred. */
  readonly barred: readonly string[] | null;
  /** Of the slots so far, which are in use from now on. */
  readonly busy: readonly boolean[];
  readonly forget: boolean;
}

const cardCount = 5;
const names = Array.from({ length: cardCount }, (_, n) => [`g${n}`, `m${n}.0`, `m${n}.1`, `m${n}.2`]).flat();

const card: fc.Arbitrary<Card> = fc.record({
  isPresent: fc.oneof({ weight: 4, arbitrary: fc.constant(true) }, { weight: 1, arbitrary: fc.constant(false) }),
  instances: fc.oneof({ weight: 2, arbitrary: fc.constant([]) }, { weight: 1, arbitrary: fc.subarray([0, 1, 2]) }),
});
const want = fc.record({
  agents: fc.oneof(fc.nat(5), fc.constant('per-device' as const)),
  count: fc.oneof({ weight: 9, arbitrary: fc.nat(3) }, { weight: 1, arbitrary: fc.constant('all' as const) }),
  share: fc.constantFrom(1, 1, 1, 2, 3),
  fits: fc.constantFrom(
    () => true,
    (device: Allocatable) => device.parent === null,
    (device: Allocatable) => device.parent !== null,
    (device: Allocatable) => /[024]/.test(device.uuid.slice(1, 2)),
  ),
});
const wants: fc.Arbitrary<Wants> = fc
  .tuple(fc.shuffledSubarray(['a', 'b', 'c', 'd']), fc.array(want, { minLength: 4, maxLength: 4 }))
  .map(([pools, all]) => pools.flatMap((pool, n) => (all[n] === undefined ? [] : [{ pool, ...all[n] }])));
const seldom = <T>(arbitrary: fc.Arbitrary<T>) => fc.oneof({ weight: 2, arbitrary: fc.constant(null) }, { weight: 1, arbitrary });
const step: fc.Arbitrary<Step> = fc.record({
  cards: seldom(fc.array(card, { minLength: cardCount, maxLength: cardCount })),
  wants: seldom(wants),
  barred: seldom(fc.subarray(names, { maxLength: 4 })),
  busy: fc.array(fc.boolean(), { minLength: 8, maxLength: 8 }),
  forget: fc.boolean(),
});
const beginning = fc.record({ cards: fc.array(card, { minLength: cardCount, maxLength: cardCount }), wants });

function devicesOf(cards: readonly Card[]): Allocatable[] {
  return cards.flatMap(({ isPresent, instances }, n) =>
    isPresent ? [{ uuid: `g${n}`, parent: null }, ...instances.map((i) => ({ uuid: `m${n}.${i}`, parent: `g${n}` }))] : [],
  );
}

const near = (a: Allocatable, b: Allocatable) =>
  (a.parent ?? a.uuid) === (b.parent ?? b.uuid) ? 3 : Number(a.uuid[1]) >> 1 === Number(b.uuid[1]) >> 1 ? 1 : 0;
const ids = (lease: Lease | undefined) => (lease?.devices ?? []).map(({ uuid }) => uuid);

function check(asked: Wants, fleet: Supply<Allocatable>, { slots, short }: Allocation): void {
  const { devices, leases = [], inUse = new Set(), barred = new Set() } = fleet;
  const before = new Map(leases.map((lease) => [lease.key, lease]));
  const after = new Map(slots.map((slot) => [slot.key, slot]));
  const present = new Map(devices.map((device) => [device.uuid, device]));
  const isBarred = ({ uuid, parent }: Allocatable) => barred.has(uuid) || (parent !== null && barred.has(parent));
  const isSplit = (uuid: string) => devices.some(({ parent }) => parent === uuid);
  const suits = (one: Want<Allocatable>, { uuid }: Allocatable) => {
    const device = present.get(uuid);
    return device === undefined || (one.fits(device) && !isSplit(uuid));
  };
  const holders = new Map<string, typeof slots>();
  for (const slot of slots) for (const uuid of ids(slot)) holders.set(uuid, [...(holders.get(uuid) ?? []), slot]);
  const parts = new Set(slots.flatMap((slot) => slot.devices.map(({ parent }) => parent)));

  assert.equal(after.size, slots.length);
  for (const [uuid, held] of holders) {
    // One pool's alone, and no more of its slots than share it, but for those that were there before it shared less.
    assert.equal(new Set(held.map(({ pool }) => pool)).size, 1);
    const share = asked.find(({ pool }) => pool === held[0]?.pool)?.share ?? 1;
    if (held.length > share) assert(held.every(({ key }) => inUse.has(key)));
    // Never a GPU and a part of it, be either of them missing.
    assert(!parts.has(uuid));
  }
  for (const slot of slots) {
    const one = asked.find(({ pool }) => pool === slot.pool);
    const old = before.get(slot.key);
    assert.equal(new Set(ids(slot)).size, slot.devices.length);
    assert.deepEqual(
      slot.missing,
      ids(slot).filter((uuid) => !present.has(uuid)),
    );
    if (inUse.has(slot.key) && old !== undefined) {
      assert.deepEqual(ids(slot), ids(old));
      continue;
    }
    assert.equal(slot.outdated, false);
    if (one === undefined) throw new Error(`${slot.key} is of no pool`);
    if (one.count !== 'all') assert.equal(slot.devices.length, one.count);
    for (const device of slot.devices) {
      assert(suits(one, device));
      // What is missing or barred was its own before.
      if (!present.has(device.uuid) || isBarred(device)) assert(ids(old).includes(device.uuid));
    }
  }
  for (const key of inUse) if (before.has(key)) assert(after.has(key));

  for (const old of leases) {
    const one = asked.find(
      ({ pool, agents }) => pool === old.pool && (agents === 'per-device' || Number(old.key.split('/')[1]) <= agents),
    );
    if (one === undefined || one.count === 0 || old.devices.length === 0) continue;
    const isWhole = one.count === 'all' || old.devices.length === one.count;
    const isGood = old.devices.every((device) => suits(one, device) && !isBarred(device));
    const isShared = old.devices.some(({ uuid }) => leases.filter((lease) => ids(lease).includes(uuid)).length > one.share);
    // It stays as it is, missing devices and all; `all` may grow.
    if (isWhole && isGood && !isShared) assert.deepEqual(ids(after.get(old.key)).slice(0, old.devices.length), ids(old));
  }

  const left = devices.filter((device) => !holders.has(device.uuid) && !isBarred(device) && !parts.has(device.uuid));
  const free = (one: Want<Allocatable>) =>
    left.filter((device) => suits(one, device) && (device.parent === null || !holders.has(device.parent))).length;
  for (const one of asked) {
    const isShort = one.agents === 'per-device' || short.some(({ pool }) => pool === one.pool);
    if (one.count !== 0 && isShort) assert(free(one) < (one.count === 'all' ? 1 : one.count));
    // Who waits with a barred device waits because there is no other.
    const waiting = slots.filter((slot) => slot.pool === one.pool && slot.barred.length > 0 && !inUse.has(slot.key));
    for (const slot of waiting) assert(free(one) < slot.barred.length);
  }
}

test('a card that a slot of a later pool leaves for a better one goes to the earlier pool that waits for it, at once', () => {
  const whole: Want<Allocatable> = { pool: 'd', agents: 'per-device', count: 1, share: 1, fits: ({ parent }) => parent === null };
  const part: Want<Allocatable> = { pool: 'a', agents: 'per-device', count: 1, share: 1, fits: ({ parent }) => parent !== null };
  const cards = (...instances: number[][]) => devicesOf(instances.map((each) => ({ isPresent: true, instances: each })));
  const { slots: leases } = allocate([whole, part], { devices: cards([], [0]) });
  const fleet = { devices: cards([1], []), leases, barred: new Set(['m1.0']) };
  const { slots } = allocate([whole, part], fleet);
  expect(slots.map((slot) => [slot.key, ...ids(slot)])).toEqual([
    ['d/1', 'g1'],
    ['a/1', 'm0.1'],
  ]);
});

test('S1: through whatever happens to devices, layouts, pools and people, nothing is handed out twice or taken for no reason', () => {
  fc.assert(
    fc.property(beginning, fc.array(step, { maxLength: 8 }), fc.boolean(), (start, steps, hasPlaces) => {
      let cards: readonly Card[] = start.cards;
      let asked = start.wants;
      let barred: ReadonlySet<string> = new Set();
      let leases: readonly Lease[] = [];
      let inUse: ReadonlySet<string> = new Set();
      const settle = () => {
        const fleet = { devices: devicesOf(cards), leases, inUse, barred, ...(hasPlaces ? { near } : {}) };
        const allocation = allocate(asked, fleet);
        check(asked, fleet, allocation);
        assert.deepEqual(allocate(asked, fleet), allocation);
        assert.deepEqual(allocate(asked, { ...fleet, leases: allocation.slots }), allocation);
        leases = allocation.slots;
      };
      settle();
      for (const next of steps) {
        cards = next.cards ?? cards;
        asked = next.wants ?? asked;
        barred = next.barred === null ? barred : new Set(next.barred);
        inUse = new Set(leases.filter((_, n) => next.busy[n] ?? false).map(({ key }) => key));
        const there = new Set(devicesOf(cards).map(({ uuid }) => uuid));
        if (next.forget) {
          leases = leases.map((lease) =>
            inUse.has(lease.key) ? lease : { ...lease, devices: lease.devices.filter(({ uuid }) => there.has(uuid)) },
          );
        }
        settle();
      }
    }),
    { numRuns: 2000 },
  );
});
