import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { failureOf, inTurn, json, memory, page, patient, type Reply, type Server, serve } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { createCredential } from './credential.ts';

const secret = 'Q~entra&secret/with=odd+signs';

/** The token of the nth request, which lives for an hour. */
const grants: Reply = (request, response, nth) =>
  json({ token_type: 'Bearer', expires_in: 3600, access_token: `eyJ.token-${nth}.x` })(request, response, nth);
const refuses = (status: number, error: string, words: string) => json({ error, error_description: words }, status);

async function make(reply: Reply, read: () => string = () => secret) {
  const server = await serve(reply);
  const clock = handClock();
  const config = { kind: 'principal', tenant: 'my tenant', client: 'app-1', secret: memory(read), authority: server.url } as const;
  const credential = createCredential(config, { clock, url: 'https://dev.azure.com/acme' });
  return {
    clock,
    credential,
    server,
    header: () => credential.header(patient),
    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  };
}
const asked = (server: Server) => server.seen.length;

it('asks for a token as an application does, once', async () => {
  await using one = await make(grants);
  expect(await one.header()).toBe('Bearer eyJ.token-1.x');
  expect(await one.header()).toBe('Bearer eyJ.token-1.x');
  expect(one.server.seen.map(({ method, url }) => `${method} ${url}`)).toEqual(['POST /my%20tenant/oauth2/v2.0/token']);
  expect(Object.fromEntries(new URLSearchParams(one.server.seen[0]?.body))).toEqual({
    grant_type: 'client_credentials',
    client_id: 'app-1',
    client_secret: secret,
    scope: '499b84ac-1321-427f-aa17-267ca6975798/.default',
  });
});

it('however many ask at once', async () => {
  await using one = await make(grants);
  expect(new Set(await Promise.all(Array.from({ length: 20 }, one.header))).size).toBe(1);
  expect(asked(one.server)).toBe(1);
});

it('one who gives up does not spoil it for the others', async () => {
  const ended = new AbortController();
  await using one = await make((request, response, nth) => {
    ended.abort(new Error('enough'));
    grants(request, response, nth);
  });
  const first = failureOf(one.credential.header(ended.signal));
  expect(await one.header()).toBe('Bearer eyJ.token-1.x');
  expect(await first).toMatchObject({ message: 'enough' });
});

describe('renewal', () => {
  it('five minutes before its end', async () => {
    await using one = await make(grants);
    await one.header();
    one.clock.advance(3_299_999);
    expect(await one.header()).toBe('Bearer eyJ.token-1.x');
    one.clock.advance(1);
    expect(await one.header()).toBe('Bearer eyJ.token-2.x');
  });

  it('a tenth of its life before its end when it is short', async () => {
    await using one = await make(json({ expires_in: '100', access_token: 'short' }));
    await one.header();
    one.clock.advance(89_999);
    await one.header();
    expect(asked(one.server)).toBe(1);
    one.clock.advance(1);
    await one.header();
    expect(asked(one.server)).toBe(2);
  });

  it('an authority that is away does not matter until its end', async () => {
    await using one = await make(inTurn(grants, page(503)));
    await one.header();
    one.clock.advance(3_400_000);
    expect(await one.header()).toBe('Bearer eyJ.token-1.x');
    one.clock.advance(200_000);
    expect(await failureOf(one.header())).toMatchObject({ code: 'E_CI_UNREACHABLE', retry: true });
  });

  it('at once when the secret is another one', async () => {
    let current = secret;
    await using one = await make(grants, () => current);
    await one.header();
    current = 'a new secret';
    expect(await one.header()).toBe('Bearer eyJ.token-2.x');
  });
});

describe('refused by the authority', () => {
  it.each([
    ['a wrong secret', refuses(401, 'invalid_client', 'AADSTS7000215: Invalid client secret provided.')],
    ['an unknown application', refuses(400, 'unauthorized_client', 'AADSTS700016: Application not found.')],
    ['an unknown tenant', refuses(400, 'invalid_request', "AADSTS90002: Tenant 'my tenant' not found.")],
    ['without a word', page(401, '')],
  ])('%s: not asked again for ten minutes', async (_, reply) => {
    await using one = await make(reply);
    expect(await failureOf(one.header())).toMatchObject({
      code: 'E_CI_CREDENTIAL',
      retry: false,
      message: expect.stringContaining('the Entra application app-1 of tenant my tenant'),
      hint: expect.stringContaining('new secret'),
    });
    one.clock.advance(599_999);
    await failureOf(one.header());
    expect(asked(one.server)).toBe(1);
    one.clock.advance(1);
    await failureOf(one.header());
    expect(asked(one.server)).toBe(2);
  });

  it.each([
    ['E_CI_UNREACHABLE', page(500)],
    ['E_CI_UNREACHABLE', refuses(400, 'temporarily_unavailable', 'busy')],
    ['E_CI_UNREACHABLE', ((_, response) => response.destroy()) as Reply],
    ['E_CI_THROTTLED', json({}, 429, { 'Retry-After': '100' })],
    ['E_CI_ANSWER', page(200)],
    ['E_CI_ANSWER', json({ access_token: 'two\nlines', expires_in: 5 })],
    ['E_CI_ANSWER', ((_, response) => response.writeHead(302, { Location: 'http://127.0.0.1:1/' }).end()) as Reply],
  ])('%s: it may pass', async (code, reply) => {
    await using one = await make(reply);
    expect(await failureOf(one.header())).toMatchObject({ code, retry: true });
  });
});

describe('refused by Azure DevOps', () => {
  it('an old token: a new one may help', async () => {
    await using one = await make(grants);
    await one.header();
    one.clock.advance(600_000);
    expect(one.credential.rejected('401')).toMatchObject({ code: 'E_CI_CREDENTIAL', retry: true });
    expect(await one.header()).toBe('Bearer eyJ.token-2.x');
    const error = one.credential.rejected('401');
    expect(error).toMatchObject({ retry: false, hint: expect.stringContaining('users of the organisation') });
    expect(await failureOf(one.header())).toBe(error);
    expect(asked(one.server)).toBe(2);
  });
});

it('a late refusal of an old token leaves the new one alone', async () => {
  await using one = await make(grants);
  const old = await one.header();
  one.clock.advance(3_400_000);
  const current = await one.header();
  expect(one.credential.rejected('401', old)).toMatchObject({ retry: true });
  expect(await one.header()).toBe(current);
});

it('no error shows secret or token, even when the authority repeats them', async () => {
  const repeats: Reply = (request, response, nth) =>
    refuses(401, 'invalid_client', `got ${request.body} and ${secret}`)(request, response, nth);
  await using refused = await make(repeats);
  await using cut = await make((_, response) => response.destroy());
  await using taken = await make(grants);
  const token = (await taken.header()).replace('Bearer ', '');
  const errors = [await failureOf(refused.header()), await failureOf(cut.header()), taken.credential.rejected(`401: ${token}`)];
  const text = inspect([errors, taken.credential], { depth: 10 });
  const hidden = [secret, encodeURIComponent(secret), new URLSearchParams({ secret }).toString().slice(7), token];
  for (const one of hidden) expect(text).not.toContain(one);
  expect(taken.credential.redact()).toEqual(expect.arrayContaining([secret, token]));
});
