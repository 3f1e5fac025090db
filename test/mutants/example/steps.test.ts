import { expect, test } from 'vitest';
import { fits, stepsPast } from './room.ts';

test('steps lead past a number', () => {
  expect(stepsPast(4, 2)).toBe(3);
  // Reaches `fits`, and says nothing of a room that is just full.
  expect(fits(1, 1, 4)).toBe(true);
});
