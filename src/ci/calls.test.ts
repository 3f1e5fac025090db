import { describe, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { deadline } from '../core/clock.ts';
import { type CallResult, counted } from './calls.ts';

const url = 'https://ci.example/api';

function calls(answer: (signal: AbortSignal | null | undefined) => Promise<Response>) {
  const told: CallResult[] = [];
  const send = counted((async (_: unknown, init?: RequestInit) => answer(init?.signal)) as typeof fetch, (one) => told.push(one));
  return { told, send };
}

test.each<[number, CallResult]>([
  [200, 'ok'],
  [204, 'ok'],
  [302, 'ok'],
  [401, 'denied'],
  [403, 'denied'],
  [404, 'refused'],
  [429, 'throttled'],
  [500, 'failed'],
  [503, 'failed'],
])('an answer with %i is %s, and stays as it is', async (status, result) => {
  const answer = new Response(null, { status });
  const { told, send } = calls(async () => answer);
  expect(await send(url)).toBe(answer);
  expect(told).toEqual([result]);
});

test('no answer is the same error as before', async () => {
  const error = new TypeError('fetch failed');
  const { told, send } = calls(() => Promise.reject(error));
  await expect(send(url)).rejects.toBe(error);
  expect(told).toEqual(['unreachable']);
});

describe('a call that ends early', () => {
  const never = (signal: AbortSignal | null | undefined) =>
    new Promise<Response>((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)));

  test('after its time is unreachable', async () => {
    const clock = handClock();
    using limit = deadline(clock, 1_000);
    const { told, send } = calls(never);
    const ended = expect(send(url, { signal: limit.signal })).rejects.toThrow(/timeout/);
    clock.advance(1_000);
    await ended;
    expect(told).toEqual(['unreachable']);
  });

  test('because its caller gave it up says nothing about the service', async () => {
    const caller = new AbortController();
    using limit = deadline(handClock(), 1_000, caller.signal);
    const { told, send } = calls(never);
    const ended = expect(send(url, { signal: limit.signal })).rejects.toThrow(/closing/);
    caller.abort(new Error('closing'));
    await ended;
    expect(told).toEqual([]);
  });
});
