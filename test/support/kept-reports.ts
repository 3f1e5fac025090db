/**
 * Green reports of an acceptance run, kept by the hash of the tree that was tested, so that a run that was stopped can continue. A report
 * of another tree, or one in which anything was red, is never used.
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { attempt } from '../../src/base/errors.ts';

interface Counted {
  readonly success?: unknown;
  readonly numTotalTests?: unknown;
  readonly numPassedTests?: unknown;
  readonly testResults?: readonly { readonly status?: unknown }[];
}

/** Whether all tests of a vitest report passed at once, and how many were skipped; null: there is nothing to keep. */
export function greenReport(text: string): { readonly passed: number; readonly skipped: number } | null {
  const report = attempt(() => JSON.parse(text) as Counted | null);
  const { success, numTotalTests: total, numPassedTests: passed, testResults: files = [] } = report ?? {};
  const isGreen = success === true && files.length > 0 && files.every(({ status }) => status === 'passed');
  if (!isGreen || typeof total !== 'number' || typeof passed !== 'number' || passed === 0) return null;
  return { passed, skipped: total - passed };
}

/** The books of flakes, which the run itself writes and reads afresh at its end. */
const books = [':!test/flakes.jsonl', ':!test/quarantine.json'];

/** The hash of the tree in the working folder; null if anything in it is not committed. */
export function treeOf(root: string): string | null {
  const git = (...args: string[]) => spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  const changed = git('status', '--porcelain', '--', '.', ...books);
  if (changed.status !== 0 || changed.stdout !== '') return null;
  const tree = git('rev-parse', 'HEAD^{tree}');
  return tree.status === 0 ? tree.stdout.trim() : null;
}

/** `folder`: of all trees. `tree`: as `treeOf` says it now; null: nothing is kept or taken. */
export function keptReports(folder: string, tree: () => string | null) {
  const now = tree();
  const at = (part: string) => join(folder, now ?? '', `${part.replaceAll('/', '-of-')}.json`);
  return {
    /** Copies the kept report of a part to `report`; the sentence about it, null without one. */
    take(part: string, report: string): string | null {
      if (now === null || !existsSync(at(part))) return null;
      const found = greenReport(readFileSync(at(part), 'utf8'));
      if (found === null) return null;
      copyFileSync(at(part), report);
      const when = statSync(at(part)).mtime.toISOString().slice(0, 16).replace('T', ' ');
      const { passed, skipped } = found;
      return `Not run again: ${part} passed on this tree at ${when} UTC (${passed} tests, ${skipped} skipped). "--fresh" runs it.`;
    },
    /** Keeps a report of the tree that was there all the time; what is kept of other trees goes. */
    keep(part: string, report: string): void {
      if (now === null || tree() !== now || !existsSync(report) || greenReport(readFileSync(report, 'utf8')) === null) return;
      mkdirSync(join(folder, now), { recursive: true });
      for (const other of readdirSync(folder)) if (other !== now) rmSync(join(folder, other), { recursive: true });
      copyFileSync(report, `${at(part)}.new`);
      renameSync(`${at(part)}.new`, at(part));
    },
  };
}
