import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import type { OutcomeFilter } from '../contract/history.ts';
import { type VerdictKind, verdictKinds } from '../contract/verdict.ts';
import { migrations } from './migrations.ts';
import { imagesADay, type SumsFilter } from './outcome-sums.ts';
import type { StoredOutcome } from './outcomes.ts';
import { openStore } from './store.ts';

const hour = 3_600_000;
const everything: OutcomeFilter = {
  pool: null,
  service: null,
  kind: null,
  failed: false,
  image: null,
  device: null,
  since: null,
  until: null,
  before: null,
  limit: 1_000,
};

type New = Omit<StoredOutcome, 'seq' | 'variance'>;

function outcome(job: string, kind: VerdictKind, endedAt: number, more: Partial<New> = {}): New {
  return {
    job,
    service: 'own',
    pool: 'gpu',
    agent: null,
    image: null,
    devices: [],
    endedAt,
    wait: 10,
    run: 100,
    verdict: { kind, why: 'because', evidence: [] },
    ending: { result: null, exit: null, memoryLimited: false, ownRecipe: false, ownImage: false },
    ...more,
  };
}

function bench() {
  const dir = scratch();
  const store = openStore(dir.path);
  return {
    store,
    table: store.outcomes,
    save: (...all: New[]) =>
      store.transaction({ durable: false }, () => {
        for (const one of all) store.outcomes.save(one);
      }),
    jobs: (filter: Partial<OutcomeFilter>) => store.outcomes.list({ ...everything, ...filter }).map(({ job }) => job),
    sums: (axis: SumsFilter['axis'], more: Partial<SumsFilter> = {}) =>
      store.outcomes.sums({ axis, pool: null, only: null, since: null, until: null, limit: 1_000, ...more }),
    prune: (time: number, limit: number) => store.transaction({ durable: false }, () => store.outcomes.prune(time, limit)),
    pruneSums: (now: number) => store.transaction({ durable: false }, () => store.outcomes.pruneSums(now)),
    [Symbol.dispose]: () => {
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

it('lists the newest first, narrowed by pool, service, kind, image, device and time', () => {
  using one = bench();
  one.save(
    outcome('a', 'passed', 1_000, { devices: ['GPU-1'], image: 'cuda:12' }),
    outcome('b', 'code', 2_000, { pool: 'cpu', image: 'cuda:12' }),
    outcome('c', 'infrastructure', 3_000, { devices: ['GPU-1', 'GPU-2'], service: 'azure' }),
    outcome('d', 'cancelled', 4_000),
  );
  expect(one.jobs({})).toEqual(['d', 'c', 'b', 'a']);
  expect(one.jobs({ pool: 'cpu' })).toEqual(['b']);
  expect(one.jobs({ service: 'azure' })).toEqual(['c']);
  expect(one.jobs({ failed: true })).toEqual(['c', 'b']);
  expect(one.jobs({ failed: true, pool: 'gpu' })).toEqual(['c']);
  expect(one.jobs({ kind: 'cancelled' })).toEqual(['d']);
  expect(one.jobs({ image: 'cuda:12' })).toEqual(['b', 'a']);
  expect(one.jobs({ image: 'cuda:12', pool: 'gpu', service: 'own' })).toEqual(['a']);
  expect(one.jobs({ image: 'cuda:12', failed: true })).toEqual(['b']);
  expect(one.jobs({ image: 'cuda:12', kind: 'passed', device: 'GPU-1' })).toEqual(['a']);
  expect(one.jobs({ device: 'GPU-1' })).toEqual(['c', 'a']);
  expect(one.jobs({ device: 'GPU-1', failed: true })).toEqual(['c']);
  expect(one.jobs({ since: 2_000, until: 4_000 })).toEqual(['c', 'b']);
});

it('pages by key, also through jobs that ended in the same millisecond', () => {
  using one = bench();
  one.save(...['a', 'b', 'c', 'd', 'e'].map((job) => outcome(job, 'passed', 7, { devices: ['GPU-1'] })));
  for (const device of [null, 'GPU-1']) {
    const seen: string[] = [];
    let before: OutcomeFilter['before'] = null;
    for (;;) {
      const page = one.table.list({ ...everything, device, before, limit: 2 });
      const last = page.at(-1);
      if (last === undefined) break;
      seen.push(...page.map(({ job }) => job));
      before = { endedAt: last.endedAt, seq: last.seq };
    }
    expect(seen).toEqual(['e', 'd', 'c', 'b', 'a']);
  }
});

it('changes the verdict of a job, in its row and in the sums', () => {
  using one = bench();
  one.save(outcome('a', 'code', 5, { devices: ['GPU-1'] }), outcome('b', 'passed', 6, { devices: ['GPU-1'] }));
  one.save(outcome('a', 'infrastructure', 5, { devices: ['GPU-1'] }));
  expect(one.table.get('a')?.verdict.kind).toBe('infrastructure');
  expect(one.sums('device')).toMatchObject([{ value: 'GPU-1', jobs: 2, infrastructure: 1, passed: 1, code: 0 }]);
});

it('keeps sums longer than rows, for a year and a month', () => {
  using one = bench();
  one.save(outcome('a', 'passed', 5), outcome('b', 'passed', 10 * hour), outcome('c', 'code', 20 * hour));
  expect([one.prune(11 * hour, 1), one.prune(11 * hour, 1), one.prune(11 * hour, 1)]).toEqual([1, 1, 0]);
  expect(one.jobs({})).toEqual(['c']);
  expect(one.sums('pool')).toMatchObject([{ jobs: 3, code: 1, passed: 2 }]);
  one.save(outcome('d', 'code', 30 * hour));
  one.pruneSums(396 * 24 * hour + 47 * hour);
  expect(one.sums('pool')).toMatchObject([{ jobs: 1, code: 1 }]);
  expect(one.sums('hour')).toMatchObject([{ value: `${30 * hour}`, jobs: 1 }]);
});

it('sums by hour and day what ended then', () => {
  using one = bench();
  one.save(
    outcome('a', 'passed', 1 * hour),
    outcome('b', 'code', 1 * hour + 5, { pool: 'cpu' }),
    outcome('c', 'passed', 25 * hour),
  );
  expect(one.sums('hour')).toMatchObject([
    { value: `${hour}`, jobs: 2, code: 1, passed: 1 },
    { value: `${25 * hour}`, jobs: 1, passed: 1 },
  ]);
  expect(one.sums('day', { since: 24 * hour })).toMatchObject([{ value: `${24 * hour}`, jobs: 1, passed: 1 }]);
  expect(one.sums('hour', { pool: 'cpu' })).toMatchObject([{ value: `${hour}`, jobs: 1, code: 1 }]);
});

it('sums what ended in one image, on one device or of one service, by time', () => {
  using one = bench();
  one.save(
    outcome('a', 'passed', 1 * hour, { image: 'cuda:12', devices: ['GPU-1'] }),
    outcome('b', 'code', 1 * hour, { image: 'cuda:13', devices: ['GPU-1', 'GPU-2'], service: 'azure' }),
    outcome('c', 'passed', 25 * hour, { image: 'cuda:12', pool: 'cpu' }),
  );
  const days = (axis: 'image' | 'device' | 'service', value: string, more = {}) =>
    one.sums('day', { only: { axis, value }, ...more }).map((sums) => [Number(sums.value), sums.passed, sums.code]);
  expect(days('image', 'cuda:12')).toEqual([
    [0, 1, 0],
    [24 * hour, 1, 0],
  ]);
  expect(days('image', 'cuda:12', { pool: 'cpu' })).toEqual([[24 * hour, 1, 0]]);
  expect(days('device', 'GPU-1')).toEqual([[0, 1, 1]]);
  expect(days('service', 'azure')).toEqual([[0, 0, 1]]);
  expect(one.sums('image')).toMatchObject([
    { value: 'cuda:12', jobs: 2 },
    { value: 'cuda:13', jobs: 1 },
  ]);
});

it('gives the images of a day sums of their own up to a number, and can still change a verdict', () => {
  using one = bench();
  const own = Array.from({ length: imagesADay }, (_, n) => outcome(`j${n}`, 'passed', 5, { image: `built:${n}` }));
  one.save(...own, outcome('a', 'passed', 6, { image: 'late' }), outcome('b', 'passed', 24 * hour, { image: 'late' }));
  one.save(outcome('c', 'passed', 7, { image: 'built:0' }), outcome('d', 'passed', 8, { image: 'late', pool: 'cpu' }));
  one.save(outcome('a', 'code', 6, { image: 'late' }));
  const sums = one.sums('image');
  expect(sums).toHaveLength(imagesADay + 2);
  expect(sums.find(({ value }) => value === 'late')).toMatchObject({ jobs: 2, passed: 2 });
  expect(sums.find(({ value }) => value === 'other images')).toMatchObject({ jobs: 1, code: 1, passed: 0 });
  expect(sums.find(({ value }) => value === 'built:0')).toMatchObject({ jobs: 2 });
});

it('answers with the images of most jobs where there are too many', () => {
  using one = bench();
  const images = ['built:1', 'built:2', 'usual', 'usual', 'built:3'];
  one.save(...images.map((image, n) => outcome(`j${n}`, 'passed', 5, { image })));
  expect(one.sums('image', { limit: 2 }).map(({ value }) => value)).toEqual(['usual', 'built:1']);
});

it('knows the sums of days of an older store', () => {
  using dir = scratch();
  const before = migrations.findIndex((one) => one.some((statement) => statement.includes('CREATE TABLE outcome_days')));
  const db = new DatabaseSync(join(dir.path, 'onejob.db'));
  for (const statement of migrations.slice(0, before).flat()) db.exec(statement);
  for (const [at, kind] of [
    [1, 'passed'],
    [20, 'code'],
    [30, 'passed'],
  ] as const)
    db.exec(`INSERT INTO outcome_hours VALUES (${at * hour}, 'pool', 'gpu', 'gpu', '${kind}', 1, 0, 0, 1, ${at}, ${at})`);
  db.exec(`PRAGMA user_version = ${before}`);
  db.close();
  const store = openStore(dir.path);
  const days = store.outcomes.sums({ axis: 'day', pool: null, only: null, since: null, until: null, limit: 9 });
  store.close();
  expect(days).toMatchObject([
    { value: '0', jobs: 2, passed: 1, code: 1, run: 21, longest: 20 },
    { value: `${24 * hour}`, jobs: 1, run: 30 },
  ]);
});

const some = fc.record({
  job: fc.constantFrom('a', 'b', 'c', 'd'),
  kind: fc.constantFrom(...verdictKinds),
  endedAt: fc.integer({ min: 0, max: 60 * hour }),
  pool: fc.constantFrom('p', 'q'),
  devices: fc.subarray(['GPU-1', 'GPU-2']),
  run: fc.option(fc.integer({ min: 0, max: 50 })),
});

it('sums agree with the rows, however often jobs are recorded again', () => {
  fc.assert(
    fc.property(fc.array(some, { maxLength: 12 }), fc.nat(60), fc.nat(60), (records, begin, hours) => {
      using one = bench();
      for (const { job, kind, endedAt, ...more } of records) one.save(outcome(job, kind, endedAt, more));
      // From the middle of a day, whole days, to the middle of another.
      const time = { since: begin * hour, until: (begin + hours) * hour };
      const rows = one.table.list({ ...everything, ...time });
      for (const [axis, values] of [
        ['pool', (row: StoredOutcome) => [row.pool]],
        ['device', (row: StoredOutcome) => row.devices],
      ] as const) {
        const expected = new Map<string, number[]>();
        for (const row of rows)
          for (const value of values(row)) {
            const [jobs = 0, code = 0, runs = 0, run = 0] = expected.get(value) ?? [];
            const isCode = row.verdict.kind === 'code' ? 1 : 0;
            expected.set(value, [jobs + 1, code + isCode, runs + (row.run === null ? 0 : 1), run + (row.run ?? 0)]);
          }
        const found = one.sums(axis, time);
        expect(new Map(found.map(({ value, jobs, code, runs, run }) => [value, [jobs, code, runs, run]]))).toEqual(expected);
      }
    }),
    { numRuns: 30 },
  );
});

it('the card of a measurement is in the record of its job, once its agent has ended', () => {
  using one = bench();
  const { store } = one;
  const spread = { min: 41, median: 60, max: 63 };
  const variance = {
    samples: 9,
    temperature: spread,
    smClockMHz: spread,
    memoryClockMHz: null,
    throttled: [{ reason: 'thermal', seconds: 12 }],
    notes: [],
  };
  store.transaction({ durable: false }, () => {
    store.history.made({ agent: 'a1', pool: 'gpu', slot: 'gpu/1', name: 'n', madeAt: 1 });
    store.outcomes.save(outcome('j1', 'passed', 5, { agent: 'a1' }));
    store.outcomes.save(outcome('j2', 'passed', 5, { agent: 'a2' }));
  });
  expect(store.outcomes.get('j1')?.variance).toBeNull();
  store.transaction({ durable: false }, () => store.history.ended('a1', null, 5, variance));
  expect(store.outcomes.get('j1')?.variance).toEqual(variance);
  expect(store.outcomes.get('j2')?.variance).toBeNull();
});
