/** Patches of `mutants/` fit the tree: a change of the code they fall into has to take them along. What they show: `npm run sim:mutants`. */
import { expect, test } from 'vitest';
import { problemOf, readMutants } from './mutant.ts';
import { scenarios } from './scenarios/index.ts';

const mutants = readMutants();

test('there are 60 in all', () => {
  expect(mutants.length).toBeGreaterThanOrEqual(60);
});

test.each(mutants.map((one) => [one.name, one] as const))('%s applies', (_, mutant) => {
  expect(problemOf(mutant)).toBeNull();
});

test('each names a scenario that there is', () => {
  const names = new Set(scenarios.map(({ name }) => name));
  expect(mutants.filter(({ foundBy }) => foundBy !== null && !names.has(foundBy)).map(({ name }) => name)).toEqual([]);
});

test('each is another fault', () => {
  expect(new Set(mutants.map(({ fault }) => fault)).size).toBe(mutants.length);
});
