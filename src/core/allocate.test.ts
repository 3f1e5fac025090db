import { describe, expect, test } from 'vitest';
import { type Allocation, allocate, type Supply } from './allocate.ts';
import type { Allocatable, Lease, Want } from './lease.ts';

type Gpu = Allocatable & { readonly group?: number };

const gpu = (uuid: string, parent: string | null = null): Gpu => ({ uuid, parent });
const gpus = (...uuids: string[]) => uuids.map((uuid) => gpu(uuid));
const want = (pool: string, more: Partial<Want<Gpu>> = {}): Want<Gpu> => ({
  pool,
  agents: 'per-device',
  count: 1,
  share: 1,
  fits: () => true,
  ...more,
});
const lease = (key: string, ...devices: (string | Gpu)[]): Lease => ({
  key,
  pool: key.replace(/\/\d+$/, ''),
  devices: devices.map((device) => (typeof device === 'string' ? gpu(device) : device)),
});
/** What each slot got, as `pool/1: g1 g2`. */
const got = ({ slots }: Allocation) => slots.map((slot) => [`${slot.key}:`, ...slot.devices.map(({ uuid }) => uuid)].join(' '));
const run = (wants: Want<Gpu>[], supply: Supply<Gpu>) => got(allocate(wants, supply));
const on = (...keys: string[]) => new Set(keys);

describe('from nothing', () => {
  test('pools lease in order, and a pool that comes too late learns how many it lacks', () => {
    const wants = [want('multi', { agents: 1, count: 2 }), want('single', { agents: 2 }), want('cpu', { agents: 2, count: 0 })];
    const allocation = allocate(wants, { devices: gpus('g1', 'g2', 'g3') });
    expect(got(allocation)).toEqual(['multi/1: g1 g2', 'single/1: g3', 'cpu/1:', 'cpu/2:']);
    expect(allocation.short).toEqual([{ pool: 'single', wanted: 2, got: 1 }]);
  });

  test('per-device gives one slot to each device that fits', () => {
    const allocation = allocate([want('lab', { fits: ({ uuid }) => uuid !== 'b' })], { devices: gpus('a', 'b', 'c') });
    expect(got(allocation)).toEqual(['lab/1: a', 'lab/2: c']);
    expect(allocation.short).toEqual([]);
  });

  test('per-device in pairs leaves the odd device, and has no effect without devices', () => {
    expect(run([want('pairs', { count: 2 }), want('cpu', { count: 0 })], { devices: gpus('a', 'b', 'c') })).toEqual([
      'pairs/1: a b',
    ]);
  });

  test('all: every device, for one slot', () => {
    expect(run([want('one'), want('rest', { agents: 1, count: 'all' })], { devices: gpus('a', 'b') })).toEqual([
      'one/1: a',
      'one/2: b',
    ]);
    expect(run([want('rest', { agents: 1, count: 'all' }), want('one')], { devices: gpus('a', 'b') })).toEqual(['rest/1: a b']);
  });

  test('a GPU with MIG instances is not allocated as a whole', () => {
    expect(run([want('all')], { devices: [gpu('g'), gpu('m1', 'g'), gpu('m2', 'g')] })).toEqual(['all/1: m1', 'all/2: m2']);
  });

  test('a shared device is in as many slots of its pool as asked, and in no other pool', () => {
    const wants = [want('shared', { share: 2 }), want('late')];
    expect(run(wants, { devices: gpus('a', 'b') })).toEqual(['shared/1: a', 'shared/2: a', 'shared/3: b', 'shared/4: b']);
    expect(run([want('shared', { agents: 3, share: 2 }), want('late')], { devices: gpus('a', 'b', 'c') })).toEqual([
      'shared/1: a',
      'shared/2: a',
      'shared/3: b',
      'late/1: c',
    ]);
  });
});

describe('when something changes', () => {
  test('a slot keeps its device when others come and go, wherever they are listed', () => {
    const leases = [lease('lab/1', 'b'), lease('lab/2', 'c')];
    expect(run([want('lab')], { devices: gpus('a', 'c', 'b', 'd'), leases })).toEqual([
      'lab/1: b',
      'lab/2: c',
      'lab/3: a',
      'lab/4: d',
    ]);
    expect(run([want('first', { agents: 1 }), want('lab')], { devices: gpus('b', 'c'), leases })).toEqual(['lab/1: b', 'lab/2: c']);
  });

  test('a missing device stays leased to its slot, and comes back to it', () => {
    const leases = [lease('lab/1', 'a'), lease('lab/2', 'b')];
    const allocation = allocate([want('lab'), want('late')], { devices: gpus('b', 'c'), leases });
    expect(got(allocation)).toEqual(['lab/1: a', 'lab/2: b', 'lab/3: c']);
    expect(allocation.slots.map((slot) => slot.missing)).toEqual([['a'], [], []]);
    const back = allocate([want('lab'), want('late')], { devices: gpus('a', 'b', 'c'), leases: allocation.slots });
    expect(back.slots.map((slot) => slot.missing)).toEqual([[], [], []]);
    expect(got(back)).toEqual(got(allocation));
  });

  test('its slot takes another device, or ends, once the device is forgotten', () => {
    expect(run([want('lab', { agents: 1 })], { devices: gpus('b'), leases: [lease('lab/1')] })).toEqual(['lab/1: b']);
    expect(run([want('lab')], { devices: [], leases: [lease('lab/1')] })).toEqual([]);
    const pair = [want('pair', { agents: 1, count: 2 })];
    expect(run(pair, { devices: gpus('a', 'b', 'c'), leases: [lease('pair/1', 'b')] })).toEqual(['pair/1: b a']);
    expect(run([...pair, want('one')], { devices: gpus('b'), leases: [lease('pair/1', 'b')] })).toEqual(['one/1: b']);
  });

  test('a slot whose device must not be used moves to a free one, or waits for it', () => {
    const leases = [lease('lab/1', 'a'), lease('lab/2', 'b')];
    const moved = allocate([want('lab', { agents: 2 })], { devices: gpus('a', 'b', 'c'), leases, barred: on('a') });
    expect(got(moved)).toEqual(['lab/1: c', 'lab/2: b']);
    expect(moved.slots[0]?.barred).toEqual([]);
    const waits = allocate([want('lab', { agents: 2 }), want('late')], { devices: gpus('a', 'b'), leases, barred: on('a') });
    expect(got(waits)).toEqual(['lab/1: a', 'lab/2: b']);
    expect(waits.slots.map((slot) => slot.barred)).toEqual([['a'], []]);
    expect(waits.short).toEqual([]);
  });

  test('only the bad one of several devices is replaced', () => {
    const leases = [lease('pair/1', 'a', 'b')];
    expect(run([want('pair', { agents: 1, count: 2 })], { devices: gpus('a', 'b', 'c'), leases, barred: on('b') })).toEqual([
      'pair/1: a c',
    ]);
  });

  test('a barred device is given to nobody, nor are the instances of a barred GPU', () => {
    const devices = [gpu('a'), gpu('g'), gpu('m1', 'g'), gpu('m2', 'g'), gpu('b')];
    expect(run([want('lab')], { devices, barred: on('a', 'g') })).toEqual(['lab/1: b']);
  });

  test('another MIG layout: old instances stay leased, new ones are new devices, and the GPU is not allocated as a whole', () => {
    const m1 = gpu('m1', 'g');
    const slices = want('slices', { fits: ({ parent }) => parent !== null });
    const cards = want('cards', { fits: ({ parent }) => parent === null });
    const leases = [lease('slices/1', m1)];
    expect(run([slices, cards], { devices: [gpu('g'), gpu('m7', 'g')], leases })).toEqual(['slices/1: m1', 'slices/2: m7']);
    expect(run([slices, cards], { devices: [gpu('g')], leases })).toEqual(['slices/1: m1']);
    expect(run([slices, cards], { devices: [gpu('g')], leases: [] })).toEqual(['cards/1: g']);
    // The GPU was leased whole, and was split under our feet.
    expect(run([slices, cards], { devices: [gpu('g'), m1], leases: [lease('cards/1', 'g')] })).toEqual(['slices/1: m1']);
  });

  test('other conditions, fewer slots, a pool that is gone: the devices are free again', () => {
    const devices = gpus('a', 'b');
    const leases = [lease('lab/1', 'a'), lease('lab/2', 'b')];
    expect(run([want('lab', { agents: 2, fits: ({ uuid }) => uuid === 'b' }), want('late')], { devices, leases })).toEqual([
      'lab/2: b',
      'late/1: a',
    ]);
    expect(run([want('lab', { agents: 1 }), want('late')], { devices, leases })).toEqual(['lab/1: a', 'late/1: b']);
    expect(run([want('late')], { devices, leases })).toEqual(['late/1: a', 'late/2: b']);
    expect(run([want('lab', { agents: 1, count: 2 })], { devices, leases: [lease('lab/1', 'b')] })).toEqual(['lab/1: b a']);
    expect(run([want('lab', { agents: 1 })], { devices, leases: [lease('lab/1', 'b', 'a')] })).toEqual(['lab/1: b']);
  });

  test('sharing that ended: the first keeps the device', () => {
    const leases = [lease('lab/1', 'a'), lease('lab/2', 'a')];
    expect(run([want('lab', { agents: 2 })], { devices: gpus('a', 'b'), leases })).toEqual(['lab/1: a', 'lab/2: b']);
  });
});

test('a device goes to one of several contradicting leases', () => {
  const leases = [lease('x/1', 'a'), lease('y/1', 'a'), lease('x/01', 'b'), { ...lease('y/2', 'b'), pool: 'x' }];
  const wants = [want('x', { agents: 1, share: 2 }), want('y', { agents: 1, share: 2 })];
  expect(run(wants, { devices: gpus('a', 'b'), leases })).toEqual(['x/1: a', 'y/1: b']);
  expect(run(wants, { devices: [gpu('a'), gpu('b'), gpu('a')] })).toEqual(['x/1: a', 'y/1: b']);
});

describe('what is in use stays', () => {
  const devices = gpus('a', 'b');

  test('whatever the pools want now, and no other slot gets it', () => {
    const leases = [lease('gone/1', 'a'), lease('lab/5', 'b')];
    const allocation = allocate([want('lab', { agents: 1 })], { devices, leases, inUse: on('gone/1', 'lab/5') });
    expect(got(allocation)).toEqual(['lab/5: b', 'gone/1: a']);
    expect(allocation.slots.every((slot) => slot.outdated)).toBe(true);
    expect(allocation.short).toEqual([{ pool: 'lab', wanted: 1, got: 0 }]);
  });

  test('a card that must not be used is not taken away from a running job', () => {
    const leases = [lease('lab/1', 'a')];
    const supply = { devices, leases, barred: on('a') };
    const busy = allocate([want('lab', { agents: 1 })], { ...supply, inUse: on('lab/1') });
    expect(busy.slots).toMatchObject([{ key: 'lab/1', devices: [{ uuid: 'a' }], barred: ['a'], outdated: true }]);
    expect(run([want('lab', { agents: 1 })], supply)).toEqual(['lab/1: b']);
  });

  test('a slot that fits is not outdated, and a CPU slot needs no lease', () => {
    const allocation = allocate([want('lab', { agents: 1 }), want('cpu', { agents: 1, count: 0 })], {
      devices,
      leases: [lease('lab/1', 'b'), lease('cpu/1')],
      inUse: on('lab/1', 'cpu/1'),
    });
    expect(allocation.slots.map((slot) => slot.outdated)).toEqual([false, false]);
  });

  test('a whole GPU in use bars its instances, and an instance its GPU', () => {
    const supply = { devices: [gpu('g'), gpu('m1', 'g')], inUse: on('old/1') };
    expect(run([want('lab')], { ...supply, leases: [lease('old/1', 'g')] })).toEqual(['old/1: g']);
    expect(run([want('lab')], { devices: [gpu('g')], inUse: on('old/1'), leases: [lease('old/1', gpu('m1', 'g'))] })).toEqual([
      'old/1: m1',
    ]);
  });
});

describe('devices that sit together', () => {
  const pairs = { near: (a: Gpu, b: Gpu) => (a.group === b.group ? 2 : 0) };
  const grouped = (...groups: number[]) => groups.map((group, n): Gpu => ({ ...gpu(`g${n}`), group }));

  test('are allocated together', () => {
    expect(run([want('pair', { count: 2 })], { devices: grouped(0, 1, 0, 1), ...pairs })).toEqual([
      'pair/1: g0 g2',
      'pair/2: g1 g3',
    ]);
    expect(run([want('four', { agents: 1, count: 4 })], { devices: grouped(0, 1, 1, 0, 1, 1), ...pairs })).toEqual([
      'four/1: g1 g2 g4 g5',
    ]);
  });

  test('are left together by a slot that needs only one', () => {
    const wants = [want('one', { agents: 1 }), want('pair', { count: 2 })];
    expect(run(wants, { devices: grouped(0, 0, 1), ...pairs })).toEqual(['one/1: g2', 'pair/1: g0 g1']);
  });

  test('replace a bad one', () => {
    const leases = [lease('pair/1', 'g0', 'g3')];
    const supply = { devices: grouped(0, 1, 0, 1), leases, barred: on('g3'), ...pairs };
    expect(run([want('pair', { agents: 1, count: 2 })], supply)).toEqual(['pair/1: g0 g2']);
  });

  test('matter less than keeping a lease', () => {
    const supply = { devices: grouped(0, 0, 1, 1), leases: [lease('pair/1', 'g0', 'g3')], ...pairs };
    expect(run([want('pair', { agents: 1, count: 2 })], supply)).toEqual(['pair/1: g0 g3']);
  });
});
