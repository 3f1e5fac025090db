import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { plainWord, UnfitWatch, unfitHow } from './unfit.ts';

test('jobs are shown once they have waited, those that are alike together, and many kinds as one', () => {
  const clock = handClock();
  const watch = new UnfitWatch(clock, 'Compare.');
  const kinds = Array.from({ length: 8 }, (_, n) => [`job-${n}`, { jobs: 1, how: `for ${Math.min(n, 6)}` }] as const);
  watch.saw('here', new Map(kinds));
  expect(watch.list()).toEqual([]);
  clock.advance(299_000);
  watch.saw('here', new Map([...kinds, ['new', { jobs: 1, how: 'for 0' }]]));
  watch.saw('there', new Map());
  clock.advance(1_000);
  expect(watch.list().map(({ jobs, how }) => `${jobs} ${how}`)).toEqual([
    ...['for 0', 'for 1', 'for 2', 'for 3', 'for 4'].map((how) => `1 ${how}`),
    '3 for other agents that no pool here has',
  ]);
  // A look that was cut short says nothing of what it did not list.
  watch.saw('here', new Map([['job-1', { jobs: 1, how: 'for 1' }]]), new Set(['job-0', 'job-1']));
  expect(watch.list().map(({ how }) => how)).not.toContain('for 0');
  expect(watch.list().map(({ how }) => how)).toContain('for 5');
  watch.saw('here', new Map());
  expect(watch.list()).toEqual([]);
  watch.saw('here', new Map(kinds));
  expect(watch.list()).toEqual([]);
});

test('foreign words are cut, and move no cursor', () => {
  expect(plainWord('a\u202e\u009bb'.padEnd(200, 'c'))).toBe(`a  b${'c'.repeat(76)}`);
  expect(unfitHow('acme/\u202edemo', ['a'])).toMatch(/^in acme\/ demo for/);
  const how = unfitHow('queue "q"', ['a\u001b[2J', 'x'.repeat(500), ...Array.from({ length: 20 }, () => 'y')]);
  expect(how).toMatch(/^in queue "q" for an agent with a \[2J, x{80}, y, y, y, y, y, y, more, which no pool here has$/);
});
