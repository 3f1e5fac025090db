/** What runs of `npm run test:cuts` came to, in a file that grows with each of them. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** Jobs of a pool that have ended. */
export interface PoolCounts {
  /** The own queue, or the CI service that gave them. */
  readonly service: string;
  readonly jobs: number;
  /** Of them. */
  readonly lost: number;
}

/** One run, on one host from its installation on. */
export interface CutsRun {
  readonly date: string;
  /** The hash of the tree that ran. */
  readonly tree: string;
  readonly engine: string;
  readonly kernel: string;
  readonly systemd: string;
  readonly seed: number;
  readonly cuts: number;
  readonly reboots: number;
  /** By pool. */
  readonly pools: Readonly<Record<string, PoolCounts>>;
  readonly violations: readonly string[];
  /** By hand: what was changed since, so that these violations cannot happen again. */
  readonly fixed?: string;
}

export interface CutsResults {
  readonly runs: readonly CutsRun[];
}

export const resultsFile = join(import.meta.dirname, '../hosts/results/cuts.json');

export function readResults(): CutsResults {
  return existsSync(resultsFile) ? (JSON.parse(readFileSync(resultsFile, 'utf8')) as CutsResults) : { runs: [] };
}

/** Writes a run down, in the place of what was written of it before. */
export function keepRun(run: CutsRun): void {
  const others = readResults().runs.filter((one) => one.seed !== run.seed || one.date !== run.date);
  mkdirSync(dirname(resultsFile), { recursive: true });
  writeFileSync(resultsFile, `${JSON.stringify({ runs: [...others, run] }, null, 2)}\n`);
}

/** Of this clone. What is not committed counts, too, and is marked. */
export function treeHere(): string {
  const git = (...words: string[]) => execFileSync('git', words, { cwd: import.meta.dirname, encoding: 'utf8' }).trim();
  const isChanged = git('status', '--porcelain', '--', '.', ':/src', ':/test', ':!/test/hosts/results') !== '';
  return `${git('rev-parse', 'HEAD^{tree}').slice(0, 12)}${isChanged ? ' and changes' : ''}`;
}
