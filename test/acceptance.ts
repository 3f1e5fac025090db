/**
 * Every test, also those that need the wall clock: `npm run test:acceptance`, as root, with an Engine and the test images that
 * `.ci/run` makes. `--shard I/N` runs a part of all of them, so that N parts together are a complete run.
 *
 * A red file runs again, alone, up to three times; docs/testing.md says what becomes of it. The last line is the account.
 */
import { spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { lacksHost } from './hosts/machine.ts';
import type { LaneName } from './lanes.ts';
import { settle } from './support/again.ts';

const { values } = parseArgs({ options: { shard: { type: 'string' } } });
if (values.shard !== undefined && !/^[1-9]\d*\/[1-9]\d*$/.test(values.shard)) {
  console.error(`--shard is written as 1/3, not as ${values.shard}.`);
  process.exit(2);
}
const shard = values.shard === undefined ? [] : [`--shard=${values.shard}`];
// Chosen here, so that what runs again draws the same examples.
process.env.ONEJOB_TEST_SEED ??= String(randomInt(2 ** 31));

const work = mkdtempSync(join(tmpdir(), 'onejob-acceptance-'));
const root = resolve(import.meta.dirname, '..');
const from = performance.now();

/** Runs some lanes at once and gives the path of their report. */
function run(name: string, lanes: readonly LaneName[]): string {
  const report = join(work, `${name}.json`);
  const projects = lanes.flatMap((lane) => ['--project', lane]);
  const reporters = ['--reporter=default', '--reporter=./test/support/lane-times.ts', '--reporter=json'];
  const args = ['vitest', 'run', ...projects, ...shard, ...reporters, `--outputFile.json=${report}`];
  spawnSync('npx', args, { cwd: root, stdio: 'inherit' });
  return report;
}

try {
  const reports = [run('short', ['unit', 'sim', 'process', 'e2e']), run('long', ['real', 'long', 'long-alone', 'hosts'])];
  const { passed, red, problems, broken, flakes, notCounted } = await settle({ name: 'acceptance', tries: 3 }, reports);
  // Elsewhere its tests are skipped. Without them no run is complete.
  const lacks = lacksHost();
  if (lacks !== null) console.log(`Red: test/hosts cannot run here: ${lacks}`);
  const failed = red.length + problems.length + broken.length + (lacks === null ? 0 : 1);
  const minutes = Math.round((performance.now() - from) / 60_000);
  console.log(`\nAcceptance${values.shard === undefined ? '' : `, part ${values.shard}`}, took ${minutes} min:`);
  console.log(`${passed} passed, ${failed} failed, ${flakes.length} flakes, ${notCounted} quarantined`);
  process.exitCode = failed > 0 ? 1 : 0;
} finally {
  rmSync(work, { recursive: true, force: true });
}
