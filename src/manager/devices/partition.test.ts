import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { gpu as card, oneDevice } from '../../../test/support/devices.ts';
import type { Device } from '../../gpu/inventory.ts';
import type { Ending, InLine } from './latest-start.ts';
import { type Ahead, leaseOf, mayLeaseSeveral, type PartitionInput, type PartitionPool, partition } from './partition.ts';

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
  endOf: () => ({ until: null, job: null, isSure: false }),
  lineOf: () => [],
  now: 0,
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

const minute = 60_000;

describe('a job that goes before one that waits', () => {
  const any = pool('any', { agents: 8 });
  /** Until when each slot has its devices; without a number nobody knows. */
  const ends =
    (until: Readonly<Record<string, number | null>>) =>
    (key: string): Ending => ({
      until: until[key] ?? null,
      job: `of ${key}`,
      isSure: true,
    });
  const line = (...jobs: readonly (readonly [count: number, minutes: number | null])[]): InLine[] =>
    jobs.map(([count, minutes], n) => ({ job: `j${n}`, count, lasts: minutes === null ? null : minutes * minute }));
  /** Four cards, of which `busy` slots have one each; the first of `jobs` waits. */
  const four = (busy: Readonly<Record<string, number | null>>, jobs: readonly InLine[], more: Partial<PartitionInput> = {}) =>
    partition(
      input({
        pools: [any],
        devices: gpus(4),
        leases: Object.keys(busy).map((key, n) => lease(key, `GPU-${n}`)),
        inUse: new Set(Object.keys(busy)),
        demands: [{ pool: 'any', count: jobs[0]?.count ?? 1 }],
        endOf: ends(busy),
        lineOf: () => jobs,
        ...more,
      }),
    );

  test('ends before that one could start at the latest', () => {
    const result = four({ 'any/1': 60 * minute, 'any/2': 30 * minute }, line([4, null], [1, 70], [2, null], [2, 59], [1, 5]));
    expect(result.waits).toEqual([
      {
        pool: 'any',
        job: 'j0',
        count: 4,
        most: 4,
        held: ['GPU-2', 'GPU-3'],
        latest: { at: 60 * minute, after: 'of any/1', isSure: true, spare: 0 },
        endless: null,
      },
    ]);
    expect(result.ahead).toEqual<Ahead>({ key: 'any/3', job: 'j3', isBehind: true, beginBy: minute, lasts: 59 * minute });
    expect(dealt(result)).toEqual(['any/1: GPU-0', 'any/2: GPU-1', 'any/3: GPU-2 GPU-3']);
    expect([...result.waiting]).toEqual(['any']);
  });

  test('may also last longer on devices that the other does not need then', () => {
    const busy = { 'any/1': 60 * minute, 'any/2': 30 * minute };
    expect(four(busy, line([3, null], [1, null])).ahead).toBeNull();
    expect(four({ 'any/1': 30 * minute, 'any/2': 30 * minute }, line([3, null], [1, null])).ahead?.job).toBe('j1');
    expect(four({ 'any/1': 30 * minute, 'any/2': 30 * minute }, line([3, null], [2, null])).ahead).toBeNull();
  });

  test('does not exist where nobody knows when that one could start', () => {
    const result = four({ 'any/1': null, 'any/2': minute }, line([4, null], [1, 1]));
    expect([result.ahead, result.waits[0]?.latest, result.waits[0]?.endless]).toEqual([null, null, 'of any/1']);
  });

  test('need not end where nothing is kept, since that one cannot start even if all others ended', () => {
    const result = four({}, line([4, null], [1, null]), { barred: new Set(['GPU-0']) });
    expect(result.waits[0]).toMatchObject({ most: 3, held: [], latest: null });
    expect(result.ahead).toMatchObject({ job: 'j1', beginBy: Number.POSITIVE_INFINITY });
  });

  test('is the next one instead, with all that it has, where the first cannot have enough', () => {
    const jobs = line([8, null], [9, null], [4, null], [1, null]);
    const busy = four({ 'any/1': 60 * minute }, jobs);
    expect(busy.waits.map(({ job, held, latest }) => [job, held.length, latest?.at ?? null])).toEqual([
      ['j0', 0, null],
      ['j2', 3, 60 * minute],
    ]);
    expect(busy.ahead).toBeNull();
    const free = four({}, jobs);
    expect(free.ahead).toMatchObject({ key: 'any/1', job: 'j2', isBehind: true });
    expect(dealt(free)).toEqual(['any/1: GPU-0 GPU-1 GPU-2 GPU-3']);
  });

  test('leaves the last free slot of its pool', () => {
    const few = { pools: [pool('any', { agents: 3 })] };
    const busy = { 'any/1': 60 * minute, 'any/2': 60 * minute };
    expect(four(busy, line([4, null], [1, 5]), few).ahead).toBeNull();
    expect(four({ 'any/1': 60 * minute }, line([4, null], [1, 5]), few).ahead?.key).toBe('any/2');
  });

  test('may be the next one of another pool, which waits no more then', () => {
    const other = pool('other');
    const result = four({ 'any/1': 60 * minute }, line([4, null]), {
      pools: [any, other],
      demands: [
        { pool: 'any', count: 4 },
        { pool: 'other', count: 1 },
      ],
      lineOf: (name) => (name === 'any' ? line([4, null]) : [{ job: 'x', count: 1, lasts: minute }]),
    });
    expect(result.ahead).toMatchObject({ key: 'other/1', job: 'x', isBehind: false });
    expect([...result.waiting]).toEqual(['any']);
    expect(result.waits.map((wait) => wait.pool)).toEqual(['any']);
  });

  test('promises nothing to those that wait after another one for the same devices', () => {
    const result = four({ 'any/1': 60 * minute }, line([4, null]), {
      pools: [any, pool('other')],
      demands: [
        { pool: 'any', count: 4 },
        { pool: 'other', count: 4 },
      ],
    });
    expect(result.waits.map(({ latest }) => latest?.at ?? null)).toEqual([60 * minute, null]);
  });
});

test('it matters which devices a pool leases if a job may have several', () => {
  expect(mayLeaseSeveral(pool('one'))).toBe(true);
  expect(mayLeaseSeveral(pool('pair', { standby: true, count: 2 }))).toBe(true);
  expect(mayLeaseSeveral(pool('single', { standby: true }))).toBe(false);
  expect(mayLeaseSeveral(pool('cpu', { count: 0 }))).toBe(false);
});

describe('jobs of all sizes with time limits, on a host in virtual time', () => {
  interface Job {
    readonly at: number;
    readonly count: number;
    readonly limit: number;
    readonly runs: number;
  }
  interface Running {
    readonly job: number;
    readonly devices: readonly string[];
    readonly begun: number;
  }

  /** When each job starts; `promised`: the first latest start that was known of it. */
  function play(cards: number, jobs: readonly Job[]) {
    const started = new Map<number, number>();
    const promised = new Map<number, number>();
    const running = new Map<string, Running>();
    const jobOf = (at: number): Job => jobs[at] ?? { at: 0, count: 0, limit: 0, runs: 0 };
    const nameOf = (name: string) => Number(name.slice(1));
    for (let now = 0; now <= 3_000 && (started.size < jobs.length || running.size > 0); now++) {
      for (const [key, { job, begun }] of running) if (begun + jobOf(job).runs <= now) running.delete(key);
      for (;;) {
        const line = jobs.flatMap(({ at, count, limit }, n): InLine[] =>
          at > now || started.has(n) ? [] : [{ job: `j${n}`, count, lasts: limit * minute }],
        );
        const [head] = line;
        if (head === undefined) break;
        const result = partition(
          input({
            pools: [pool('any', { agents: 'per-device' })],
            devices: gpus(cards),
            leases: [...running].map(([key, { devices }]) => lease(key, ...devices)),
            inUse: new Set(running.keys()),
            demands: [{ pool: 'any', count: head.count }],
            lineOf: () => line,
            endOf: (key) => {
              const { job, begun } = running.get(key) ?? { job: -1, begun: 0 };
              return { until: (begun + jobOf(job).limit) * minute, job: `j${job}`, isSure: true };
            },
            now: now * minute,
          }),
        );
        const all = result.slots.flatMap((slot) => slot.devices.map(({ uuid }) => uuid));
        expect(new Set(all).size).toBe(all.length);
        const latest = result.waits[0]?.latest?.at;
        const waits = nameOf(head.job);
        if (latest !== undefined && !promised.has(waits)) promised.set(waits, latest / minute);
        const fresh = result.slots.find((slot) => !running.has(slot.key));
        if (fresh === undefined) break;
        const job = nameOf(result.ahead?.job ?? head.job);
        expect(fresh.devices).toHaveLength(jobOf(job).count);
        running.set(fresh.key, { job, devices: fresh.devices.map(({ uuid }) => uuid), begun: now });
        started.set(job, now);
      }
    }
    return { started, promised };
  }

  const job = fc.integer({ min: 2, max: 30 }).chain((limit) =>
    fc.record({
      at: fc.integer({ min: 0, max: 20 }),
      count: fc.constantFrom(1, 2, 3, 4, 6, 8),
      limit: fc.constant(limit),
      runs: fc.oneof(fc.constant(limit), fc.integer({ min: 1, max: limit })),
    }),
  );

  test('each starts, and none later than was said when it became the next', () => {
    fc.assert(
      fc.property(fc.array(job, { minLength: 4, maxLength: 16 }), (drawn) => {
        const jobs = drawn.toSorted((a, b) => a.at - b.at);
        const { started, promised } = play(8, jobs);
        expect(started.size).toBe(jobs.length);
        for (const [job, at] of promised) expect(started.get(job)).toBeLessThanOrEqual(at);
      }),
      { numRuns: 60 },
    );
  });

  test('small jobs without an end in sight starve no large one, and use what it would leave idle', () => {
    const small = Array.from({ length: 200 }, (_, at) => ({ at, count: 1, limit: 10, runs: 10 }));
    const large = { at: 20, count: 8, limit: 10, runs: 10 };
    const jobs = [...small.filter(({ at }) => at <= 20), large, ...small.filter(({ at }) => at > 20)];
    const { started } = play(8, jobs);
    expect(started.get(jobs.indexOf(large))).toBeLessThanOrEqual(20 + 10 + 10);
    // One that ends in time goes before a large one that waits for a card with a long job.
    const passing = play(8, [
      { at: 0, count: 1, limit: 60, runs: 60 },
      { at: 1, count: 8, limit: 10, runs: 10 },
      { at: 2, count: 2, limit: 20, runs: 20 },
    ]);
    expect([...passing.started.values()].sort((a, b) => a - b)).toEqual([0, 2, 60]);
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
