import { expect, test } from 'vitest';
import { exists, nameOf, type Setup, setups, values } from './setups.ts';

/** Every host that can be had. */
const all = Object.entries(values)
  .reduce<object[]>((made, [key, some]) => made.flatMap((one) => some.map((value) => ({ ...one, [key]: value }))), [{}])
  .map((one) => one as Setup)
  .filter(exists);

/** Its properties, two at a time. */
function pairs(setup: Setup): string[] {
  const words = Object.values(setup);
  return words.flatMap((one, n) => words.slice(n + 1).map((other) => `${one} with ${other}`));
}

test('the hosts that onejob is tried on can be had, and have each pair of properties that can be had', () => {
  expect(setups.filter((setup) => !exists(setup))).toEqual([]);
  const tried = new Set(setups.flatMap(pairs));
  expect(all.flatMap(pairs).filter((pair) => !tried.has(pair))).toEqual([]);
});

test('none of them can be left out', () => {
  for (const setup of setups) {
    const others = new Set(setups.filter((one) => one !== setup).flatMap(pairs));
    expect(
      pairs(setup).every((pair) => others.has(pair)),
      nameOf(setup),
    ).toBe(false);
  }
});
