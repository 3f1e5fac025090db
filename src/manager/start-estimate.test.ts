import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { JobView } from '../api/schema.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import { createStartEstimate, type PoolFacts, startRanges } from './start-estimate.ts';

const startRange = ({ ahead, ...facts }: PoolFacts & { readonly ahead: number }) => startRanges(facts)(ahead);

const minute = 60_000;
const steady = Array.from({ length: 10 }, () => 10 * minute);

it.each([
  ['at once, if a slot is free', { ahead: 0, ready: 1, coming: 0, busy: [], runs: [] }, { from: 0, to: 0 }],
  [
    'when the first agent ends',
    { ahead: 0, ready: 0, coming: 0, busy: [4 * minute, minute], runs: steady },
    { from: 6 * minute, to: 6 * minute },
  ],
  [
    'when the second ends',
    { ahead: 1, ready: 0, coming: 0, busy: [4 * minute, minute], runs: steady },
    { from: 9 * minute, to: 9 * minute },
  ],
  [
    'a round later',
    { ahead: 2, ready: 0, coming: 0, busy: [4 * minute, minute], runs: steady },
    { from: 16 * minute, to: 16 * minute },
  ],
  [
    'at once, if a job has run longer than any before',
    { ahead: 0, ready: 0, coming: 0, busy: [99 * minute], runs: steady },
    { from: 0, to: 0 },
  ],
  ['nobody knows, if a slot is free and nothing is ready there', { ahead: 0, ready: 0, coming: 1, busy: [], runs: steady }, null],
  [
    'a run after those that start there',
    { ahead: 1, ready: 0, coming: 1, busy: [], runs: steady },
    { from: 10 * minute, to: 10 * minute },
  ],
  ['nobody knows, without enough runs', { ahead: 0, ready: 0, coming: 0, busy: [0], runs: [minute] }, null],
  ['nobody knows, without any agent', { ahead: 0, ready: 0, coming: 0, busy: [], runs: steady }, null],
])('%s', (_, queue, range) => {
  expect(startRange(queue)).toEqual(range);
});

it('gives the range between quick and slow jobs', () => {
  const runs = Array.from({ length: 100 }, (_, at) => (at + 1) * minute);
  expect(startRange({ ahead: 0, ready: 0, coming: 0, busy: [0], runs })).toEqual({ from: 11 * minute, to: 91 * minute });
});

it('is a range, and no job starts before one that goes before it', () => {
  const queue = fc.record({
    ahead: fc.nat(50),
    ready: fc.nat(3),
    coming: fc.nat(3),
    busy: fc.array(fc.nat(100_000), { maxLength: 5 }),
    runs: fc.array(fc.nat(100_000), { minLength: 5, maxLength: 20 }),
  });
  fc.assert(
    fc.property(queue, (one) => {
      const range = startRange(one);
      if (range === null) return;
      expect(range.from).toBeLessThanOrEqual(range.to);
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
