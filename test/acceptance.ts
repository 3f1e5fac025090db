/**
 * Every test, also those that need the wall clock: `npm run test:acceptance`, as root, with an Engine and the test images that
 * `.ci/run` makes. `--shard I/N` runs a part of all of them, so that N parts together are a complete run.
 *
 * Of a tree without changes, the report of each part that was green is kept, so that a run that was stopped continues where it was.
 * `--fresh` runs all.
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
import { installAnsible } from './support/ansible.ts';
import { buildBuildkit } from './support/buildkit-programs.ts';
import { makeEngineBase } from './support/engine-base.ts';
import { keptReports, treeOf } from './support/kept-reports.ts';
import { forTests, makeKubernetes } from './support/kubernetes-programs.ts';
import { buildRunsc } from './support/runsc.ts';
import { makeNewerSlurm } from './support/slurm-newer.ts';
import { fetchTestcontainers } from './support/testcontainers.ts';

const { values } = parseArgs({ options: { shard: { type: 'string' }, fresh: { type: 'boolean', default: false } } });
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
// Elsewhere its tests are skipped. Without them no run is complete.
const lacks = lacksHost();
// The gate has no tests on a Slurm, so it does not make this one. Who has no network still has all other tests.
const lacksSlurm = await makeNewerSlurm().catch(String);
if (lacksSlurm !== null) console.log(`Tests with a newer Slurm are skipped: ${lacksSlurm}`);
const lacksBase = await makeEngineBase().catch(String);
if (lacksBase !== null) console.log(`Tests with engines of agents are skipped: ${lacksBase}`);
const lacksTestcontainers = await fetchTestcontainers().then(() => null, String);
if (lacksTestcontainers !== null) console.log(`Tests with Testcontainers are skipped: ${lacksTestcontainers}`);
const lacksBuildkit = await buildBuildkit().then(() => null, String);
if (lacksBuildkit !== null) console.log(`Tests with BuildKit are skipped: ${lacksBuildkit}`);
const lacksAnsible = await installAnsible().then(() => null, String);
if (lacksAnsible !== null) console.log(`Tests with Ansible are skipped: ${lacksAnsible}`);
const lacksRunsc = await buildRunsc().then(() => null, String);
if (lacksRunsc !== null) console.log(`Tests with runsc are skipped: ${lacksRunsc}`);
// Nor these, for which two cores need a quarter of an hour.
const lacksKubernetes = (await makeKubernetes('1.37', forTests).catch(String)) ?? (await makeKubernetes('1.34').catch(String));
if (lacksKubernetes !== null) console.log(`Tests with a real Kubernetes are skipped: ${lacksKubernetes}`);
const lacksEngines = lacksSlurm ?? lacksKubernetes;
const kept = keptReports(join(root, 'node_modules/.cache/onejob-acceptance'), () => treeOf(root));

interface Part {
  readonly name: string;
  readonly lanes: readonly LaneName[];
}

const short: Part = { name: 'short', lanes: ['unit', 'sim', 'process', 'e2e'] };
const long: readonly LaneName[] = ['real', 'long', 'long-alone', 'engines', 'hosts'];
// A lane with fewer files than there are shards cannot be run by itself.
const parts: readonly Part[] =
  values.shard === undefined
    ? [short, ...long.map((lane) => ({ name: lane, lanes: [lane] }))]
    : [short, { name: 'long', lanes: long }];

/** Runs a part, or takes its report from an earlier run, and gives the path of the report. */
function run({ name, lanes }: Part): string {
  const report = join(work, `${name}.json`);
  const part = values.shard === undefined ? name : `${name} ${values.shard}`;
  const taken = values.fresh ? null : kept.take(part, report);
  if (taken !== null) {
    console.log(`\n${taken}`);
    return report;
  }
  const projects = lanes.flatMap((lane) => ['--project', lane]);
  const reporters = ['--reporter=default', '--reporter=./test/support/lane-times.ts', '--reporter=json'];
  const args = ['vitest', 'run', ...projects, ...shard, ...reporters, `--outputFile.json=${report}`];
  spawnSync('npx', args, { cwd: root, stdio: 'inherit' });
  const isWhole = (lacks === null || !lanes.includes('hosts')) && (lacksEngines === null || !lanes.includes('engines'));
  if (isWhole) kept.keep(part, report);
  return report;
}

try {
  const reports = parts.map(run);
  const { passed, red, problems, broken, flakes, notCounted } = await settle({ name: 'acceptance', tries: 3 }, reports);
  if (lacks !== null) console.log(`Red: test/hosts cannot run here: ${lacks}`);
  const failed = red.length + problems.length + broken.length + (lacks === null ? 0 : 1);
  const minutes = Math.round((performance.now() - from) / 60_000);
  console.log(`\nAcceptance${values.shard === undefined ? '' : `, part ${values.shard}`}, took ${minutes} min:`);
  console.log(`${passed} passed, ${failed} failed, ${flakes.length} flakes, ${notCounted} quarantined`);
  process.exitCode = failed > 0 ? 1 : 0;
} finally {
  rmSync(work, { recursive: true, force: true });
}
