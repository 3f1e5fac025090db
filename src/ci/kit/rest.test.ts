import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { failureOf, inTurn, json, page, patient, type Reply, serve } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { systemClock } from '../../system/system-clock.ts';
import { Rest, type RestCall } from './rest.ts';

const secret = 's3cret-of-this-test';
const hints = { credential: 'a credential', denied: 'a right', answer: 'look there' };
const look: Omit<RestCall, 'method'> = { path: '/things', query: { page: '1' }, doing: 'list things' };
const things = z.object({ names: z.string().array() });

async function rest(reply: Reply, more: { clock?: typeof systemClock; timeout?: number; token?: () => string } = {}) {
  const server = await serve(reply);
  const { clock = systemClock, timeout = 20_000, token = () => secret } = more;
  const made = new Rest({
    base: server.url,
    version: '1.2.3',
    clock,
    fetch,
    timeout,
    hints,
    authorization: async () => `token ${token()}`,
  });
  return Object.assign(made, { server, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() });
}

it('sends the credential and its version, and reads what the schema says', async () => {
  await using here = await rest(json({ names: ['a'], more: 1 }));
  expect(await here.read(things, look, patient)).toEqual({ names: ['a'] });
  expect(here.server.seen).toMatchObject([
    { method: 'GET', url: '/things?page=1', headers: { authorization: `token ${secret}`, 'user-agent': 'onejob/1.2.3' } },
  ]);
});

it('signs a call in as somebody else, without the credential', async () => {
  await using here = await rest(json({ names: [] }));
  await here.send(things, { ...look, method: 'POST', body: { a: 1 }, signedBy: { 'x-key': 'other' } }, patient);
  const [seen] = here.server.seen;
  expect(seen?.headers).toMatchObject({ 'x-key': 'other', 'content-type': 'application/json' });
  expect(seen?.headers.authorization).toBeUndefined();
  expect(seen?.body).toBe('{"a":1}');
});

it('sends plain text, with headers of its own', async () => {
  await using here = await rest(json({}));
  const call = { ...look, method: 'PATCH', text: 'a line\n', headers: { 'Content-Range': '0-6' } } as const;
  await here.ask(call, patient);
  const [seen] = here.server.seen;
  expect(seen?.headers).toMatchObject({ 'content-type': 'text/plain', 'content-range': '0-6' });
  expect(seen?.body).toBe('a line\n');
});

it.each([
  ['401', json({ message: 'no' }, 401), 401],
  ['403', json({ message: 'not any more' }, 403), 403],
  ['202 with anything', page(202), 202],
])('answers %s where only the status counts', async (_, reply, status) => {
  await using here = await rest(reply);
  expect(await here.ask({ ...look, method: 'PUT', onlyStatus: true }, patient)).toMatchObject({ status });
});

it('takes no page of a proxy for such an answer', async () => {
  await using here = await rest(page(403));
  const error = await failureOf(here.ask({ ...look, method: 'PUT', onlyStatus: true }, patient));
  expect(error).toMatchObject({ code: 'E_CI_DENIED' });
});

it.each([
  ['401', json({ message: `bad ${secret}` }, 401), 'E_CI_CREDENTIAL', false],
  ['403', json({ message: 'scope missing' }, 403), 'E_CI_DENIED', false],
  ['500', json({ message: 'broken' }, 500), 'E_CI_UNREACHABLE', true],
  ['502 with a page', page(502), 'E_CI_UNREACHABLE', true],
  ['407', page(407), 'E_CI_UNREACHABLE', true],
  ['200 with a page', page(200), 'E_CI_ANSWER', true],
  ['404 with a page', page(404), 'E_CI_ANSWER', true],
  ['a redirect', page(302, '', { Location: 'https://elsewhere.example/' }), 'E_CI_ANSWER', true],
  ['another shape', json({ names: 3 }), 'E_CI_ANSWER', true],
  ['invalid JSON', page(200, '{', { 'Content-Type': 'application/json' }), 'E_CI_ANSWER', true],
  ['422', json({ message: 'no' }, 422), 'E_CI_ANSWER', true],
])('tells what an answer means: %s', async (_, reply, code, retry) => {
  await using here = await rest(reply);
  const error = await failureOf(here.find(things, look, patient));
  expect(error).toMatchObject({
    code,
    retry,
    hint: expect.any(String),
    message: expect.stringMatching(/list things/),
  });
  expect(inspect(error)).not.toContain(secret);
});

it('finds nothing only where the service says so itself', async () => {
  await using here = await rest(json({ message: 'not found' }, 404));
  expect(await here.find(things, look, patient)).toBeNull();
});

it('answers a refusal to a caller that may understand it', async () => {
  await using here = await rest(json({ message: 'exists' }, 409));
  const answered = await here.ask({ ...look, method: 'POST' }, patient);
  expect(answered).toMatchObject({ ok: false, status: 409, why: '409: exists' });
  await using other = await rest(json({ code: 'unknown', message: 'no such runner' }, 500));
  expect(await other.ask({ ...look, method: 'POST', refusesWith500: true }, patient)).toMatchObject({
    ok: false,
    why: '500: no such runner',
  });
});

describe('a refused credential', () => {
  it('is not sent again until it changes', async () => {
    let token = secret;
    await using here = await rest(inTurn(json({}, 401), json({ names: [] })), { token: () => token });
    const error = await failureOf(here.read(things, look, patient));
    expect(await failureOf(here.read(things, look, patient))).toBe(error);
    expect(here.server.seen).toHaveLength(1);
    token = 'another';
    expect(await here.read(things, look, patient)).toEqual({ names: [] });
  });

  it('is sent again after ten minutes', async () => {
    const clock = handClock();
    await using here = await rest(inTurn(json({}, 401), json({ names: [] })), { clock });
    await failureOf(here.read(things, look, patient));
    clock.advance(600_000);
    expect(await here.read(things, look, patient)).toEqual({ names: [] });
  });
});

describe('a service that limits calls', () => {
  it.each([
    ['429', json({}, 429, { 'Retry-After': '0' })],
    ['403 with a Retry-After, as GitHub', json({}, 403, { 'Retry-After': '0' })],
  ])('is asked again: %s', async (_, reply) => {
    await using here = await rest(inTurn(reply, json({ names: [] })));
    expect(await here.read(things, look, patient)).toEqual({ names: [] });
  });

  it('is not asked again by a call that may have been carried out', async () => {
    await using here = await rest(json({}, 503, { 'Retry-After': '0' }));
    const error = await failureOf(here.send(things, { ...look, method: 'POST' }, patient));
    expect(error).toMatchObject({ code: 'E_CI_UNREACHABLE', retry: true });
    expect(here.server.seen).toHaveLength(1);
  });

  it('that wants more time than there is gets no call until then', async () => {
    await using here = await rest(json({ message: 'slow down' }, 429, { 'Retry-After': '60' }), { timeout: 5_000 });
    const error = await failureOf(here.read(things, look, patient));
    expect(error).toMatchObject({ code: 'E_CI_THROTTLED', message: expect.stringContaining('slow down') });
    await failureOf(here.read(things, look, patient));
    expect(here.server.seen).toHaveLength(1);
  });
});

it('gives up a service that is silent', async () => {
  await using here = await rest(() => {}, { timeout: 50 });
  expect(await failureOf(here.read(things, look, patient))).toMatchObject({
    code: 'E_CI_UNREACHABLE',
    message: expect.stringContaining('no answer within 0.05 s'),
  });
});

it('says that nobody listens', async () => {
  const here = await rest(json({}));
  await here[Symbol.asyncDispose]();
  expect(await failureOf(here.read(things, look, patient))).toMatchObject({
    code: 'E_CI_UNREACHABLE',
    message: expect.stringContaining('nothing listens there'),
  });
});
