import { expect, test } from 'vitest';
import { historyTable } from './history.ts';
import { createColors } from './text.ts';

test('jobs that never ran have no longest run', () => {
  const none = { passed: 0, cancelled: 1, code: 0, infrastructure: 0, unknown: 0, waitMs: 1_000, runMs: null, longestMs: 0 };
  const [titles = '', row = ''] = historyTable('pool', [{ value: 'gpu', jobs: 1, ...none }], createColors(false), null);
  expect([titles.trim().split(/ +/).at(-1), row.trim().split(/ +/).at(-1)]).toEqual(['LONGEST', '-']);
});
