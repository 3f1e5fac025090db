/** From the credential to the verdict; what each route sends and understands is in `client.test.ts`. */

import { describe, expect, it } from 'vitest';
import {
  failureOf,
  inTurn,
  json,
  list,
  memory,
  page,
  patient,
  type Reply,
  refusalOf,
  sampleAgent,
  serve,
  serveClient,
  settled,
} from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { AzureClient } from './client.ts';
import { createCredential } from './credential.ts';

const rejected = page(203, '<title>Sign In</title>');

describe('a credential that is refused', () => {
  it('for one thing only: then it is a right that is missing', async () => {
    const readOnly: Reply = (request, response, nth) => (request.method === 'GET' ? list() : rejected)(request, response, nth);
    await using one = await serveClient(readOnly);
    expect(await failureOf(one.client.addAgent(3, sampleAgent, patient))).toMatchObject({
      code: 'E_CI_DENIED',
      hint: expect.stringContaining('Agent Pools (Read & manage)'),
    });
    expect(await one.client.agents(3, {}, patient)).toEqual([]);
  });

  it('for builds only, which stops nothing else', async () => {
    const noBuilds: Reply = (request, response, nth) =>
      (request.url.includes('/build/') ? page(401) : list())(request, response, nth);
    await using one = await serveClient(noBuilds);
    expect(await failureOf(one.client.build('p q', 5, patient))).toMatchObject({
      code: 'E_CI_DENIED',
      hint: 'Give the token the scope "Build (Read)", too.',
    });
    expect(one.sent()[0]).toBe('GET /acme/p%20q/_apis/build/builds/5');
    expect(await one.client.agents(3, {}, patient)).toEqual([]);
  });

  it('where nobody can say whether it is the right or the credential, nothing is held back', async () => {
    await using one = await serveClient(inTurn(rejected, page(502), list()));
    expect(await failureOf(one.client.addAgent(3, sampleAgent, patient))).toMatchObject({ code: 'E_CI_UNREACHABLE' });
    expect(await one.client.agents(3, {}, patient)).toEqual([]);
    await using busy = await serveClient(inTurn(rejected, json({}, 429, { 'Retry-After': '99' })));
    expect(await failureOf(busy.client.addAgent(3, sampleAgent, patient))).toMatchObject({ code: 'E_CI_THROTTLED' });
  });
});

describe('an older Server', () => {
  const tooNew = refusalOf(
    'VssVersionOutOfRangeException',
    'The requested REST API version of 7.1 is out of range for this server. The latest REST API version this server supports is 6.0.',
  );
  const versions = (one: { server: { seen: readonly { headers: { accept?: string | undefined } }[] } }) =>
    one.server.seen.map(({ headers }) => headers.accept?.split('=')[1]);

  it('is asked for what it knows, also later', async () => {
    await using one = await serveClient(inTurn(json(tooNew, 400), list()));
    await one.client.pools(patient);
    await one.client.requests(3, { unfinished: true }, patient);
    expect(versions(one)).toEqual(['7.1', '6.0', '6.0-preview']);
  });

  it('by several at once', async () => {
    await using one = await serveClient((request, response, nth) =>
      (request.headers.accept?.endsWith('=7.1') ? json(tooNew, 400) : list())(request, response, nth),
    );
    const { client } = one;
    expect(await Promise.all([client.pools(patient), client.agents(3, {}, patient), client.pools(patient)])).toEqual([[], [], []]);
  });

  it('with routes that are still previews', async () => {
    const preview = refusalOf('VssInvalidPreviewVersionException', 'The requested version "7.1" of the resource is under preview.');
    await using one = await serveClient(inTurn(json(preview, 400), list()));
    await one.client.pools(patient);
    await one.client.pools(patient);
    expect(versions(one)).toEqual(['7.1', '7.1-preview', '7.1-preview']);
  });

  it('that knows none of them is not asked forever', async () => {
    await using one = await serveClient(json(tooNew, 400));
    expect(await failureOf(one.client.pools(patient))).toMatchObject({
      code: 'E_CI_ANSWER',
      hint: expect.stringContaining('2020'),
    });
    expect(one.server.seen.length).toBe(2);
  });
});

describe('a service that asks for rest', () => {
  it('is asked again when it may be, and nothing else is sent before', async () => {
    const clock = handClock();
    await using one = await serveClient(inTurn(json({}, 429, { 'Retry-After': '5' }), list()), { clock });
    const asked = Promise.all([one.client.pools(patient), one.client.pools(patient).then(() => one.client.pools(patient))]);
    await expect.poll(() => clock.next()).toBe(5_000);
    const before = one.server.seen.length;
    clock.advance(4_999);
    await settled();
    expect(one.server.seen.length).toBe(before);
    clock.advance(1);
    await asked;
  });

  it('for longer than a call may take: says until when, without asking', async () => {
    await using one = await serveClient(json({ message: 'TF400733' }, 429, { 'Retry-After': '300' }));
    for (let nth = 0; nth < 3; nth += 1) {
      expect(await failureOf(one.client.pools(patient))).toMatchObject({
        code: 'E_CI_THROTTLED',
        message: expect.stringContaining('until 2030-01-01T00:05:00Z (429, TF400733)'),
      });
    }
    expect(one.server.seen.length).toBe(1);
  });

  it('with a success: the next one waits', async () => {
    const clock = handClock();
    await using one = await serveClient(inTurn(json({ value: [] }, 200, { 'Retry-After': '7' }), list()), { clock });
    await one.client.pools(patient);
    const next = one.client.pools(patient);
    expect(clock.next()).toBe(7_000);
    clock.advance(7_000);
    await next;
  });

  it('a registration that was perhaps made is not made twice', async () => {
    const unwell = page(503, '', { 'Retry-After': '1' });
    await using one = await serveClient(inTurn(unwell, list()));
    expect(await failureOf(one.client.addAgent(3, sampleAgent, patient))).toMatchObject({ code: 'E_CI_UNREACHABLE', retry: true });
    expect(one.server.seen.length).toBe(1);
  });
});

it('an Entra token that was taken back is replaced, once', async () => {
  let made = 0;
  const isToken = (url: string) => url.endsWith('/token');
  const reply: Reply = (request, response, nth) => {
    if (isToken(request.url)) {
      made += 1;
      json({ access_token: `token-${made}`, expires_in: 3600 })(request, response, nth);
    } else (request.headers.authorization === `Bearer token-${made}` && made !== 1 ? list() : page(401))(request, response, nth);
  };
  await using server = await serve(reply);
  const clock = handClock();
  const url = `${server.url}/acme`;
  const config = { kind: 'principal', tenant: 't', client: 'c', secret: memory('the-secret'), authority: server.url } as const;
  const credential = createCredential(config, { clock, url });
  await credential.header(patient);
  clock.advance(120_000);
  const client = new AzureClient({ url, credential, clock, version: '1' });
  expect(await client.pools(patient)).toEqual([]);
  expect([made, server.seen.filter(({ url: at }) => at.includes('/pools')).length]).toEqual([2, 2]);
});
