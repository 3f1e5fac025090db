/** Every row of what a power cut leaves has a test that there is, and one mutant that this test finds. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { readMutants } from '../test/sim/mutant.ts';

const root = join(import.meta.dirname, '..');
const page = readFileSync(join(root, 'docs/slot-lifecycle.md'), 'utf8');
const section = /\n## What a power cut leaves\n(.*?)\n## /s.exec(page)?.[1] ?? '';
const rows = [...section.matchAll(/^\|(.*)\|$/gm)].slice(2).map(([, row = '']) => row.split('|').map((cell) => cell.trim()));
const quoted = (cell = ''): string[] => [...cell.matchAll(/`([^`]+)`/g)].map(([, text = '']) => text);
const mutants = new Map(readMutants().map((one) => [one.name, one]));

test('there are rows', () => {
  expect(rows.length).toBeGreaterThan(30);
});

test.each(rows.map((row) => [`${row[0]}: ${row[1]}`, row] as const))('%s', (_, [promise, cut, next, tests, named, ...more]) => {
  expect(
    [promise, cut, next].every((cell) => cell !== undefined && cell !== ''),
    'three cells in words',
  ).toBe(true);
  expect(more).toEqual([]);
  const [file = '', ...scenarios] = quoted(tests);
  expect(existsSync(join(root, file)), `${file} exists`).toBe(true);
  const [name = '', ...others] = quoted(named);
  expect(others, 'one mutant').toEqual([]);
  const mutant = mutants.get(name);
  expect(mutant, `test/sim/mutants/${name}.patch exists`).toBeDefined();
  if (mutant?.test === null) expect(scenarios, 'the scenario that finds it').toContain(mutant.foundBy);
  else expect(mutant?.test).toBe(file);
});

test('no mutant is in two rows, and each that a test finds is in one', () => {
  const named = rows.flatMap((row) => quoted(row[4]));
  expect(new Set(named).size).toBe(named.length);
  const byTests = [...mutants.values()].filter((one) => one.test !== null).map(({ name }) => name);
  expect(byTests.filter((name) => !named.includes(name))).toEqual([]);
});

test('each test that finds a mutant exists', () => {
  expect([...mutants.values()].filter((one) => one.test !== null && !existsSync(join(root, one.test)))).toEqual([]);
});
