import { expect, test } from 'vitest';
import { fits, isTooMany } from './room.ts';

test('a full room has no place', () => {
  expect(fits(3, 1, 4)).toBe(true);
  expect(fits(4, 1, 4)).toBe(false);
  expect(isTooMany(41)).toBe(true);
});
