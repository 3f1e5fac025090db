import { expect, test } from 'vitest';
import { bucketName, bucketsOf, roundTime } from './over-time.ts';

const day = 86_400_000;
const row = (value: number, jobs: number) => ({
  value: String(value),
  jobs,
  passed: jobs,
  cancelled: 0,
  code: 0,
  infrastructure: 0,
  configuration: 0,
  unknown: 0,
  waitMs: 1_000,
  runMs: 2_000,
  longestMs: 3_000,
});

test('days without jobs are there too, until today', () => {
  const buckets = bucketsOf([row(20 * day, 3), row(22 * day, 1)], 'day', 19 * day + 5, 23 * day + 7);
  expect(buckets.map(({ at, jobs }) => [at / day, jobs])).toEqual([
    [19, 0],
    [20, 3],
    [21, 0],
    [22, 1],
    [23, 0],
  ]);
  expect(buckets[0]?.runMs).toBe(null);
});

test('without a beginning they begin with the first job; without jobs there are none', () => {
  expect(bucketsOf([row(20 * day, 3)], 'day', 0, 21 * day).map(({ at }) => at / day)).toEqual([20, 21]);
  expect(bucketsOf([], 'day', 0, 21 * day)).toEqual([]);
});

test('days are named by their date in UTC, and times at an axis shortly', () => {
  expect(bucketName(Date.UTC(2026, 10, 26), 'day')).toBe('26 Nov');
  expect(bucketName(new Date(2026, 10, 26, 14).getTime(), 'hour')).toBe('14:00');
  expect([0, 30_000, 90_000, 5_400_000, 2 * day].map(roundTime)).toEqual(['0s', '30s', '1.5m', '1.5h', '2d']);
});
