import { expect, test } from 'vitest';
import { scripts } from './deb.ts';

test.each(Object.entries(scripts))('the script %s runs no other program that is called onejob', (_, text) => {
  expect(text).not.toMatch(/(?:^|[;&|({]|then|else)\s*onejob\b/m);
});
