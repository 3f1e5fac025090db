import { expect, test } from 'vitest';
import type { HeldSandbox } from '../../store/held.ts';
import { endedHolds, overQuota, type Quota } from './decide.ts';

const minute = 60_000;

function held(agent: string, more: Partial<HeldSandbox> = {}): HeldSandbox {
  const since = more.since ?? 0;
  return {
    agent,
    job: `job-${agent}`,
    pool: 'gpu',
    slot: 'gpu/1',
    name: 'n',
    runtime: 'docker',
    recipe: {} as HeldSandbox['recipe'],
    since,
    until: since + 30 * minute,
    size: null,
    ...more,
  };
}

const quota = (more: Partial<Quota> = {}): Quota => ({ now: minute, pools: new Map([['gpu', null]]), full: new Set(), ...more });
const ended = (all: HeldSandbox[], more: Partial<Quota> = {}) => [...endedHolds(all, quota(more)).keys()].toSorted();

test('one is held until its time is over', () => {
  expect(ended([held('a')], { now: 30 * minute - 1 })).toEqual([]);
  expect(ended([held('a')], { now: 30 * minute })).toEqual(['a']);
});

test('a clock that was set back holds none for ever', () => {
  const later = held('a', { since: 1_000 * minute });
  expect(ended([later], { now: 980 * minute })).toEqual([]);
  expect(ended([later], { now: 0 })).toEqual(['a']);
});

test('one that was given up ends, whatever else is true', () => {
  expect(ended([held('a', { until: 0 })])).toEqual(['a']);
});

test('a pool holds five, and gives up the oldest', () => {
  const all = [3, 1, 6, 2, 5, 4].map((n) => held(`a${n}`, { since: n }));
  expect(ended(all)).toEqual(['a1']);
  expect(
    ended([...all, held('b', { pool: 'cpu' })], {
      pools: new Map([
        ['gpu', null],
        ['cpu', null],
      ]),
    }),
  ).toEqual(['a1']);
});

test('held files of a pool take no more than its "disk" together; the newest stays whatever it takes', () => {
  const pools = new Map([['gpu', 10]]);
  const all = [held('a1', { since: 1, size: 4 }), held('a2', { since: 2, size: 4 }), held('a3', { since: 3, size: 4 })];
  expect(ended(all, { pools })).toEqual(['a1']);
  expect(ended([held('a1', { since: 1, size: 1 }), held('a2', { since: 2, size: 99 })], { pools })).toEqual(['a1']);
  expect(ended([held('a1', { since: 1, size: null }), held('a2', { since: 2, size: 9 })], { pools })).toEqual([]);
});

test('a full disk holds nothing of its runtime', () => {
  const all = [held('a'), held('b', { runtime: 'process' })];
  expect(ended(all, { full: new Set(['docker']) })).toEqual(['a']);
});

test('a pool that the config no longer has holds nothing, unless another manager has that config', () => {
  expect(ended([held('a', { pool: 'old' })])).toEqual(['a']);
  expect(ended([held('a', { pool: 'old' })], { pools: null })).toEqual([]);
});

test.each<[string, { first: number; now: number; others: number }, string[]]>([
  ['that stay within it', { first: 1, now: 4, others: 6 }, []],
  ['that pass it', { first: 1, now: 5, others: 6 }, ['a']],
  ['of a sandbox that was larger from the start', { first: 30, now: 31, others: 0 }, []],
  ['of a sandbox that was larger from the start, once they write', { first: 30, now: 32, others: 0 }, ['a']],
])('the "disk" of a pool and shells %s', (_, { first, now, others }, expected) => {
  const pools = new Map([
    ['gpu', 10],
    ['free', null],
  ]);
  const all = [held('a', { size: first }), held('b', { size: others }), held('c', { pool: 'free', size: 0 })];
  const written = new Map([
    ['a', { first, now }],
    ['c', { first: 0, now: 1_000 }],
  ]);
  expect([...overQuota(all, written, pools).keys()]).toEqual(expected);
  expect([...overQuota(all, written, null).keys()]).toEqual([]);
});
