/** Agents that register themselves from within their sandbox. */
import { describe, expect, it } from 'vitest';
import type { GatewayLimits } from './gateway-limits.ts';
import { bodyOf, gatewayBench, jobId, serviceTokens } from './testing-gateway.ts';

const registered = {
  id: 'x',
  access_token: serviceTokens.session,
  ping_interval: 10,
  heartbeat_interval: 60,
  request_headers: { 'Buildkite-Route': 'a', Authorization: 'no' },
};

async function service(answers: Record<string, readonly [number, unknown]> = {}, limits: Partial<GatewayLimits> = {}) {
  const seen: { readonly line: string; readonly headers: NodeJS.Dict<string | string[]>; readonly body: string }[] = [];
  const bench = await gatewayBench(async (request, response) => {
    const line = `${request.method} ${request.url}`;
    seen.push({ line, headers: request.headers, body: await bodyOf(request) });
    const [status, body] = answers[line] ?? (line === 'POST /v3/register' ? [200, registered] : [200, {}]);
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  }, limits);
  return { ...bench, seen, [Symbol.asyncDispose]: bench[Symbol.asyncDispose] };
}

const job = { id: jobId, token: serviceTokens.job, env: { A: 'b' }, endpoint: 'https://elsewhere' };
const withJob = {
  'GET /v3/ping': [200, { job: { id: jobId, token: serviceTokens.job }, endpoint: '' }],
  [`PUT /v3/jobs/${jobId}/accept`]: [200, job],
  [`PUT /v3/jobs/${jobId}/acquire`]: [200, job],
} as const;

const session = { shown: { phase: 'idle' }, sealed: { session: serviceTokens.session } } as const;

describe('registration', () => {
  it('is forwarded once, with the name, tags and priority of its slot', async () => {
    await using here = await service();
    here.carried('a');
    const body = { name: 'evil', meta_data: ['queue=other'], priority: '99', hostname: 'sandbox', features: ['x'] };
    const once = here.token('once', 'a');
    const [first, second] = await Promise.all([0, 1].map(() => here.call('POST', '/v3/register', once, body)));
    expect(first?.json).toMatchObject({ access_token: here.token('session', 'a'), ping_interval: 10 });
    expect(second?.json).toEqual(first?.json);
    expect(here.seen.length).toBe(1);
    expect(here.seen[0]?.headers.authorization).toBe(`Token ${serviceTokens.registration}`);
    expect(JSON.parse(here.seen[0]?.body ?? '')).toEqual({
      ...body,
      name: 'gpu0',
      meta_data: ['queue=gpu', 'cuda'],
      priority: '3',
    });
    expect(here.book.get('a')).toMatchObject({ shown: { phase: 'registered' }, requestHeaders: { 'Buildkite-Route': 'a' } });

    await here.call('POST', '/v3/connect', here.token('session', 'a'));
    expect(here.book.get('a')?.shown.phase).toBe('idle');
    expect(here.seen[1]?.headers).toMatchObject({ authorization: `Token ${serviceTokens.session}`, 'buildkite-route': 'a' });
    expect((await here.call('POST', '/v3/register', once, body)).status).toBe(401);
  });

  it('with a token for one job takes that one only', async () => {
    await using here = await service(withJob);
    here.carried('a', { sealed: { acquisition: { job: jobId, token: 'bkjat_x' } }, allowed: true });
    await here.call('POST', '/v3/register', here.token('once', 'a'), {});
    expect(here.seen[0]?.headers.authorization).toBe('Token bkjat_x');
    await here.call('POST', '/v3/connect', here.token('session', 'a'));
    expect((await here.call('PUT', '/v3/jobs/other/acquire', here.token('session', 'a'))).status).toBe(422);
    expect((await here.call('PUT', `/v3/jobs/${jobId}/acquire`, here.token('session', 'a'))).status).toBe(200);
  });

  it('that is refused says why, without the token', async () => {
    const message = `token ${serviceTokens.registration} is revoked`;
    await using here = await service({ 'POST /v3/register': [401, { message }] });
    here.carried('a');
    const refused = await here.call('POST', '/v3/register', here.token('once', 'a'), {});
    expect(refused).toMatchObject({ status: 401, json: { message: 'token [token] is revoked' } });
    expect(here.book.get('a')?.shown).toMatchObject({ phase: 'expected', problem: expect.stringContaining('401') });
  });

  it('of an agent that is over meanwhile leaves nobody at the service', async () => {
    const { promise: asked, resolve } = Promise.withResolvers<void>();
    const { promise: go, resolve: answer } = Promise.withResolvers<void>();
    const { promise: left, resolve: leave } = Promise.withResolvers<string | undefined>();
    await using here = await gatewayBench(async (request, response) => {
      if (request.url === '/v3/disconnect') leave(request.headers.authorization);
      resolve();
      await go;
      response.end(JSON.stringify(registered));
    });
    here.carried('a');
    const call = here.call('POST', '/v3/register', here.token('once', 'a'), {});
    await asked;
    here.book.update('a', { shown: { phase: 'gone' } });
    answer();
    expect((await call).status).toBe(401);
    expect(await left).toBe(`Token ${serviceTokens.session}`);
  });
});

describe('a job', () => {
  it('is the agent’s only once the manager has allowed it', async () => {
    await using here = await service(withJob);
    here.carried('a', session);
    const alias = here.token('session', 'a');
    expect((await here.call('GET', '/v3/ping', alias)).json).toEqual({ job: { id: jobId } });
    expect(here.book.get('a')?.shown.job).toBeNull();

    const accept = here.call('PUT', `/v3/jobs/${jobId}/accept`, alias);
    await expect.poll(() => here.book.get('a')?.shown.phase).toBe('accepted');
    const shown = here.book.get('a')?.shown.job;
    expect(shown).toMatchObject({ id: jobId, env: { A: 'b' } });
    expect(JSON.stringify(shown)).not.toContain(serviceTokens.job);
    here.book.update('a', { allowed: true, sealed: { secrets: [{ name: 'S', value: 'v' }] } });
    expect((await accept).json).toMatchObject({
      token: here.token('job', 'a'),
      step: { secrets: [{ key: 'onejob:S', environment_variable: 'S' }] },
    });
    await here.call('PUT', `/v3/jobs/${jobId}/start`, here.token('job', 'a'), {});
    expect(here.book.get('a')?.shown.phase).toBe('running');
    expect(here.seen.filter(({ line }) => line.includes('accept')).length).toBe(1);
  });

  it('that is refused is dropped by the agent', async () => {
    await using here = await service(withJob);
    here.carried('a', session);
    const accept = here.call('PUT', `/v3/jobs/${jobId}/accept`, here.token('session', 'a'));
    await expect.poll(() => here.book.get('a')?.shown.phase).toBe('accepted');
    here.book.update('a', { shown: { phase: 'ending' } });
    expect((await accept).status).toBe(422);
    expect((await here.call('GET', '/v3/ping', here.token('session', 'a'))).json).toEqual({ action: 'disconnect' });
  });

  it('that is not decided about is asked for again: an acquire by its status, an accept by its lost connection', async () => {
    await using here = await service(withJob, { decisionMs: 20 });
    here.carried('a', session);
    const alias = here.token('session', 'a');
    expect((await here.call('PUT', `/v3/jobs/${jobId}/acquire`, alias)).status).toBe(503);
    await expect(here.call('PUT', `/v3/jobs/${jobId}/accept`, alias)).rejects.toThrow();
    here.book.update('a', { allowed: true });
    expect((await here.call('PUT', `/v3/jobs/${jobId}/accept`, alias)).status).toBe(200);
    expect(here.seen.length).toBe(1);
  });

  it('that the service gave to another leaves the agent idle', async () => {
    await using here = await service({ [`PUT /v3/jobs/${jobId}/accept`]: [422, { message: 'taken' }] });
    here.carried('a', session);
    expect((await here.call('PUT', `/v3/jobs/${jobId}/accept`, here.token('session', 'a'))).status).toBe(422);
    expect(here.book.get('a')?.shown).toMatchObject({ phase: 'idle', job: null });
    expect((await here.call('POST', '/v3/disconnect', here.token('session', 'a'))).status).toBe(200);
    expect(here.book.get('a')).toBeNull();
  });
});

it('an accept that nobody answered may be tried again, and leaves no job with an agent that goes instead', async () => {
  let calls = 0;
  await using here = await gatewayBench(async (request, response) => {
    await bodyOf(request);
    if (++calls === 1) response.destroy();
    else response.end(JSON.stringify(job));
  });
  here.carried('a', { ...session, allowed: true });
  const accept = () => here.call('PUT', `/v3/jobs/${jobId}/accept`, here.token('session', 'a'));
  await expect(accept()).rejects.toThrow();
  expect(here.book.get('a')?.shown).toMatchObject({ phase: 'idle', job: { id: jobId } });
  expect(await accept()).toMatchObject({ status: 200, json: { id: jobId } });
});

describe('an agent that is retired', () => {
  it('is told to leave, and its next job is refused before the service hears of it', async () => {
    await using here = await service(withJob);
    here.carried('a', { ...session, retired: true, allowed: true });
    const alias = here.token('session', 'a');
    expect((await here.call('GET', '/v3/ping', alias)).json).toEqual({ action: 'disconnect' });
    expect((await here.call('PUT', `/v3/jobs/${jobId}/accept`, alias)).status).toBe(422);
    expect(here.seen).toEqual([]);
    expect((await here.call('POST', '/v3/disconnect', alias)).status).toBe(200);
    expect(here.seen.map(({ line }) => line)).toEqual(['POST /v3/disconnect']);
  });

  it('may ask again for the job that may be its own, and for that one only', async () => {
    await using here = await service(withJob);
    const asked = { phase: 'idle', job: { id: jobId, env: {} } } as const;
    here.carried('a', { ...session, shown: asked, retired: true, allowed: true });
    const alias = here.token('session', 'a');
    expect((await here.call('PUT', '/v3/jobs/other/accept', alias)).status).toBe(422);
    expect((await here.call('PUT', `/v3/jobs/${jobId}/accept`, alias)).status).toBe(200);
    expect(here.book.get('a')?.shown).toMatchObject({ phase: 'accepted', job: { id: jobId } });
  });

  it('that asks for a job asks for no other any more', async () => {
    await using here = await service(withJob);
    for (const phase of ['idle', 'accepting'] as const) {
      here.carried('a', { ...session, shown: { phase, job: { id: jobId, env: {} } }, retired: true });
      expect((await here.call('GET', '/v3/ping', here.token('session', 'a'))).json).toEqual({ action: 'disconnect' });
      expect(here.book.get('a')?.shown).toMatchObject({ phase: 'idle', job: null });
    }
  });
});

it('moves with the service to another endpoint, once that answers', async () => {
  await using there = await service({ 'GET /v3/ping': [200, { action: 'idle' }] });
  const moved = { endpoint: there.service, request_headers: { 'Buildkite-Zone': 'b' } };
  await using here = await service({ 'GET /v3/ping': [200, moved] });
  here.carried('a', session);
  expect((await here.call('GET', '/v3/ping', here.token('session', 'a'))).json).toEqual({ action: 'idle' });
  expect(here.book.get('a')?.endpoint).toBe(there.service);
});
