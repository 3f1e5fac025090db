import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { pagesBehind } from './docs.ts';

test('the generated parts of the docs are what the code says', () => {
  expect(pagesBehind(), 'run "npm run docs"').toEqual([]);
});

test('in the state × event table every state changes by some event', () => {
  const page = readFileSync(join(import.meta.dirname, '..', 'docs', 'slot-lifecycle.md'), 'utf8');
  for (const state of ['standby', 'releasing', 'busy', 'killing', 'proving'])
    expect(page).toMatch(new RegExp(`→ .*\\*\\*${state}\\*\\*`));
});
