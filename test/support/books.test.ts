/** What `test/flakes.jsonl` and `test/quarantine.json` say must be readable, and name files that are there. */
import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, test } from 'vitest';
import { isDeterministic, laneOf, lanes } from '../lanes.ts';
import { readBooks } from './again.ts';

const root = resolve(import.meta.dirname, '../..');

test('the books name tests of files that are there, and none of the deterministic part', () => {
  const { flakes, quarantine } = readBooks();
  for (const { file, test: name } of [...flakes, ...quarantine]) {
    expect.soft(existsSync(resolve(root, file)), `${file} is gone: take its lines out of the books`).toBe(true);
    expect.soft(isDeterministic(file), `${file}: ${name}`).toBe(false);
  }
  for (const { since, until } of quarantine) expect.soft([since, until].every((day) => /^\d{4}-\d\d-\d\d$/.test(day))).toBe(true);
});

test('a file is in the lane that its path says', () => {
  expect(laneOf('src/core/decide.test.ts')).toBe('unit');
  expect(laneOf('test/sim/own-queue.test.ts')).toBe('sim');
  expect(laneOf('src/runtimes/docker/docker.contract.test.ts')).toBe('process');
  expect(laneOf('test/standins/buildkite/agent/agent.test.ts')).toBe('long');
  expect(laneOf('test/long/kills.test.ts')).toBe('real');
  expect(laneOf('test/long/docker-restart.test.ts')).toBe('long-alone');
  expect(laneOf('src/core/decide.ts')).toBe(null);
});

test('every file that is named alone is there', () => {
  const named = Object.values(lanes).flatMap(({ include }) => include.flatMap(braces));
  for (const file of named.filter((glob) => !glob.includes('*'))) expect.soft(existsSync(resolve(root, file)), file).toBe(true);
});

/** `a/{b,c}.ts` as `a/b.ts` and `a/c.ts`. */
function braces(glob: string): string[] {
  const [whole, inner] = /\{([^}]*)\}/.exec(glob) ?? [];
  if (whole === undefined || inner === undefined) return [glob];
  return inner.split(',').flatMap((one) => braces(glob.replace(whole, one)));
}
