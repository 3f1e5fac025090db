import { expect, it } from 'vitest';
import { ExpiringCache } from './expiring-cache.ts';

const never = new AbortController().signal;

it('is asked for once by all callers, and again from its end on', async () => {
  let [now, asked] = [0, 0];
  const held = new ExpiringCache<number>(() => now);
  const ask = async () => {
    asked += 1;
    return { value: asked, until: now + 10 };
  };
  expect(await Promise.all([held.get('a', ask, never), held.get('a', ask, never), held.get('b', ask, never)])).toEqual([1, 1, 2]);
  now = 9;
  expect(await held.get('a', ask, never)).toBe(1);
  now = 10;
  expect(await held.get('a', ask, never)).toBe(3);
});

it('a late refusal of an old value does not take the new one', async () => {
  const held = new ExpiringCache<string>(() => 0);
  const get = (value: string) => held.get('', async () => ({ value, until: 1 }), never);
  expect(await get('old')).toBe('old');
  held.forget('old');
  expect(await get('new')).toBe('new');
  held.forget('old');
  expect(await get('other')).toBe('new');
});

it('continues for the others when one gives up, and ends when the last one does', async () => {
  const held = new ExpiringCache<string>(() => 0);
  const [first, last] = [new AbortController(), new AbortController()];
  let question: AbortSignal | null = null;
  const ask = (signal: AbortSignal) => {
    question = signal;
    return new Promise<never>(() => {});
  };
  const answers = [held.get('', ask, first.signal), held.get('', ask, last.signal)].map((one) =>
    one.catch((error) => error.message),
  );
  await Promise.resolve();
  first.abort(new Error('first'));
  expect(await answers[0]).toBe('first');
  expect(question).toMatchObject({ aborted: false });
  last.abort(new Error('last'));
  expect(await answers[1]).toBe('last');
  expect(question).toMatchObject({ aborted: true });
});

it('what is asked for after the end of its caller is not asked at all', async () => {
  const held = new ExpiringCache<string>(() => 0);
  await expect(held.get('', () => Promise.reject(new Error('asked')), AbortSignal.abort(new Error('over')))).rejects.toThrow(
    'over',
  );
});
