/**
 * Runs the deterministic part several times on one tree, and fails when two runs differ: `npm run test:repeat -- --runs 20`.
 * Compared are the tests' names, what became of each, with which seed and how many examples its properties ran (`drawn.ts`), and
 * what each play of the simulator came to.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';

interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly status: string;
    readonly assertionResults: readonly {
      readonly fullName: string;
      readonly status: string;
      readonly meta: Readonly<Record<string, readonly string[]>>;
    }[];
  }[];
}

const root = resolve(import.meta.dirname, '..');
const { values } = parseArgs({ options: { runs: { type: 'string', default: '20' } } });
const runs = Number(values.runs);
process.env.ONEJOB_TEST_SEED ??= seedOfTree();
console.log(`${runs} runs of the deterministic part with the seed ${process.env.ONEJOB_TEST_SEED}.`);

const work = mkdtempSync(join(tmpdir(), 'onejob-repeat-'));
let first: readonly string[] | null = null;
let isRed = false;
try {
  for (let run = 1; run <= runs; run++) {
    const from = performance.now();
    const lines = runOnce(join(work, `${run}.json`));
    const failed = lines.filter((line) => line.startsWith('failed'));
    const digest = createHash('sha256').update(lines.join('\n')).digest('hex').slice(0, 12);
    const seconds = Math.round((performance.now() - from) / 1000);
    console.log(`Run ${run}: ${lines.length} results, ${failed.length} failed, digest ${digest}, ${seconds} s`);
    first ??= lines;
    const differences = [...new Set(first).symmetricDifference(new Set(lines))];
    for (const line of differences.slice(0, 20)) console.log(`  only in ${first.includes(line) ? 'the first' : 'this'}: ${line}`);
    if (differences.length > 0 || failed.length > 0 || lines.length === 0) isRed = true;
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}
console.log(isRed ? 'The deterministic part is not what it says.' : `${runs} runs, all alike.`);
process.exitCode = isRed ? 1 : 0;

/** A line for each test of one run, sorted: in which order files run depends on how long they took before. */
function runOnce(report: string): readonly string[] {
  const args = ['vitest', 'run', '--project', 'unit', '--project', 'sim', '--reporter=json', `--outputFile.json=${report}`];
  const { status, stderr } = spawnSync('npx', args, { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 28 });
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as Report;
  const lines = testResults.flatMap(({ name, status: ended, assertionResults }) => {
    const file = relative(root, name);
    const tests = assertionResults.flatMap(({ fullName, status: became, meta }) => {
      const noted = Object.values(meta).flatMap((lines) => lines.map((line, at) => `${file}: ${fullName}: ${at}: ${line}`));
      return [`${became} ${file}: ${fullName}`, ...noted];
    });
    return [`${ended} ${file}`, ...tests];
  });
  if (status !== 0 && !lines.some((line) => line.startsWith('failed')))
    lines.push(`failed beside its tests: ${stderr.slice(-500)}`);
  return lines.sort();
}

/** The seed of the gate: `.ci/run` derives it in the same way. */
function seedOfTree(): string {
  const { stdout } = spawnSync('git', ['rev-parse', 'HEAD^{tree}'], { cwd: root, encoding: 'utf8' });
  return String(Number.parseInt(stdout.slice(0, 7), 16));
}
