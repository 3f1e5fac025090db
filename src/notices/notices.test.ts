/** What people get through refusals, silence and the death of the manager, with a real store and time that the test moves. */
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { OnejobError } from '../base/errors.ts';
import type { LogFields } from '../base/log.ts';
import { openStore, type Store } from '../store/store.ts';
import { type Cause, calm } from './decide.ts';
import type { Message } from './message.ts';
import { createNotices, type Notices } from './notices.ts';

const card: Cause = {
  key: 'quarantine GPU-1',
  kind: 'device',
  subject: 'GPU-1',
  message: 'GPU-1 is out.',
  hint: null,
  stage: 0,
  patience: 0,
};
const [minute, hour] = [60_000, 3_600_000];

const dir = eachScratch();
let store: Store;
afterEach(() => store.close());

type Answer = 'accepts' | 'refuses' | 'is silent' | 'accepts, but the manager dies';

/** Managers one after the other on one store. */
function host() {
  store = openStore(dir.path);
  const world = { now: 0, causes: [card] as Cause[], answer: 'accepts' as Answer, isFull: false };
  const got: string[] = [];
  const ids: string[] = [];
  const lines: string[] = [];
  const say = (event: string, _fields?: LogFields) => void lines.push(event);
  let notices: Notices;
  const start = (): Notices => {
    notices = createNotices({
      clock: { now: () => world.now, wall: () => 1_000_000 + world.now, after: () => () => {} },
      log: { info: say, warn: say, error: say },
      store: {
        notices: store.notices,
        transaction(options, write) {
          if (world.isFull) throw new OnejobError('E_STATE_FULL', 'The disk is full.', { retry: true });
          return store.transaction(options, write);
        },
      },
      host: 'box',
      see: () => ({ causes: world.causes, blind: new Set() }),
      target: 'webhook https://hooks.example',
      async send({ id, event, message }: Message, signal) {
        if (world.answer === 'refuses') throw new OnejobError('E_NOTIFY', 'Refused.', { hint: 'Look.', retry: true });
        if (world.answer === 'is silent')
          return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
        got.push(`${event}: ${message}`);
        ids.push(id);
        return world.answer === 'accepts' ? 'it answered 200' : new Promise(() => {});
      },
    });
    return notices;
  };
  start();
  const look = async (ms = minute) => {
    world.now += ms;
    notices.look();
    for (let turns = 0; turns < 20; turns++) await turn();
  };
  return { world, got, ids, lines, look, start, notices: () => notices };
}

test('a cause is told once, its end once, and neither again by the next manager', async () => {
  const { world, got, look, start } = host();
  for (let looks = 0; looks < 5; looks++) await look();
  start();
  for (let looks = 0; looks < 5; looks++) await look();
  expect(got).toEqual(['problem: GPU-1 is out.']);
  world.causes = [];
  await look();
  await look(calm);
  start();
  await look();
  expect(got).toEqual(['problem: GPU-1 is out.', 'over: GPU-1 is out.']);
  expect(store.notices.all()).toEqual([]);
});

test('a refusal is tried again, ever more rarely, and is shown until it works', async () => {
  const { world, got, lines, look, notices } = host();
  world.answer = 'refuses';
  for (let looks = 0; looks < 10; looks++) await look();
  // After 0, 1, 3 and 7 minutes.
  expect(lines.filter((line) => line === 'failed to tell people')).toHaveLength(4);
  expect(notices().problem).toBe('Refused. Look.');
  expect(notices().findings()).toMatchObject([{ level: 'warning', subject: 'notify', hint: 'Look.' }]);
  world.answer = 'accepts';
  await look(hour);
  expect(got).toEqual(['problem: GPU-1 is out.']);
  expect(notices().problem).toBeNull();
  expect(notices().findings()[0]?.message).toMatch(/^Messages for people go to webhook https:\/\/hooks\.example\. The last one/);
});

test('a message that nobody takes is given up after a day, and its end is still told', async () => {
  const { world, got, lines, look } = host();
  world.answer = 'refuses';
  for (let looks = 0; looks < 26; looks++) await look(hour);
  expect(lines).toContain('gave up a message for people');
  expect(store.notices.all()).toMatchObject([{ state: 'announced' }]);
  world.answer = 'accepts';
  world.causes = [];
  await look(2 * hour);
  await look(calm);
  expect(got).toEqual(['over: GPU-1 is out.']);
});

test('a target that is silent delays no look, and the manager can stop meanwhile', async () => {
  const { world, got, lines, look, start, notices } = host();
  world.answer = 'is silent';
  await look();
  world.causes = [card, { ...card, key: 'quarantine GPU-2', message: 'GPU-2 is out.' }];
  await look();
  expect(store.notices.all()).toHaveLength(2);
  await notices().close();
  expect(lines).not.toContain('failed to tell people');
  world.answer = 'accepts';
  start();
  await look();
  expect(got).toEqual(['problem: GPU-1 is out.', 'problem: GPU-2 is out.']);
});

test('a manager that dies before a message was accepted does not lose it', async () => {
  const { world, got, look, start } = host();
  world.answer = 'is silent';
  await look();
  world.answer = 'accepts';
  // The cause is gone, and people are told of both.
  world.causes = [];
  start();
  await look();
  expect(got).toEqual(['problem: GPU-1 is out.']);
  await look(calm);
  expect(got).toEqual(['problem: GPU-1 is out.', 'over: GPU-1 is out.']);
});

test('one that dies right after it was accepted sends it again, with the same id', async () => {
  const { world, got, ids, look, start } = host();
  world.answer = 'accepts, but the manager dies';
  await look();
  world.answer = 'accepts';
  start();
  await look();
  await look();
  expect(got).toEqual(['problem: GPU-1 is out.', 'problem: GPU-1 is out.']);
  expect(new Set(ids).size).toBe(1);
});

test('on a full disk people are told all the same, and it is recorded later', async () => {
  const { world, got, look } = host();
  world.isFull = true;
  await look();
  await look();
  expect([got, store.notices.all()]).toEqual([['problem: GPU-1 is out.'], []]);
  world.isFull = false;
  await look();
  expect(got).toHaveLength(1);
  expect(store.notices.all()).toMatchObject([{ key: card.key, state: 'announced' }]);
});
