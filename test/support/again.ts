/**
 * Runs the red files of a vitest report again, each alone, and writes what came of it back into the report. A file that is
 * red every time stays red. One that turns green is a flake: it is named, counted, and with `--record` appended to
 * `test/flakes.jsonl`, so that it is repaired instead of forgotten.
 *
 *     node test/support/again.ts --tries N [--record] REPORT.json…
 *
 * Exits 1 when a file is still red, or when a run failed for another reason than a test (an unhandled error, say).
 */
import { spawnSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';

interface Assertion {
  readonly status: string;
  readonly fullName: string;
  readonly failureMessages?: readonly string[];
}

interface FileReport {
  readonly name: string;
  readonly status: string;
  readonly message?: string;
  readonly assertionResults: readonly Assertion[];
}

interface Report {
  readonly success: boolean;
  readonly testResults: readonly FileReport[];
}

/** One line of `test/flakes.jsonl`. */
interface Flake {
  readonly file: string;
  readonly tests: readonly string[];
  readonly commit: string;
  readonly seed: string | null;
  /** The machine's load over the last minute when the first run had ended. */
  readonly load: number;
  readonly said: string;
}

const root = resolve(import.meta.dirname, '../..');

function read(path: string): Report {
  return JSON.parse(readFileSync(path, 'utf8')) as Report;
}

/** A file's report out of a run of it alone; null when that run has none, which is as good as red. */
function runAlone(file: string): FileReport | null {
  const folder = mkdtempSync(join(tmpdir(), 'onejob-again-'));
  const output = join(folder, 'report.json');
  try {
    const args = ['vitest', 'run', file, '--reporter=default', '--reporter=json', `--outputFile.json=${output}`];
    const { status } = spawnSync('npx', args, { cwd: root, stdio: 'inherit' });
    if (!existsSync(output)) return null;
    const own = read(output).testResults.find(({ name }) => name === file) ?? null;
    return status !== 0 && own?.status === 'passed' ? null : own;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function flakeOf(red: FileReport, load: number): Flake {
  const failed = red.assertionResults.filter(({ status }) => status === 'failed');
  const said = failed[0]?.failureMessages?.[0] ?? red.message ?? '';
  return {
    file: relative(root, red.name),
    tests: failed.map(({ fullName }) => fullName),
    commit: spawnSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root, encoding: 'utf8' }).stdout.trim(),
    seed: process.env.ONEJOB_TEST_SEED ?? null,
    load,
    said: said.split('\n').slice(0, 2).join(' ').replaceAll(`${root}/`, ''),
  };
}

const { values, positionals } = parseArgs({
  options: { tries: { type: 'string', default: '1' }, record: { type: 'boolean', default: false } },
  allowPositionals: true,
});
let isRed = false;

for (const path of positionals) {
  if (!existsSync(path)) {
    console.log(`No report at ${path}: the test run ended before it wrote one.`);
    isRed = true;
    continue;
  }
  const load = loadavg()[0] ?? 0;
  const report = read(path);
  const red = report.testResults.filter(({ status }) => status === 'failed');
  if (!report.success && red.length === 0) {
    console.log('The run failed, though no test did: an unhandled error, or a hook of the whole run.');
    isRed = true;
  }
  let testResults = report.testResults;
  for (const first of red) {
    const name = relative(root, first.name);
    let last: FileReport | null = null;
    for (let attempt = 1; attempt <= Number(values.tries) && last?.status !== 'passed'; attempt++) {
      console.log(`\n━━━ again, alone (${attempt} of ${values.tries}): ${name}`);
      last = runAlone(first.name);
    }
    if (last?.status !== 'passed') {
      console.log(`Still red: ${name}`);
      isRed = true;
      continue;
    }
    const flake = flakeOf(first, load);
    console.log(`A flake, red once and green alone: ${JSON.stringify(flake)}`);
    if (values.record) appendFileSync(join(root, 'test/flakes.jsonl'), `${JSON.stringify(flake)}\n`);
    const green = last;
    testResults = testResults.map((result) => (result.name === first.name ? green : result));
  }
  writeFileSync(path, JSON.stringify({ ...report, testResults }));
}
process.exitCode = isRed ? 1 : 0;
