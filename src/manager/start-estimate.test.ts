import fc from 'fast-check';
import { expect, it } from 'vitest';
import { startRange } from './start-estimate.ts';

const minute = 60_000;
const steady = Array.from({ length: 10 }, () => 10 * minute);

it.each([
  ['at once, if a slot is free', { ahead: 0, free: 1, busy: [], runs: [] }, { from: 0, to: 0 }],
  [
    'when the first agent ends',
    { ahead: 0, free: 0, busy: [4 * minute, minute], runs: steady },
    { from: 6 * minute, to: 6 * minute },
  ],
  ['when the second ends', { ahead: 1, free: 0, busy: [4 * minute, minute], runs: steady }, { from: 9 * minute, to: 9 * minute }],
  ['a round later', { ahead: 2, free: 0, busy: [4 * minute, minute], runs: steady }, { from: 16 * minute, to: 16 * minute }],
  [
    'at once, if a job has run longer than any before',
    { ahead: 0, free: 0, busy: [99 * minute], runs: steady },
    { from: 0, to: 0 },
  ],
  ['nobody knows, without enough runs', { ahead: 0, free: 0, busy: [0], runs: [minute] }, null],
  ['nobody knows, without any agent', { ahead: 0, free: 0, busy: [], runs: steady }, null],
])('%s', (_, queue, range) => {
  expect(startRange(queue)).toEqual(range);
});

it('gives the range between quick and slow jobs', () => {
  const runs = Array.from({ length: 100 }, (_, at) => (at + 1) * minute);
  expect(startRange({ ahead: 0, free: 0, busy: [0], runs })).toEqual({ from: 11 * minute, to: 91 * minute });
});

it('is a range, and no job starts before one that goes before it', () => {
  const queue = fc.record({
    ahead: fc.nat(50),
    free: fc.nat(3),
    busy: fc.array(fc.nat(100_000), { maxLength: 5 }),
    runs: fc.array(fc.nat(100_000), { minLength: 5, maxLength: 20 }),
  });
  fc.assert(
    fc.property(queue, (one) => {
      const range = startRange(one);
      if (range === null) return;
      expect(range.from).toBeLessThanOrEqual(range.to);
      const next = startRange({ ...one, ahead: one.ahead + 1 });
      expect(next?.from).toBeGreaterThanOrEqual(range.from);
      expect(next?.to).toBeGreaterThanOrEqual(range.to);
    }),
  );
});
