import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { findingCodes } from './finding-codes.ts';

test('docs/findings.md describes every code, and no other', () => {
  const page = readFileSync(new URL('../../docs/findings.md', import.meta.url), 'utf8');
  const described = [...page.matchAll(/^### (\S+)\n(?=\S)/gm)].map(([, code]) => code);
  expect(described.toSorted()).toEqual([...findingCodes]);
});
