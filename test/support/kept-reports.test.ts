import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { greenReport, keptReports } from './kept-reports.ts';
import { type Scratch, scratch } from './scratch.ts';

const passed = { status: 'passed' };
const report = (more: object = {}) =>
  JSON.stringify({ success: true, numTotalTests: 9, numPassedTests: 7, testResults: [passed, passed], ...more });

let here: Scratch;
beforeEach(() => {
  here = scratch();
});
afterEach(() => here[Symbol.dispose]());
const at = (...path: string[]) => join(here.path, ...path);

test.each([
  ['a test that failed', report({ success: false })],
  ['a file that failed', report({ testResults: [passed, { status: 'failed' }] })],
  ['no test', report({ numTotalTests: 0, numPassedTests: 0, testResults: [] })],
  ['skipped tests only', report({ numPassedTests: 0 })],
  ['half of a report', report().slice(0, 40)],
  ['nothing', 'null'],
])('a report with %s is not green', (_what, text) => {
  expect(greenReport(text)).toBeNull();
});

test('a green report says how many tests passed, and how many were skipped', () => {
  expect(greenReport(report())).toEqual({ passed: 7, skipped: 2 });
});

test('a green report is taken again for the same part of the same tree, and for no other', () => {
  writeFileSync(at('now.json'), report());
  const kept = keptReports(at('kept'), () => 'tree-a');
  expect(kept.take('long', at('again.json'))).toBeNull();
  kept.keep('long', at('now.json'));
  expect(kept.take('long', at('again.json'))).toMatch(
    /^Not run again: long passed on this tree at .* UTC \(7 tests, 2 skipped\)\./,
  );
  expect(readFileSync(at('again.json'), 'utf8')).toBe(report());
  expect(kept.take('real', at('again.json'))).toBeNull();
  kept.keep('short 1/3', at('now.json'));
  expect([kept.take('short', at('again.json')), kept.take('short 2/3', at('again.json'))]).toEqual([null, null]);
  expect(kept.take('short 1/3', at('again.json'))).not.toBeNull();
  expect(keptReports(at('kept'), () => 'tree-b').take('long', at('again.json'))).toBeNull();
});

test('nothing is kept of a tree with changes, of one that changed meanwhile, or of a run that was red or stopped', () => {
  writeFileSync(at('green.json'), report());
  writeFileSync(at('red.json'), report({ success: false }));
  mkdirSync(at('kept'));
  keptReports(at('kept'), () => null).keep('long', at('green.json'));
  const trees = ['tree-a', 'tree-b'];
  keptReports(at('kept'), () => trees.shift() ?? null).keep('long', at('green.json'));
  const kept = keptReports(at('kept'), () => 'tree-a');
  kept.keep('long', at('red.json'));
  kept.keep('long', at('never-written.json'));
  expect(readdirSync(at('kept'))).toEqual([]);
});

test('what is kept of other trees goes with the first report of a new one', () => {
  writeFileSync(at('green.json'), report());
  for (const tree of ['tree-a', 'tree-b']) keptReports(at('kept'), () => tree).keep('long', at('green.json'));
  expect(readdirSync(at('kept'))).toEqual(['tree-b']);
});
