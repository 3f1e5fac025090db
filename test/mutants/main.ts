/**
 * Says which tests hold which behaviour of a folder: `npm run mutants -- src/core`. Makes small faults in its files, one at a time,
 * and runs the tests that reach each. docs/testing.md says how to read what it prints.
 */
import { globSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, matchesGlob, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { type Import, loadedBy, parse } from '../../scripts/house/graph.ts';
import { laneOf } from '../lanes.ts';
import { mutationsOf, type Numbered } from './mutate.ts';
import { compare, knownOf, lineOf, type Report, type Result, reportOf, sampleOf } from './report.ts';
import { Runner } from './runner.ts';

/** Test files, each with the files under test that it loads. */
type Tests = ReadonlyMap<string, ReadonlySet<string>>;

const usage = `npm run mutants -- FOLDER [options]

Makes small faults in the files of a folder (or in one file), one at a time, and runs the tests that reach each. Prints which test
files kill it, those that survive, and for every test file how many mutants only it kills.

  --sample N         how many mutants to draw; default 100
  --seed N           draws others; default 1
  --project NAME     lanes whose tests run, also several times; default unit and process
  --tests GLOB       only these test files, also several times
  --limit SECONDS    processor time for a test file, and time for a test; default 30
  --json FILE        writes the report
  --against FILE     tries the mutants that were killed in an earlier report, and says which are lost; for each it first runs the
                     tests that killed it then, and stops at the first that still does
  --help

Exits with 1 when --against finds a lost mutant, and with 2 when it cannot begin.`;

const root = join(import.meta.dirname, '../..');

function fail(message: string): never {
  console.error(message);
  process.exit(2);
}

const { values, positionals } = parseArgs({
  options: {
    sample: { type: 'string', default: '100' },
    seed: { type: 'string', default: '1' },
    project: { type: 'string', multiple: true, default: ['unit', 'process'] },
    tests: { type: 'string', multiple: true },
    limit: { type: 'string', default: '30' },
    json: { type: 'string' },
    against: { type: 'string' },
    help: { type: 'boolean', short: 'h', default: false },
  },
  allowPositionals: true,
});

/** Files of the product in a folder, from the root. */
function sourceOf(folder: string): string[] {
  const files = statSync(folder).isFile() ? [folder] : globSync('**/*.ts', { cwd: folder }).map((file) => join(folder, file));
  return files
    .filter((file) => !file.endsWith('.test.ts'))
    .map((file) => relative(root, file))
    .sort();
}

/** Those of some lanes that load one of the files, over any number of imports; from the root. */
function testsOf(source: readonly string[], lanes: readonly string[]): Tests {
  const files = ['src', 'test', 'scripts', 'bench', 'web'].flatMap((folder) =>
    globSync(`${folder}/**/*.{ts,tsx}`, { cwd: root, exclude: ['**/node_modules/**'] }),
  );
  const imports: readonly Import[] = files
    .flatMap((file) => parse(file, readFileSync(join(root, file), 'utf8')).imports)
    .map((one) => ({ ...one, kind: one.kind === 'lazy' ? 'value' : one.kind }));
  const isTest = (file: string): boolean => file.endsWith('.test.ts') && lanes.includes(laneOf(file) ?? '');
  const wanted = new Set(source);
  const loads = files.filter(isTest).map((file) => [file, loadedBy(file, imports).intersection(wanted)] as const);
  return new Map(loads.filter(([, all]) => all.size > 0).sort(([a], [b]) => a.localeCompare(b)));
}

/** Which tests reach which mutant; those that are red without any are left out. */
async function lookUp(runner: Runner, chosen: readonly Numbered[], tests: Tests): Promise<ReadonlyMap<number, string[]>> {
  const { red, reached, loaded } = await runner.run([...tests.keys()], null);
  for (const file of red) console.log(`Red without a mutant, so it says nothing: ${file}`);
  const green = [...tests.keys()].filter((file) => !red.includes(file));
  const reaches = (file: string, { number, file: source }: Numbered): boolean =>
    reached.get(file)?.includes(number) === true || (loaded.has(number) && tests.get(file)?.has(source) === true);
  return new Map(chosen.map((one) => [one.number, green.filter((file) => reaches(file, one))]));
}

/** Groups of files that run together: all at once, or one after another until one is red. */
function turnsOf(reaching: readonly string[], killers: readonly string[] | null): string[][] {
  if (reaching.length === 0) return [];
  if (killers === null) return [[...reaching]];
  const first = killers.filter((file) => reaching.includes(file));
  return [...first.map((file) => [file]), reaching.filter((file) => !first.includes(file))].filter((turn) => turn.length > 0);
}

async function tryAll(chosen: readonly Numbered[], tests: Tests, before: Report | null): Promise<Result[]> {
  const notes = mkdtempSync(join(tmpdir(), 'onejob-mutants-'));
  const options = { mutations: chosen, projects: values.project, limit: Number(values.limit) * 1_000, notes: join(notes, 'run') };
  const killers = new Map(before?.results.map(({ key, killedBy }) => [key, killedBy]));
  try {
    await using runner = await Runner.open(options);
    const reaching = await lookUp(runner, chosen, tests);
    const results: Result[] = [];
    for (const { key, file, line, operator, from, to, number } of chosen) {
      const files = reaching.get(number) ?? [];
      let killedBy: readonly string[] = [];
      for (const turn of turnsOf(files, before === null ? null : (killers.get(key) ?? []))) {
        if (killedBy.length === 0) ({ red: killedBy } = await runner.run(turn, number));
      }
      const result = { key, file, line, operator, from, to, killedBy, reachedBy: files.length };
      results.push(result);
      console.log(lineOf(result));
    }
    return results;
  } finally {
    rmSync(notes, { recursive: true, force: true });
  }
}

/** Answers with the exit code. */
async function main(folder: string): Promise<number> {
  const before = values.against === undefined ? null : (JSON.parse(readFileSync(values.against, 'utf8')) as Report);
  const source = sourceOf(resolve(folder));
  const all = source.flatMap((file) => mutationsOf(file, readFileSync(join(root, file), 'utf8')));
  const chosen = before === null ? sampleOf(all, Number(values.sample), Number(values.seed)) : knownOf(all, before);
  const reaching = testsOf([...new Set(chosen.map(({ file }) => file))], values.project);
  const isWanted = (file: string): boolean => values.tests?.some((glob) => matchesGlob(file, glob)) ?? true;
  const tests = new Map([...reaching].filter(([file]) => isWanted(file)));
  console.log(`${chosen.length} of ${all.length} mutants in ${source.length} files; ${tests.size} test files load them.`);

  const results = await tryAll(chosen, tests, before);
  const report = reportOf(folder, results, [...tests.keys()]);
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 1)}\n`);
  const killed = results.filter(({ killedBy }) => killedBy.length > 0).length;
  const unreached = results.filter(({ reachedBy }) => reachedBy === 0).length;
  console.log(`\n${killed} of ${results.length} mutants are killed; no test reaches ${unreached} of the others.`);
  if (before === null) {
    console.log('How many only one file kills:');
    const ranked = Object.entries(report.onlyBy).sort(([, a], [, b]) => b - a);
    for (const [file, count] of ranked) console.log(`${String(count).padStart(5)}  ${file}`);
    return 0;
  }
  const { lost, held, gone } = compare(before, results);
  console.log(
    `Of those killed before, ${held} still are, ${lost.length} are lost, and ${gone.length} are no longer in the source.`,
  );
  for (const one of lost) console.log(`lost  ${lineOf(one)}`);
  for (const key of gone) console.log(`gone  ${key}`);
  return lost.length > 0 ? 1 : 0;
}

if (values.help) console.log(usage);
// vitest sets it as well, for the tests that mutants made red.
else process.exitCode = await main(positionals[0] ?? fail(usage));
