/** What a person is asked before jobs end. */
import { expect, test } from 'vitest';
import { endingQuestion } from './ask-before-ending.ts';

const hour = 3_600_000;

test('names whose job it is and how long it has run', () => {
  expect(endingQuestion([{ user: 'ada', startedAt: 0 }], 74 * hour)).toBe('1 job of ada runs (3d 2h). End it?');
  expect(endingQuestion([{ user: null, startedAt: null }], 0)).toBe('1 job runs. End it?');
  const two = [
    { user: 'ada', startedAt: 0 },
    { user: 'bob', startedAt: hour },
  ];
  expect(endingQuestion(two, 2 * hour)).toBe('2 jobs of ada, bob run (up to 2h 00m). End them?');
});
