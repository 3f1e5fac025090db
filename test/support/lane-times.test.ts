import { expect, test } from 'vitest';
import { skippedLines } from './lane-times.ts';

const skipped = (name: string, note?: string) => ({ fullName: name, result: () => ({ state: 'skipped', note }) });
const passed = (name: string) => ({ fullName: name, result: () => ({ state: 'passed' }) });

test('names the skipped tests of each file, with the reason that a test gives itself', () => {
  const lines = skippedLines([
    { file: 'src/a.test.ts', tests: [passed('one'), skipped('two'), skipped('three', 'no zsh here')] },
    { file: 'src/b.test.ts', tests: [passed('four')] },
    { file: 'src/c.test.ts', tests: Array.from({ length: 9 }, (_, n) => skipped(`n${n}`)) },
  ]);
  expect(lines).toEqual([
    'skipped    2 of src/a.test.ts: two; three (no zsh here)',
    'skipped    9 of src/c.test.ts: n0; n1; n2; n3; 5 more',
  ]);
});
