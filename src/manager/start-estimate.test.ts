import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { JobView } from '../contract/schema.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import { type BusyAgent, createStartEstimate, type PoolFacts, startRanges } from './start-estimate.ts';

const startRange = ({ ahead, ...facts }: PoolFacts & { readonly ahead: number }) => startRanges(facts)(ahead);

const minute = 60_000;
const busyFor = (minutes: number, left: number | null = null): BusyAgent => ({
  worked: minutes * minute,
  left: left === null ? null : left * minute,
});
const steady = Array.from({ length: 10 }, () => 10 * minute);

it.each([
  ['at once, if a slot is free', { ahead: 0, ready: 1, coming: 0, busy: [], runs: [] }, { from: 0, to: 0 }],
  [
    'when the first agent ends',
    { ahead: 0, ready: 0, coming: 0, busy: [busyFor(4), busyFor(1)], runs: steady },
    { from: 6 * minute, to: 6 * minute },
  ],
  [
    'when the second ends',
    { ahead: 1, ready: 0, coming: 0, busy: [busyFor(4), busyFor(1)], runs: steady },
    { from: 9 * minute, to: 9 * minute },
  ],
  [
    'a round later',
    { ahead: 2, ready: 0, coming: 0, busy: [busyFor(4), busyFor(1)], runs: steady },
    { from: 16 * minute, to: 16 * minute },
  ],
  [
    'nobody knows, if a job without a time limit has run longer than any before',
    { ahead: 0, ready: 0, coming: 0, busy: [busyFor(99)], runs: steady },
    null,
  ],
  [
    'within what is left of the time limit of such a job',
    { ahead: 0, ready: 0, coming: 0, busy: [busyFor(99, 21)], runs: steady },
    { from: 0, to: 21 * minute },
  ],
  [
    'after that, for the jobs behind the next one',
    { ahead: 2, ready: 0, coming: 0, busy: [busyFor(99, 21)], runs: steady },
    { from: 20 * minute, to: 41 * minute },
  ],
  [
    'at the end of another job, however long such a job runs',
    { ahead: 0, ready: 0, coming: 0, busy: [busyFor(99), busyFor(4)], runs: steady },
    { from: 0, to: 6 * minute },
  ],
  [
    'after the jobs that the other agent takes meanwhile',
    { ahead: 2, ready: 0, coming: 0, busy: [busyFor(99, 21), busyFor(4)], runs: steady },
    { from: 10 * minute, to: 21 * minute },
  ],
  [
    'when the time limit ends a job, if that is sooner',
    { ahead: 0, ready: 0, coming: 0, busy: [busyFor(4, 2)], runs: steady },
    { from: 2 * minute, to: 2 * minute },
  ],
  ['nobody knows, if a slot is free and nothing is ready there', { ahead: 0, ready: 0, coming: 1, busy: [], runs: steady }, null],
  [
    'a run after those that start there',
    { ahead: 1, ready: 0, coming: 1, busy: [], runs: steady },
    { from: 10 * minute, to: 10 * minute },
  ],
  ['nobody knows, without enough runs', { ahead: 0, ready: 0, coming: 0, busy: [busyFor(0)], runs: [minute] }, null],
  ['nobody knows, without any agent', { ahead: 0, ready: 0, coming: 0, busy: [], runs: steady }, null],
])('%s', (_, queue, range) => {
  expect(startRange(queue)).toEqual(range);
});

it('gives the range between quick and slow jobs', () => {
  const runs = Array.from({ length: 100 }, (_, at) => (at + 1) * minute);
  expect(startRange({ ahead: 0, ready: 0, coming: 0, busy: [busyFor(0)], runs })).toEqual({ from: 11 * minute, to: 91 * minute });
});

it('expects a job that is slower than most to take as long as the slowest did', () => {
  const runs = Array.from({ length: 100 }, (_, at) => (at + 1) * minute);
  expect(startRange({ ahead: 0, ready: 0, coming: 0, busy: [busyFor(95)], runs })).toEqual({ from: 0, to: 5 * minute });
});

it('is a range, and no job starts before one that goes before it', () => {
  const queue = fc.record({
    ahead: fc.nat(50),
    ready: fc.nat(3),
    coming: fc.nat(3),
    busy: fc.array(fc.record({ worked: fc.nat(150_000), left: fc.option(fc.nat(500_000)) }), { maxLength: 5 }),
    runs: fc.array(fc.nat(100_000), { minLength: 5, maxLength: 20 }),
  });
  fc.assert(
    fc.property(queue, (one) => {
      const range = startRange(one);
      if (range === null) return;
      expect(range.from).toBeLessThanOrEqual(range.to);
      expect(range.to).toBeLessThan(Number.POSITIVE_INFINITY);
      const next = startRange({ ...one, ahead: one.ahead + 1 });
      if (next === null) return;
      expect(next?.from).toBeGreaterThanOrEqual(range.from);
      expect(next?.to).toBeGreaterThanOrEqual(range.to);
    }),
  );
});

it('looks at the slots once for a list, and promises nothing of a cold job or where no agent stands ready', () => {
  let looks = 0;
  const empty = emptySlot({ key: 'p/1', runtime: 'sim', grace: 0 });
  let slots: Slot[] = [empty];
  const pool = { config: { name: 'p' }, devices: { heldBack: () => null } };
  const estimates = createStartEstimate({
    clock: { now: () => 0 } as never,
    reconciler: {
      get slots() {
        looks += 1;
        return slots;
      },
      poolOf: () => pool,
    } as never,
    outcomes: { list: () => [] },
    reasonFor: () => null,
  });
  const job = { pool: 'p', state: 'queued', ahead: 0, cold: false } as JobView;
  expect(estimates()(job)).toBe(job);
  slots = [{ ...empty, standby: { kind: 'standby', agent: 'a', reserved: null, fingerprint: '', since: 0 } }];
  looks = 0;
  const found = [job, { ...job, cold: true }, { ...job, ahead: 1 }].map(estimates());
  expect(found.map(({ startsIn }) => startsIn)).toEqual([{ from: 0, to: 0 }, undefined, undefined]);
  expect(looks).toBe(1);
});

it('knows the time limit of a running job', () => {
  const empty = emptySlot({ key: 'p/1', runtime: 'sim', grace: 0 });
  const agent = { kind: 'busy', agent: 'a', job: 'j', since: 1000, due: 300_000 } as const;
  const estimates = createStartEstimate({
    clock: { now: () => 143_000 } as never,
    reconciler: {
      slots: [{ ...empty, agent }],
      poolOf: () => ({ config: { name: 'p' }, devices: { heldBack: () => null } }),
    } as never,
    outcomes: { list: () => Array.from({ length: 5 }, () => ({ run: 6000 })) as never },
    reasonFor: () => null,
  });
  const job = { pool: 'p', state: 'queued', ahead: 0, cold: false } as JobView;
  expect(estimates()(job).startsIn).toEqual({ from: 0, to: 157_000 });
});
