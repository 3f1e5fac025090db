import { stripTypeScriptTypes } from 'node:module';
import { expect, test } from 'vitest';
import { mutationsOf, withSwitches } from './mutate.ts';
import { compare, knownOf, type Report, type Result, reportOf, sampleOf } from './report.ts';

const source = `
export function judge(used: number, names: string[]): string {
  const said: string[] = [];
  if (used > 1 && names.some((name) => name === 'a')) said.push('full');
  else said.push('free');
  return said.join(' ');
}
`;

interface Judge {
  judge(used: number, names: string[]): string;
}

/** What the text says with one mutant on, or with none. */
async function load(text: string, on: number | null): Promise<Judge> {
  const code = `const globalThis = { __onejobMutant: (number) => number === ${on} };${stripTypeScriptTypes(text)}`;
  return (await import(`data:text/javascript,${encodeURIComponent(code)}`)) as Judge;
}

const mutations = mutationsOf('src/x.ts', source).map((one, number) => ({ ...one, number }));

test('every operator has its place, and a place keeps its key when its line moves', () => {
  expect(mutations.map(({ operator, line, to }) => `${line} ${operator} ${to}`)).toEqual([
    "4 condition !(used > 1 && names.some((name) => name === 'a'))",
    "4 logic (used > 1) || (names.some((name) => name === 'a'))",
    '4 boundary (used) >= (1)',
    '4 constant 2',
    '4 method every',
    "4 equality (name) !== ('a')",
    '4 call ',
    '5 call ',
  ]);
  const moved = mutationsOf('src/x.ts', `// A line more.\n${source}`);
  expect(moved.map(({ key }) => key)).toEqual(mutations.map(({ key }) => key));
});

test('a text with all mutants in it is the old program until one is on', async () => {
  const text = withSwitches(source, mutations);
  const cases: readonly [number, string[]][] = [
    [2, ['a', 'b']],
    [1, ['a']],
    [2, ['b']],
  ];
  const saidBy = async (on: number | null): Promise<string> => {
    const { judge } = await load(text, on);
    return cases.map(([used, names]) => judge(used, names)).join('|');
  };
  expect(await saidBy(null)).toBe('full|free|free');
  const said = await Promise.all(mutations.map(async ({ operator, number }) => `${operator} ${await saidBy(number)}`));
  expect(said).toEqual([
    'condition free|full|full',
    'logic full|full|full',
    'boundary full|full|free',
    'constant free|free|free',
    'method free|free|free',
    'equality full|free|full',
    'call |free|free',
    'call full||',
  ]);
});

test('what has no statement or value to change has no mutant', () => {
  const text = `'use strict';
import x from './1.ts';
type A = { one: 1; two: true };
class B extends C { 3 = x; constructor() { super(); } }
`;
  expect(mutationsOf('src/x.ts', text)).toEqual([]);
});

test('the same seed draws the same mutants, in the order of the source', () => {
  const drawn = (seed: number): string[] => sampleOf(mutations, 4, seed).map(({ key }) => key);
  expect(drawn(7)).toEqual(drawn(7));
  expect(new Set([1, 2, 3, 4, 5].map((seed) => drawn(seed).join())).size).toBeGreaterThan(1);
  expect(sampleOf(mutations, 4, 7).map(({ number }) => number)).toEqual([0, 1, 2, 3]);
});

test('a report counts what only one file kills, and a comparison finds what is lost', () => {
  const result = (at: number, ...killedBy: string[]): Result => ({
    ...(mutations[at] as (typeof mutations)[0]),
    killedBy,
    reachedBy: 2,
  });
  const before: Report = reportOf('src', [result(0, 'a'), result(1, 'a', 'b'), result(2), result(3, 'b')], ['a', 'b', 'c']);
  expect(before.onlyBy).toEqual({ a: 1, b: 1, c: 0 });
  expect(knownOf(mutations, before).map(({ key }) => key)).toEqual([0, 1, 3].map((at) => mutations[at]?.key));
  const { lost, held, gone } = compare(before, [result(0), result(1, 'b')]);
  expect(lost.map(({ key }) => key)).toEqual([mutations[0]?.key]);
  expect(held).toBe(1);
  expect(gone).toEqual([mutations[3]?.key]);
});
