/** Repeated calls, and answers that did not change. */
import { expect, it } from 'vitest';
import { z } from 'zod';
import { handClock } from '../../../test/kit/core.ts';
import { Rest } from './rest.ts';

const never = new AbortController().signal;
const hints = { credential: '', denied: '', answer: '' };

it('an answer that did not change is still known when many others arrive meanwhile', async () => {
  let release = (): void => {};
  const fetchHere: typeof fetch = async (input, init) => {
    const tag = new Headers(init?.headers).get('If-None-Match');
    if (tag !== null) {
      await new Promise<void>((resolve) => (release = resolve));
      return new Response(null, { status: 304 });
    }
    return Response.json([1], { headers: { ETag: `"${String(input)}"` } });
  };
  const rest = new Rest({
    base: 'https://x.test',
    clock: handClock(),
    fetch: fetchHere,
    version: '0',
    authorization: async () => 'Bearer x',
    hints,
  });
  const read = (path: string) => rest.read(z.array(z.int()), { path, doing: 'list', isRepeated: true }, never);
  await read('/old');
  const again = read('/old');
  await new Promise((resolve) => setTimeout(resolve, 20));
  for (let n = 0; n < 64; n++) await read(`/new-${n}`);
  release();
  expect(await again).toEqual([1]);
});

it('an answer that is asked for all the time is not the first to be forgotten', async () => {
  let full = 0;
  const fetchHere: typeof fetch = async (input, init) => {
    const tag = new Headers(init?.headers).get('If-None-Match');
    if (tag !== null) return new Response(null, { status: 304 });
    if (String(input).endsWith('/runners')) full += 1;
    return Response.json([1], { headers: { ETag: '"x"' } });
  };
  const rest = new Rest({
    base: 'https://x.test',
    clock: handClock(),
    fetch: fetchHere,
    version: '0',
    authorization: async () => 'Bearer x',
    hints,
  });
  const read = (path: string) => rest.read(z.array(z.int()), { path, doing: 'list', isRepeated: true }, never);
  for (let n = 0; n < 200; n++) {
    await read('/runners');
    await read(`/run-${n}`);
  }
  expect(full).toBe(1);
});
