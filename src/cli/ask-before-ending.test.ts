/** What a person is asked before jobs end. */
import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { askFor, fateQuestion, fates, runningText } from './ask-before-ending.ts';
import type { Session } from './session.ts';

const hour = 3_600_000;

test('names whose job it is and how long it has run', () => {
  expect(runningText([{ user: 'ada', startedAt: 0 }], 74 * hour)).toBe('1 job of ada runs (3d 2h).');
  expect(runningText([{ user: null, startedAt: null }], 0)).toBe('1 job runs.');
  const two = [
    { user: 'ada', startedAt: 0 },
    { user: 'bob', startedAt: hour },
  ];
  expect(fateQuestion(two, 2 * hour)).toBe('2 jobs of ada, bob run (up to 2h 00m). What becomes of them?');
});

function asked(typed: string) {
  const input = new PassThrough();
  const { context, stderr } = testContext([], '/');
  const session = { context: { ...context, stdin: () => input } } as unknown as Session;
  input.end(typed);
  const text = fateQuestion([{ user: null, startedAt: null }], 0);
  const answer = askFor(session, { text, words: ['leave', 'drain', 'end'], shown: fates(1), command: 'down' });
  return { answer, stderr };
}

test.each([
  ['\n', 'leave'],
  ['Drain\n', 'drain'],
  ['y\nn\ne\n', 'end'],
])('says what each answer does, and takes its beginning (%j)', async (typed, expected) => {
  const { answer, stderr } = asked(typed);
  expect(await answer).toBe(expected);
  expect(stderr()).toContain(
    '1 job runs. What becomes of it? leave (it continues without a daemon), drain (wait for it), end [leave]: ',
  );
  if (expected === 'end') expect(stderr()).toContain('Type leave or drain or end.');
});

test('an input that ends is an error of the command that asks', async () => {
  await expect(asked('').answer).rejects.toMatchObject({
    code: 'E_USAGE',
    message: 'The input ended before the question was answered; nothing was changed.',
    hint: expect.stringContaining('"onejob down --help"'),
  });
});
