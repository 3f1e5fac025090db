import { describe, expect, test } from 'vitest';
import { type Cause, calm, decide, delivered, type Notice, type Seen } from './decide.ts';

const minute = 60_000;

const pool: Cause = {
  key: 'pool lab',
  kind: 'pool',
  subject: 'pool lab',
  message: 'Pool lab keeps failing.',
  hint: null,
  stage: 0,
  patience: 60 * minute,
};
const card: Cause = { ...pool, key: 'quarantine GPU-1', kind: 'device', subject: 'GPU-1', message: 'GPU-1 is out.', patience: 0 };

const none: Seen = { causes: [], blind: new Set() };
const sees = (...causes: Cause[]): Seen => ({ causes, blind: new Set() });

/** Looks every minute for so long; what is due is delivered at once. */
function told(looks: readonly (readonly [minutes: number, Seen])[], before: readonly Notice[] = []) {
  let notices = before;
  let now = 0;
  const messages: string[] = [];
  for (const [minutes, seen] of looks)
    for (let passed = 0; passed < minutes; passed++, now += minute) {
      notices = decide(seen, notices, { now, wall: 1_000_000 + now });
      for (const { state, message } of notices)
        if (state === 'announcing' || state === 'ending') messages.push(`${now / minute} ${state}: ${message}`);
      notices = notices.flatMap((notice) => delivered(notice) ?? []);
    }
  return { messages, notices };
}

describe('a cause', () => {
  test('is announced once, and its end once', () => {
    const { messages, notices } = told([
      [600, sees(card)],
      [600, none],
    ]);
    expect(messages).toEqual(['0 announcing: GPU-1 is out.', '610 ending: GPU-1 is out.']);
    expect(notices).toEqual([]);
  });

  test('that may pass by itself is announced only when it has lasted', () => {
    expect(
      told([
        [60, sees(pool)],
        [600, none],
      ]).messages,
    ).toEqual([]);
    expect(
      told([
        [62, sees(pool)],
        [600, none],
      ]).messages,
    ).toHaveLength(2);
  });

  test('that comes and goes stays one cause', () => {
    const looks = Array.from({ length: 50 }, () => [[3, sees(pool)] as const, [9, none] as const]).flat();
    expect(told([[61, sees(pool)], ...looks]).messages).toEqual(['60 announcing: Pool lab keeps failing.']);
  });

  test('that has not lasted without a pause is not announced as one that has', () => {
    const blips = (pause: number) => Array.from({ length: 50 }, () => [[3, sees(pool)] as const, [pause, none] as const]).flat();
    expect(told(blips(4)).messages).toEqual([]);
    expect(told(blips(1)).messages).toEqual(['60 announcing: Pool lab keeps failing.']);
    const { notices } = told([
      [3, sees(pool)],
      [4, none],
      [1, sees(pool)],
    ]);
    expect(notices).toMatchObject([{ state: 'waiting', since: 1_000_000 + 7 * minute }]);
  });

  test('that comes back after its end is another one', () => {
    const looks = [
      [5, sees(card)],
      [20, none],
      [5, sees(card)],
    ] as const;
    expect(told(looks).messages.map((line) => line.split(':')[0])).toEqual(['0 announcing', '15 ending', '25 announcing']);
  });

  test('that cannot be seen is not over', () => {
    const { messages } = told([
      [1, sees(card)],
      [600, { causes: [], blind: new Set(['device']) }],
      [15, none],
    ]);
    expect(messages).toEqual(['0 announcing: GPU-1 is out.', '611 ending: GPU-1 is out.']);
  });

  test('that gets worse is announced again, and one that gets better is not', () => {
    const worse = { ...card, stage: 1, message: 'GPU-1 is gone.' };
    const { messages } = told([
      [5, sees(card)],
      [5, sees(worse)],
      [5, sees(card)],
      [5, sees(worse)],
    ]);
    expect(messages).toEqual(['0 announcing: GPU-1 is out.', '5 announcing: GPU-1 is gone.']);
  });

  test('that is back while its end is not delivered yet is announced anew afterwards', () => {
    const base = { ...card, since: 0, at: 0, from: 0 };
    const ending: Notice = { ...base, state: 'ending', gone: 0 };
    const [kept] = decide(sees(card), [ending], { now: calm, wall: calm });
    expect(kept).toMatchObject({ state: 'ending' });
    expect(delivered(kept as Notice)).toBeNull();
    expect(decide(sees(card), [], { now: calm, wall: calm })).toMatchObject([{ state: 'announcing', since: calm }]);
  });
});

test('what has not changed is the same object, so that nothing is written', () => {
  const announced: Notice = { ...card, since: 0, at: 0, from: 0, state: 'announced', gone: null };
  expect(decide(sees(card), [announced], { now: minute, wall: minute })[0]).toBe(announced);
});
