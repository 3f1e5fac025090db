import { expect, test } from 'vitest';
import type { ToldNotices } from './decide.ts';
import { messageOf, testMessage } from './message.ts';

const told: ToldNotices = {
  key: 'pool lab',
  kind: 'pool',
  subject: 'pool lab',
  stage: 0,
  since: 1_000_000,
  at: 4_600_000,
  state: 'announcing',
  message: 'Pool lab has kept failing for an hour: no shell.',
  hint: 'Type "onejob doctor".',
};

test('a message is for people and for programs, and the same when it is sent again', () => {
  expect(messageOf(told, 'gpuci')).toEqual({
    id: 'pool lab 4600000 problem',
    event: 'problem',
    kind: 'pool',
    host: 'gpuci',
    subject: 'pool lab',
    message: 'Pool lab has kept failing for an hour: no shell.',
    hint: 'Type "onejob doctor".',
    since: 1_000_000,
    at: 4_600_000,
    title: 'onejob on gpuci: pool lab',
    text: 'onejob on gpuci: Pool lab has kept failing for an hour: no shell. Type "onejob doctor".',
  });
});

test('the all-clear says how long it took', () => {
  const { event, title, text } = messageOf({ ...told, state: 'ending' }, 'gpuci');
  expect([event, title]).toEqual(['over', 'onejob on gpuci: pool lab: over']);
  expect(text).toBe('onejob on gpuci: Over after 1h: Pool lab has kept failing for an hour: no shell.');
});

test('neither output of an agent nor a password leaves the host, and nobody gets a book', () => {
  const message = `It failed with TOKEN=hunter2 at https://me:hunter2@host/x.\u001b[31m Its last output was:\nhunter2${'x'.repeat(9_000)}`;
  const made = messageOf({ ...told, message, hint: 'y'.repeat(9_000) }, 'gpuci');
  const whole = JSON.stringify(made);
  expect(whole).not.toContain('hunter2');
  expect(whole).not.toContain('\\u001b');
  expect(whole.length).toBeLessThan(3_000);
});

test('a test says that it is one', () => {
  expect(testMessage('gpuci', 7)).toMatchObject({ event: 'test', kind: 'test', at: 7, title: 'onejob on gpuci: test' });
});
