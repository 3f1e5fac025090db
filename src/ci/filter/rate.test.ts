import { expect, it } from 'vitest';
import { createRate } from './rate.ts';

it('lets a burst pass, then one call after the other, and a burst again after a rest', () => {
  const rate = createRate(10, 3);
  const waits = (now: number, calls: number) => Array.from({ length: calls }, () => rate(now));
  expect(waits(1000, 6)).toEqual([0, 0, 0, 0, 100, 200]);
  expect(waits(1300, 1)).toEqual([0]);
  expect(waits(9000, 5)).toEqual([0, 0, 0, 0, 100]);
});
