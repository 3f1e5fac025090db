/**
 * What was tried on which host, kept in `results/` for docs/tried-with.md. A test run keeps it only where it is told to
 * (`ONEJOB_KEEP_RESULTS=1`), since it changes the repository.
 */
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Setup } from './setups.ts';

export interface Versions {
  readonly engine: string;
  readonly systemd: string;
  readonly kernel: string;
  /** Kind of the file system of control groups: `cgroup2fs` is version 2. */
  readonly groups: string;
}

export interface Result {
  readonly setup: Setup;
  readonly versions: Versions;
  readonly acts: Readonly<Record<string, 'passed' | 'failed'>>;
  readonly date: string;
  /** Of the commit that was tried. */
  readonly tree: string;
}

export const resultsFolder = join(import.meta.dirname, 'results');

export function keepResult(setup: Setup, versions: Versions, acts: Result['acts']): void {
  if (process.env.ONEJOB_KEEP_RESULTS !== '1') return;
  const git = spawnSync('git', ['rev-parse', 'HEAD^{tree}'], { cwd: import.meta.dirname, encoding: 'utf8' });
  const date = new Date().toISOString().slice(0, 10);
  const result: Result = { setup, versions, acts, date, tree: git.stdout.trim() };
  const name = Object.values(setup).join('-').toLowerCase().replaceAll(' ', '-');
  mkdirSync(resultsFolder, { recursive: true });
  writeFileSync(join(resultsFolder, `${name}.json`), `${JSON.stringify(result, null, 2)}\n`);
}
