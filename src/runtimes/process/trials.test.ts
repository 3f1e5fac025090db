import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { openTrials, type Trial } from './trials.ts';

const trial = (end: Trial['end']): Trial => ({ end, why: `It ${end}.` });

test('a host that is too busy for a trial, or where it fails now, isolates jobs no less than before', () => {
  using dir = scratch();
  const path = join(dir.path, 'trials.json');
  // Nobody knows yet: a job that cannot be isolated does not start.
  const first = openTrials(path);
  expect([first.settle('bubblewrap', trial('late')), first.settle('network', trial('fails'))]).toEqual([true, false]);
  expect(existsSync(path)).toBe(false);
  for (const part of ['network', 'bubblewrap'] as const) expect(openTrials(path).settle(part, trial('works'))).toBe(true);
  expect(readFileSync(path, 'utf8')).toBe('["bubblewrap","network"]\n');
  const later = openTrials(path);
  expect([later.settle('bubblewrap', trial('fails')), later.settle('network', trial('late'))]).toEqual([true, true]);
  expect(later.settle('seccomp', trial('fails'))).toBe(false);
  expect(later.doubts).toEqual(['It fails. It worked here before.', 'It late.']);
});

test('what was uninstalled is gone, and may come back', () => {
  using dir = scratch();
  const path = join(dir.path, 'trials.json');
  openTrials(path).settle('network', trial('works'));
  expect(openTrials(path).settle('network', trial('absent'))).toBe(false);
  expect(existsSync(path)).toBe(false);
  expect(openTrials(path).settle('network', trial('fails'))).toBe(false);
});

test('a damaged file says nothing', () => {
  using dir = scratch();
  const path = join(dir.path, 'trials.json');
  writeFileSync(path, '{"x');
  expect(openTrials(path).settle('network', trial('fails'))).toBe(false);
});
