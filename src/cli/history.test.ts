import { expect, test } from 'vitest';
import { historyTable } from './history.ts';
import { createColors } from './text.ts';

test('jobs that never ran have no longest run', () => {
  const none = {
    passed: 0,
    cancelled: 1,
    code: 0,
    infrastructure: 0,
    configuration: 0,
    unknown: 0,
    waitMs: 1_000,
    runMs: null,
    longestMs: 0,
  };
  const [titles = '', row = ''] = historyTable('pool', [{ value: 'gpu', jobs: 1, ...none }], createColors(false), null);
  expect([titles.trim().split(/ +/).at(-1), row.trim().split(/ +/).at(-1)]).toEqual(['LONGEST', '-']);
});

test('a column for what the configuration is to blame for is there only where something is', () => {
  const one = { value: 'gpu', jobs: 4, passed: 3, cancelled: 0, code: 0, infrastructure: 0, unknown: 0 };
  const row = { ...one, waitMs: null, runMs: null, longestMs: 0 };
  const [usual = ''] = historyTable('pool', [{ ...row, configuration: 0 }], createColors(false), null);
  const [titles = '', misfit = ''] = historyTable('pool', [{ ...row, passed: 3, configuration: 1 }], createColors(false), null);
  expect([usual.includes('CONFIGURATION'), titles.includes('CONFIGURATION'), misfit]).toEqual([
    false,
    true,
    expect.stringContaining('25%'),
  ]);
});
