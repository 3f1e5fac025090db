/**
 * Runs the red files of vitest reports again, each alone, and judges what came of it (`verdict.ts`). Flakes are appended to
 * `test/flakes.jsonl`, so that they are repaired instead of forgotten. A report of what ran again replaces the first one.
 *
 *     node test/support/again.ts --lane gate --tries N REPORT.json…
 *
 * Exits 1 when a test is still red, or when a run failed for another reason than a test (an unhandled error, say).
 */
import { spawnSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { isDeterministic } from '../lanes.ts';
import { census, cleanUp, renderCensus, without } from './census.ts';
import { type Books, type FileRun, type Flake, isRed, judge, type Quarantined, show, type Verdict } from './verdict.ts';

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

const root = resolve(import.meta.dirname, '../..');
const [flakesPath, quarantinePath] = [join(root, 'test/flakes.jsonl'), join(root, 'test/quarantine.json')];

export interface Lane {
  readonly name: 'gate' | 'acceptance';
  /** How often a red file runs again, alone. */
  readonly tries: number;
}

/** What a lane came to, over all its reports. */
export interface Account extends Verdict {
  /** What failed beside the tests: a run without a report, an unhandled error. */
  readonly broken: readonly string[];
}

/** The books as they lie in `test/`. */
export function readBooks(): Books {
  const lines = readFileSync(flakesPath, 'utf8').split('\n');
  return {
    flakes: lines.filter((line) => line !== '').map((line) => JSON.parse(line) as Flake),
    quarantine: JSON.parse(readFileSync(quarantinePath, 'utf8')) as Quarantined[],
  };
}

/** Runs again what is red in the reports, judges, writes the books, and says all of it. */
export async function settle(lane: Lane, paths: readonly string[]): Promise<Account> {
  const load = Math.round((loadavg()[0] ?? 0) * 10) / 10;
  const books = readBooks();
  const excused = lane.name === 'acceptance' ? books.quarantine : [];
  const broken: string[] = [];
  const runs: FileRun[][] = [];

  for (const path of paths) {
    if (!existsSync(path)) {
      broken.push(`No report at ${path}: the test run ended before it wrote one.`);
      continue;
    }
    const report = read(path);
    const reds = report.testResults.filter(({ status }) => status === 'failed');
    if (!report.success && reds.length === 0)
      broken.push('A run failed, though no test did: an unhandled error, or a hook of the whole run.');
    const latest = new Map<string, FileReport>();
    for (const first of report.testResults) {
      const attempts = [runOf(first)];
      const isRepeatable = first.status === 'failed' && !isDeterministic(relative(root, first.name));
      while (isRepeatable && attempts.length <= lane.tries && isRed(attempts.at(-1) as FileRun, excused)) {
        console.log(`\n━━━ again, alone (${attempts.length} of ${lane.tries}): ${relative(root, first.name)}`);
        await clearUp();
        const own = runAlone(first.name);
        if (own !== null) latest.set(first.name, own);
        attempts.push(own === null ? runWithoutReport(first) : runOf(own));
      }
      runs.push(attempts);
    }
    const testResults = report.testResults.map((one) => latest.get(one.name) ?? one);
    writeFileSync(path, JSON.stringify({ ...report, testResults }));
  }

  const circumstances = {
    lane: lane.name,
    date: new Date().toISOString().slice(0, 10),
    commit: spawnSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root, encoding: 'utf8' }).stdout.trim(),
    seed: process.env.ONEJOB_TEST_SEED ?? null,
    load,
  };
  // A date on the wall must not decide about a change: the gate has no quarantine, and runs a red file once more instead.
  const verdict = judge(runs, books, circumstances, { isDeterministic, honoursQuarantine: lane.name === 'acceptance' });
  for (const flake of verdict.flakes) appendFileSync(flakesPath, `${JSON.stringify(flake)}\n`);
  if (verdict.quarantine !== books.quarantine) writeFileSync(quarantinePath, `${JSON.stringify(verdict.quarantine, null, 2)}\n`);
  const account = { ...verdict, broken };
  tell(account, books);
  return account;
}

/**
 * Removes what a red file left, so that the census at the end judges its second try. Only what the lane's own first census
 * does not know: elsewhere it may be somebody's.
 */
async function clearUp(): Promise<void> {
  const known = process.env.ONEJOB_CENSUS_BEFORE;
  if (known === undefined) return;
  const found = without(await census({ everybody: true }), known);
  if (found.left.length === 0) return;
  console.log(`Left by what was red, and removed now:\n${renderCensus(found)}`);
  await cleanUp(found);
}

function tell({ red, problems, flakes, quarantine, broken }: Account, before: Books): void {
  console.log();
  for (const flake of flakes) console.log(`Flake (test/flakes.jsonl): ${JSON.stringify(flake)}`);
  for (const entry of quarantine.slice(before.quarantine.length))
    console.log(`In quarantine until ${entry.until} (test/quarantine.json): ${show(entry)}`);
  for (const one of red) console.log(`Red: ${show(one)}\n  ${one.said}`);
  for (const sentence of [...problems, ...broken]) console.log(`Red: ${sentence}`);
}

function read(path: string): Report {
  return JSON.parse(readFileSync(path, 'utf8')) as Report;
}

function runOf({ name, status, message, assertionResults }: FileReport): FileRun {
  const failed = new Map<string, string>();
  for (const one of assertionResults)
    if (one.status === 'failed') failed.set(one.fullName, firstLines(one.failureMessages?.[0] ?? ''));
  if (status === 'failed' && failed.size === 0) failed.set('', firstLines(message ?? ''));
  const passed = assertionResults.filter((one) => one.status === 'passed').map(({ fullName }) => fullName);
  return { file: relative(root, name), passed, failed };
}

function runWithoutReport({ name }: FileReport): FileRun {
  return { file: relative(root, name), passed: [], failed: new Map([['', 'alone, it ended without a report']]) };
}

function firstLines(text: string): string {
  return text.split('\n').slice(0, 2).join(' ').replaceAll(`${root}/`, '').slice(0, 500);
}

/** A file's report out of a run of it alone; null when that run has none, or failed beside its tests. */
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

if (import.meta.main) {
  const { values, positionals } = parseArgs({
    options: { tries: { type: 'string', default: '1' }, lane: { type: 'string', default: 'gate' } },
    allowPositionals: true,
  });
  const name = values.lane === 'acceptance' ? 'acceptance' : 'gate';
  const { red, problems, broken } = await settle({ name, tries: Number(values.tries) }, positionals);
  process.exitCode = red.length + problems.length + broken.length > 0 ? 1 : 0;
}
