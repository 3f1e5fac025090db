/** A history of a million jobs: every question of the API about it is answered within 100 ms. Filling it takes minutes. */
import { expect, test } from 'vitest';
import { historyFigures } from '../../bench/history.ts';
import { scratch } from '../support/scratch.ts';

test('1,000,000 jobs: 95 of 100 answers to each question take at most 100 ms', () => {
  using dir = scratch();
  const { jobs, fillMs, queries } = historyFigures(dir.path, 1_000_000, 40);
  console.log(
    `${jobs} jobs in ${(fillMs / 1_000).toFixed(0)} s; p95 in ms:`,
    Object.entries(queries)
      .map(([name, { p95 }]) => `${name} ${p95}`)
      .join(', '),
  );
  expect(Object.entries(queries).filter(([, { p95 }]) => p95 > 100)).toEqual([]);
}, 1_200_000);
