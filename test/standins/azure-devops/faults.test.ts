import { afterEach, beforeEach, expect, test } from 'vitest';
import { asking, registration } from './asking.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

const POOLS = '_apis/distributedtask/pools';
let azure: AzureDevOps;
let pool: number;
beforeEach(async () => {
  azure = await startAzureDevOps();
  pool = azure.addPool('gpu');
});
afterEach(() => azure[Symbol.asyncDispose]());
const pools = () => asking(azure)('GET', POOLS);
const add = (name = 'one') => asking(azure)('POST', `${POOLS}/${pool}/agents`, registration(name));
const names = () => azure.agents(pool).map((agent) => agent.name);

test.each([
  ['203', 203, 'text/html; charset=utf-8'],
  ['302', 302, 'text/html; charset=utf-8'],
  ['401-json', 401, 'application/json; charset=utf-8; api-version=7.1'],
  ['401-bare', 401, null],
] as const)('a rejected credential looks like %s', async (shape, status, type) => {
  azure.faults.add({ kind: 'rejected', shape });
  const answer = await pools();
  expect([answer.status, answer.headers.get('content-type')]).toEqual([status, type]);
});

test('rights, throttling, pages and nonsense come instead of what was asked, which is not done', async () => {
  const faults = [
    [{ kind: 'denied' }, 403],
    [{ kind: 'throttled', retryAfter: 7 }, 429],
    [{ kind: 'throttled', retryAfter: null, status: 503 }, 503],
    [{ kind: 'broken' }, 500],
    [{ kind: 'garbage' }, 200],
    [{ kind: 'error', status: 418, typeKey: 'TeapotException' }, 418],
  ] as const;
  for (const [fault, status] of faults) {
    azure.faults.add(fault, { times: 1 });
    const answer = await add();
    expect([fault, answer.status]).toEqual([fault, status]);
    expect(answer.headers.get('retry-after')).toBe(fault.kind === 'throttled' && fault.retryAfter !== null ? '7' : null);
  }
  expect(names()).toEqual([]);
});

test('slowing down is announced on an answer that is fine', async () => {
  azure.faults.add({ kind: 'slowed', retryAfter: 3, remaining: 0, reset: 60, delay: 1 });
  const { status, headers } = await add();
  expect(status).toBe(200);
  expect(headers.get('retry-after')).toBe('3');
  expect(headers.get('x-ratelimit-remaining')).toBe('0');
  expect(Number(headers.get('x-ratelimit-reset')) - Date.now() / 1000).toBeGreaterThan(55);
});

test('an answer can be lost when the work is done, or the connection cut before', async () => {
  azure.faults.add({ kind: 'reset' }, { times: 1 });
  await expect(add('cut')).rejects.toThrow('fetch failed');
  azure.faults.add({ kind: 'lost' }, { times: 1 });
  await expect(add('lost')).rejects.toThrow('fetch failed');
  expect(names()).toEqual(['lost']);
  expect((await add('lost')).status).toBe(409);
});

test('an answer can stay away, or stop in the middle', async () => {
  for (const kind of ['hang', 'half'] as const) {
    const remove = azure.faults.add({ kind });
    const limit = AbortSignal.timeout(100);
    const read = fetch(`${azure.url}/${POOLS}`, { headers: { authorization: 'Basic x' }, signal: limit }).then((response) =>
      response.text(),
    );
    await expect(read).rejects.toThrow('aborted due to timeout');
    remove();
  }
});

test('an answer can come late', async () => {
  azure.faults.add({ kind: 'delay', ms: 60 });
  const before = performance.now();
  expect((await pools()).status).toBe(200);
  expect(performance.now() - before).toBeGreaterThan(55);
});

test('a redirect to another host records who followed it, and with what', async () => {
  azure.faults.add({ kind: 'redirect' });
  const location = (await pools()).headers.get('location') ?? '';
  expect(new URL(location).host).not.toBe(new URL(azure.url).host);
  await fetch(location, { headers: { authorization: 'Basic x' } });
  await fetch(location);
  expect(azure.strays.map((stray) => stray.authorization)).toEqual(['Basic x', null]);
});

test('the service can be down, and comes back where it was', async () => {
  await add();
  await azure.faults.down();
  await expect(pools()).rejects.toMatchObject({ cause: { code: 'ECONNREFUSED' } });
  await azure.faults.up();
  expect((await pools()).status).toBe(200);
  expect(names()).toEqual(['one']);
});

test('nothing opens the door again after the end', async () => {
  await azure.faults.down();
  const up = azure.faults.up();
  await azure[Symbol.asyncDispose]();
  await up;
  await azure.faults.up();
  await expect(pools()).rejects.toThrow('fetch failed');
});

test("the Date header follows the service's clock", async () => {
  azure.faults.skew = 3_600_000;
  const date = Date.parse((await pools()).headers.get('date') ?? '');
  expect(date - Date.now()).toBeGreaterThan(3_590_000);
});

test('a rule hits the method, route and identity that it names, so many times, after so many', async () => {
  azure.faults.add({ kind: 'broken' }, { method: 'POST', route: 'agents', identity: 'pat', times: 1, after: 1 });
  expect((await asking(azure)('POST', POOLS, { name: 'other' })).status).toBe(200);
  for (let i = 0; i < 3; i++) expect((await asking(azure)('GET', `${POOLS}/${pool}/agents`)).status).toBe(200);
  expect((await asking(azure, null)('POST', `${POOLS}/${pool}/agents`, {})).status).toBe(401);
  expect([(await add('a')).status, (await add('b')).status, (await add('b')).status]).toEqual([200, 500, 200]);
});

test('everything is well again after clear, and a rule can be taken away alone', async () => {
  const remove = azure.faults.add({ kind: 'broken' }, { route: 'agents' });
  azure.faults.add({ kind: 'broken' }, { route: 'pools' });
  azure.faults.skew = 1_000_000;
  remove();
  expect([(await add()).status, (await pools()).status]).toEqual([200, 500]);
  azure.faults.clear();
  expect((await pools()).status).toBe(200);
  expect(azure.faults.skew).toBe(0);
});
