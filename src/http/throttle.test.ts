import { expect, it } from 'vitest';
import { failureOf, patient, settled } from '../../test/kit/azure.ts';
import { handClock } from '../../test/kit/core.ts';
import { createThrottle } from './throttle.ts';

function make() {
  const clock = handClock();
  const throttle = createThrottle(clock, 'https://dev.azure.com/acme');
  const heard = (status: number, headers: Record<string, string> = {}, why?: string) =>
    throttle.heard({ status, headers: new Headers(headers) }, why);
  /** ms until the next request goes out; null when it goes at once. */
  const wait = async (): Promise<number | null> => {
    const ended = new AbortController();
    let isReady = false;
    const ready = throttle.ready('look', Number.POSITIVE_INFINITY, ended.signal).then(
      () => {
        isReady = true;
      },
      () => {},
    );
    await settled();
    const left = isReady ? null : clock.next();
    ended.abort();
    await ready;
    return left;
  };
  return { clock, throttle, heard, wait };
}
const date = 'Tue, 01 Jan 2030 00:00:00 GMT';

it.each([
  ['nothing was asked', 200, {}, null],
  ['seconds, with a success', 200, { 'Retry-After': '12' }, 12_000],
  ['seconds, with a refusal', 429, { 'Retry-After': '12' }, 12_000],
  ['seconds, by a service that is not well', 503, { 'Retry-After': '5' }, 5_000],
  ['one that is not well without a time', 503, {}, null],
  [
    'a day and time, by the service’s clock',
    429,
    { 'Retry-After': 'Tue, 01 Jan 2030 01:00:20 GMT', Date: 'Tue, 01 Jan 2030 01:00:00 GMT' },
    20_000,
  ],
  ['a refusal without a time', 429, {}, 60_000],
  ['"at once", with a refusal', 429, { 'Retry-After': '0' }, 1_000],
  ['a day', 429, { 'Retry-After': '86400' }, 600_000],
  ['nonsense', 200, { 'Retry-After': 'soon' }, null],
  ['nothing is left until then', 200, { 'X-RateLimit-Remaining': '0', 'X-RateLimit-Reset': '1893456030', Date: date }, 30_000],
  ['something is left', 200, { 'X-RateLimit-Remaining': '7', 'X-RateLimit-Reset': '1893456030', Date: date }, null],
  ['it was then already', 200, { 'X-RateLimit-Remaining': '0', 'X-RateLimit-Reset': '1893455000', Date: date }, null],
] as const)('%s', async (_, status, headers, ms) => {
  const { heard, wait } = make();
  heard(status, headers);
  expect(await wait()).toBe(ms);
});

it('the next request goes when the time is over, and no other had to be told', async () => {
  const { clock, throttle, heard } = make();
  heard(429, { 'Retry-After': '10' });
  const gone: string[] = [];
  const all = ['a', 'b'].map((name) => throttle.ready('look', 30_000, patient).then(() => gone.push(name)));
  clock.advance(9_999);
  await settled();
  expect(gone).toEqual([]);
  clock.advance(1);
  await Promise.all(all);
  expect(gone).toEqual(['a', 'b']);
});

it('a longer wait outweighs a shorter one, and a success ends none', async () => {
  const { heard, wait } = make();
  heard(429, { 'Retry-After': '100' });
  heard(200, { 'Retry-After': '10' });
  heard(200);
  expect(await wait()).toBe(100_000);
});

it('refusals that say "at once" are asked ever more slowly', async () => {
  const { clock, heard, wait } = make();
  const waits: (number | null)[] = [];
  for (let nth = 0; nth < 8; nth += 1) {
    heard(429, { 'Retry-After': '0' });
    waits.push(await wait());
    clock.advance(waits.at(-1) ?? 0);
  }
  expect(waits).toEqual([1, 2, 4, 8, 16, 32, 60, 60].map((seconds) => seconds * 1000));
  heard(200);
  heard(429, { 'Retry-After': '0' });
  expect(await wait()).toBe(1_000);
});

it('what would have to wait longer than it may says until when', async () => {
  const { clock, throttle, heard } = make();
  heard(429, { 'Retry-After': '120' }, 'TF400733: blocked');
  expect(await failureOf(throttle.ready('list the agents of pool 3', 30_000, patient))).toMatchObject({
    code: 'E_CI_THROTTLED',
    retry: true,
    message:
      'Cannot list the agents of pool 3: https://dev.azure.com/acme asked onejob to send no requests until 2030-01-01T00:02:00Z (429, TF400733: blocked).',
  });
  expect(clock.next()).toBeNull();
});

it('who gives up waits no longer, and leaves no timer', async () => {
  const { clock, throttle, heard } = make();
  heard(429, { 'Retry-After': '20' });
  const ended = new AbortController();
  const ready = failureOf(throttle.ready('look', 30_000, ended.signal));
  ended.abort(new Error('enough'));
  expect(await ready).toMatchObject({ message: 'enough' });
  expect(clock.next()).toBeNull();
});
