import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../support/scratch.ts';
import type { Report } from './report.ts';

const main = join(import.meta.dirname, 'main.ts');
const example = join(import.meta.dirname, 'example');

function mutants(...args: string[]): { status: number | null; stdout: string } {
  const options = { encoding: 'utf8', env: { ...process.env, CI: '' } } as const;
  const { status, stdout } = spawnSync(process.execPath, [main, ...args], options);
  return { status, stdout };
}

test('says which tests kill a mutant, ends one that spins, and finds what is lost', { timeout: 240_000 }, () => {
  using folder = scratch();
  const json = join(folder.path, 'report.json');
  const first = mutants(example, '--project', 'unit', '--limit', '2', '--json', json);
  expect(first.status, first.stdout).toBe(0);
  const report = JSON.parse(readFileSync(json, 'utf8')) as Report;
  const by = (operator: string, from: string) => report.results.find((one) => one.operator === operator && one.from === from);
  const fitsTest = 'test/mutants/example/fits.test.ts';
  const stepsTest = 'test/mutants/example/steps.test.ts';
  expect(by('boundary', 'used + wanted <= size')).toMatchObject({ killedBy: [fitsTest], reachedBy: 2 });
  expect(by('call', 'at += by;')).toMatchObject({ killedBy: [stepsTest], reachedBy: 1 });
  expect(by('constant', '40')).toMatchObject({ killedBy: [fitsTest], reachedBy: 2 });
  expect(by('constant', 'true')).toMatchObject({ killedBy: [], reachedBy: 0 });
  expect(report.onlyBy[fitsTest]).toBe(2);

  // As if the other test had killed what only this one can.
  const results = report.results.map((one) => (one.from === 'true' ? { ...one, killedBy: [fitsTest] } : one));
  writeFileSync(json, JSON.stringify({ ...report, results: results.filter(({ operator }) => operator !== 'call') }));
  const second = mutants(example, '--project', 'unit', '--against', json);
  expect(second.status, second.stdout).toBe(1);
  expect(second.stdout).toMatch(/, 1 are lost, and 0 are no longer in the source/);
  expect(second.stdout).toMatch(/lost .*constant: true → false/);
});

test('says how it is used', () => {
  expect(mutants('--help').stdout).toMatch(/^npm run mutants -- FOLDER/);
  expect(mutants().status).toBe(2);
});
