import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';

const script = join(import.meta.dirname, '..', '.ci', 'count.cjs');
let dir = '';

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'oj-count-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function report(name: string, ...statuses: string[]): string {
  const file = join(dir, name);
  const assertionResults = statuses.map((status, n) => ({ status, fullName: `test ${n}` }));
  writeFileSync(file, JSON.stringify({ testResults: [{ name: 'a.test.ts', status: 'passed', assertionResults }] }));
  return file;
}

function count(...args: string[]): { status: number | null; last: string | undefined; out: string } {
  const { status, stdout } = spawnSync(process.execPath, [script, ...args], { encoding: 'utf8' });
  return { status, last: stdout.trim().split('\n').at(-1), out: stdout };
}

test('sums up every report', () => {
  expect(count('0', report('a', 'passed', 'passed'), report('b', 'passed')).last).toBe('3 passed, 0 failed');
  expect(count('1', report('a', 'passed', 'failed'), report('b', 'failed')).last).toBe('1 passed, 2 failed');
});

test('a run that failed without a failed test counts one, and so does a file that could not be loaded', () => {
  expect(count('1', report('a', 'passed')).last).toBe('1 passed, 1 failed');
  expect(count('1', join(dir, 'none')).last).toBe('0 passed, 1 failed');
  const broken = join(dir, 'broken');
  writeFileSync(broken, JSON.stringify({ testResults: [{ name: 'b.test.ts', status: 'failed', assertionResults: [] }] }));
  expect(count('1', report('a', 'passed'), broken).last).toBe('1 passed, 1 failed');
});

test('names what was skipped, and fails', () => {
  const { status, out } = count('--no-skips', report('a', 'passed', 'skipped'));
  expect(status).toBe(1);
  expect(out).toContain('a.test.ts: test 1');
  expect(count('--no-skips', report('b', 'passed')).status).toBe(0);
});
