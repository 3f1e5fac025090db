import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, expect, it } from 'vitest';
import { OnejobError } from '../../../errors.ts';
import { bodyOf, gatewayBench, jobId, serviceTokens } from './testing-gateway.ts';

interface Seen {
  readonly method: string;
  readonly url: string;
  readonly token: string | undefined;
  readonly body: string;
}

/** A service that says yes to everything, and what it was asked. */
async function agreeing(answers: Record<string, unknown> = {}) {
  const seen: Seen[] = [];
  const bench = await gatewayBench(async (request, response) => {
    const { method = '', url = '' } = request;
    seen.push({ method, url, token: request.headers.authorization, body: await bodyOf(request) });
    response.setHeader('content-type', 'application/json').end(JSON.stringify(answers[`${method} ${url}`] ?? {}));
  });
  return { ...bench, seen, [Symbol.asyncDispose]: bench[Symbol.asyncDispose] };
}

describe('a held agent', () => {
  it('goes through its life: stored answers until start, then the service', async () => {
    await using here = await agreeing();
    here.held('a', { sealed: { secrets: [{ name: 'DEPLOY_KEY', value: 'hunter2!' }] } });
    const once = here.token('once', 'a');

    const first = await here.call('POST', '/v3/register', once, { name: 'evil', meta_data: ['queue=other'] });
    const again = await here.call('POST', '/v3/register', once, {});
    expect(first.status).toBe(200);
    expect(again.json).toEqual(first.json);
    expect(first.json).toMatchObject({ name: 'gpu0', ping_interval: 1, job_status_interval: 1, heartbeat_interval: 60 });
    expect(first.json).not.toHaveProperty('endpoint');
    const session = here.token('session', 'a');
    expect(first.json).toHaveProperty('access_token', session);

    expect((await here.call('GET', '/v3/ping', session)).status).toBe(403);
    expect(await here.call('POST', '/v3/connect', session)).toMatchObject({ status: 200, json: {} });
    expect(here.book.get('a')?.shown.phase).toBe('connected');
    expect((await here.call('POST', '/v3/register', once, {})).status).toBe(401);
    expect((await here.call('GET', '/v3/ping', session)).json).toEqual({ job: { id: jobId } });

    const accepted = await here.call('PUT', `/v3/jobs/${jobId}/accept`, session);
    const acquired = await here.call('PUT', `/v3/jobs/${jobId}/acquire`, session);
    expect(acquired.json).toEqual(accepted.json);
    const job = here.token('job', 'a');
    expect(accepted.json).toMatchObject({
      id: jobId,
      token: job,
      unknown: { kept: [1] },
      step: { secrets: [{ key: 'onejob:DEPLOY_KEY', environment_variable: 'DEPLOY_KEY' }] },
    });
    expect(accepted.json).not.toHaveProperty('endpoint');
    expect(accepted.text).not.toContain('hunter2');
    expect(here.seen).toEqual([]);

    await here.call('PUT', `/v3/jobs/${jobId}/start`, job, { started_at: 'now' });
    expect(here.book.get('a')?.shown.phase).toBe('running');
    expect((await here.call('PUT', `/v3/jobs/${jobId}/accept`, session)).status).toBe(422);
    await here.call('PUT', `/v3/jobs/${jobId}/start`, job, { started_at: 'again' });
    const secret = await here.call('GET', `/v3/jobs/${jobId}/secrets?key=onejob%3ADEPLOY_KEY`, job);
    expect(secret.json).toMatchObject({ key: 'onejob:DEPLOY_KEY', value: 'hunter2!' });
    await here.call('POST', `/v3/jobs/${jobId}/chunks?sequence=2&offset=10&size=5`, job, 'late');
    await here.call('POST', `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=10`, job, 'early');
    expect(here.book.get('a')?.log).toEqual({ sequence: 2, offset: 15 });
    await here.call('POST', '/v3/heartbeat', session, { sent_at: 'now' });
    expect(here.book.get('a')?.livesAlone).toBe(true);

    const body = { exit_status: '7', signal: '', signal_reason: '', chunks_failed_count: 0 };
    await here.call('PUT', `/v3/jobs/${jobId}/finish`, job, body);
    expect(here.book.get('a')?.shown).toMatchObject({
      phase: 'finished',
      finished: { exitStatus: '7', signal: null, signalReason: null },
    });
    expect(here.seen.map(({ method, url, token }) => `${method} ${url} ${token}`)).toEqual([
      `PUT /v3/jobs/${jobId}/start Token ${serviceTokens.job}`,
      `POST /v3/jobs/${jobId}/chunks?sequence=2&offset=10&size=5 Token ${serviceTokens.job}`,
      `POST /v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=10 Token ${serviceTokens.job}`,
      `POST /v3/heartbeat Token ${serviceTokens.session}`,
      `PUT /v3/jobs/${jobId}/finish Token ${serviceTokens.job}`,
    ]);
    expect(JSON.parse(here.seen.at(-1)?.body ?? '')).toEqual({ ...body, ignore_agent_in_dispatches: true });

    expect((await here.call('PUT', `/v3/jobs/${jobId}/finish`, job, body)).status).toBe(200);
    expect((await here.call('GET', `/v3/jobs/${jobId}/secrets?key=onejob%3ADEPLOY_KEY`, job)).status).toBe(401);
    expect((await here.call('GET', '/v3/ping', session)).json).toEqual({ action: 'disconnect' });
    expect((await here.call('POST', '/v3/disconnect', session)).status).toBe(200);
    expect(here.book.get('a')).toBeNull();
    expect((await here.call('POST', '/v3/disconnect', session)).status).toBe(401);
  });
});

describe('a held agent that goes another way', () => {
  it('hears no token of the service, wherever that writes it', async () => {
    await using here = await agreeing();
    const { session, job } = serviceTokens;
    const registerAnswer = { id: 'x', access_token: session, later: { resume: [`Token ${session}`] } };
    const env = { BUILDKITE_AGENT_ACCESS_TOKEN: 'bkaa_other', A: `x-${job}` };
    here.held('a', { sealed: { registerAnswer, jobAnswer: { id: jobId, token: job, env } } });
    const registered = await here.call('POST', '/v3/register', here.token('once', 'a'), {});
    expect(registered.json).toMatchObject({ access_token: here.token('session', 'a'), later: { resume: ['Token [token]'] } });
    here.book.update('a', { shown: { phase: 'connected' } });
    const accepted = await here.call('PUT', `/v3/jobs/${jobId}/accept`, here.token('session', 'a'));
    expect(accepted.json).toMatchObject({ token: here.token('job', 'a'), env: { A: 'x-[token]' } });
    expect(accepted.text).not.toContain('bkaa_other');
  });

  it('is not given a job again that the service did not let it start', async () => {
    await using here = await gatewayBench((_, response) => response.writeHead(422).end('{"message":"canceled"}'));
    here.held('a', { shown: { phase: 'connected' } });
    const refused = await here.call('PUT', `/v3/jobs/${jobId}/start`, here.token('job', 'a'), {});
    expect(refused).toMatchObject({ status: 422, json: { message: 'canceled' } });
    expect((await here.call('GET', '/v3/ping', here.token('session', 'a'))).json).toEqual({ action: 'disconnect' });
    expect(here.book.get('a')?.shown.problem).toContain('422');
  });

  it('leaves its unfinished job to the manager, who has more to say about it', async () => {
    await using here = await agreeing();
    here.held('a', { shown: { phase: 'running' }, livesAlone: true });
    expect((await here.call('POST', '/v3/disconnect', here.token('session', 'a'))).status).toBe(200);
    expect(here.seen).toEqual([]);
    expect(here.book.get('a')).toMatchObject({ shown: { phase: 'running' }, livesAlone: false });
  });

  it('hears that its job is to end', async () => {
    await using here = await agreeing({ [`GET /v3/jobs/${jobId}`]: { state: 'canceling' } });
    here.held('a', { shown: { phase: 'running' } });
    expect((await here.call('GET', `/v3/jobs/${jobId}`, here.token('job', 'a'))).json).toEqual({ state: 'canceling' });
    expect(here.book.get('a')?.shown.cancelled).toBe(true);
  });

  it('whose result went under way may have said it twice', async () => {
    let calls = 0;
    await using here = await gatewayBench((request, response) => {
      request.resume();
      if (++calls === 1) response.destroy();
      else response.writeHead(422).end('{}');
    });
    here.held('a', { shown: { phase: 'running' } });
    const finish = () => here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job', 'a'), { exit_status: '0' });
    expect((await finish()).status).toBe(502);
    expect(here.book.get('a')?.shown.phase).toBe('running');
    expect((await finish()).status).toBe(200);
    expect(here.book.get('a')?.shown).toMatchObject({ phase: 'finished', finished: { exitStatus: '0' } });
  });

  it('calls with its session where the service gave the job no token', async () => {
    await using here = await agreeing();
    here.held('a', { shown: { phase: 'connected' }, sealed: { jobToken: null } });
    const session = here.token('session', 'a');
    expect((await here.call('PUT', `/v3/jobs/${jobId}/acquire`, session)).json).not.toHaveProperty('token');
    await here.call('PUT', `/v3/jobs/${jobId}/start`, session, {});
    expect(here.seen.at(-1)?.token).toBe(`Token ${serviceTokens.session}`);
  });
});

describe('a job that takes what is in its environment and tries', () => {
  const other = '01935a4b-0000-4000-8000-00000000beef';

  it('nothing of another job, nor of its agent, nor of the cluster', async () => {
    await using here = await agreeing();
    here.held('a', { shown: { phase: 'running' } });
    const job = here.token('job', 'a');
    const tried: readonly (readonly [string, string, number])[] = [
      ['POST', '/v3/register', 401],
      ['POST', '/v3/connect', 403],
      ['GET', '/v3/ping', 403],
      ['POST', '/v3/disconnect', 403],
      ['POST', '/v3/stop', 403],
      ['POST', '/v3/pause', 403],
      ['GET', '/v3/metrics', 403],
      ['GET', '/v3/token', 403],
      ['POST', '/v3/stacks/x/deregister', 403],
      ['PUT', `/v3/jobs/${jobId}/accept`, 403],
      ['PUT', `/v3/jobs/${other}/acquire`, 403],
      ['PUT', `/v3/jobs/${other}/start`, 403],
      ['PUT', `/v3/jobs/${other}/finish`, 403],
      ['POST', `/v3/jobs/${other}/chunks?sequence=1&offset=0&size=1`, 403],
      ['GET', `/v3/jobs/${other}/secrets?key=A`, 403],
      ['POST', `/v3/jobs/${other}/oidc/tokens`, 403],
      ['GET', `/v3/jobs/${other}`, 403],
      ['GET', `/v3/jobs/${jobId}/secrets?key=onejob%3AOTHER`, 404],
      ['GET', `/v3/jobs/${jobId}/secrets?key=onejob%3AOTHER&key=A`, 404],
      ['PUT', `/v3/jobs/${jobId}/finish.json`, 404],
      ['POST', `/v3/jobs/${jobId}/finish`, 404],
    ];
    for (const [method, path, status] of tried) expect([path, (await here.call(method, path, job)).status]).toEqual([path, status]);
    expect(here.seen).toEqual([]);
    expect(here.log.filter((line) => line.includes('refused')).length).toBeGreaterThan(3);

    for (const path of [`/v3/jobs/${other}/data/get`, '/v3/builds/b/artifacts/search', '/v3/steps/s/export']) {
      expect((await here.call('POST', path, job, {})).status).toBe(200);
    }
    expect(new Set(here.seen.map(({ token }) => token))).toEqual(new Set([`Token ${serviceTokens.job}`]));
  });

  it('nor with a token that is none, of another installation, or of an agent that is over', async () => {
    await using here = await agreeing();
    here.held('a', { shown: { phase: 'running' } });
    const dead = here.token('job', 'a');
    const session = here.token('session', 'a');
    here.book.update('a', { shown: { phase: 'gone' } });
    for (const token of [null, 'x', dead, session, serviceTokens.session, `${dead}x`, 'a b']) {
      expect((await here.call('GET', '/v3/ping', token)).status).toBe(401);
    }
    expect((await here.call('POST', '/agentedge.v1.AgentEdgeService/StreamPings', null)).status).toBe(404);
    expect(here.seen).toEqual([]);
  });

  it('no more calls at a time than it may', async () => {
    const { promise: held, resolve } = Promise.withResolvers<void>();
    await using here = await gatewayBench(
      async (_, response) => {
        await held;
        response.end('{}');
      },
      { concurrent: 3 },
    );
    here.held('a', { shown: { phase: 'running' } });
    const job = here.token('job', 'a');
    const calls = Array.from({ length: 5 }, () => here.call('POST', '/v3/steps/s/export', job, {}));
    const first = await Promise.race(calls);
    expect(first).toMatchObject({ status: 429, json: { message: expect.any(String) } });
    resolve();
    expect((await Promise.all(calls)).map(({ status }) => status).sort()).toEqual([200, 200, 200, 429, 429]);
  });
});

it('closing does not wait for a body that does not end', async () => {
  await using here = await agreeing();
  here.held('a', { shown: { phase: 'running' } });
  const head = `PUT /v3/jobs/${jobId}/finish HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${here.token('job', 'a')}\r\n`;
  const socket = connect({ port: here.port, host: '127.0.0.1' }).on('error', () => {});
  socket.write(`${head}Expect: 100-continue\r\nContent-Length: 10\r\n\r\n`);
  await once(socket, 'data');
  await here.gateway.close();
  socket.destroy();
});

describe('artifacts', () => {
  it('go through the gateway to where the service said, and end with the job', async () => {
    const got: { readonly line: string; readonly authorization: string | undefined; readonly body: string }[] = [];
    await using here = await gatewayBench(async (request, response) => {
      const body = await bodyOf(request);
      if (request.url?.startsWith('/v3/')) {
        const url = `http://${request.headers.host}/bucket?X-Signature=abc`;
        response.end(JSON.stringify({ id: 'b', upload_instructions: { action: { url, path: '/bucket/key', method: 'POST' } } }));
        return;
      }
      got.push({ line: `${request.method} ${request.url}`, authorization: request.headers.authorization, body });
      response.writeHead(201, { etag: '"abc"', 'set-cookie': 'a=b' }).end('<done/>');
    });
    here.held('a', { shown: { phase: 'running' } });
    here.held('b', { shown: { phase: 'running' } });
    const created = await here.call('POST', `/v3/jobs/${jobId}/artifacts`, here.token('job', 'a'), { artifacts: [] });
    const { path, url } = (created.json as { upload_instructions: { action: { path: string; url: string } } }).upload_instructions
      .action;
    expect(url).toBe(`${here.url}${path}`);

    const sent = await here.call('POST', path, 'not of the bucket', 'bytes');
    expect(sent).toMatchObject({ status: 201, text: '<done/>' });
    expect(sent.headers.get('etag')).toBe('"abc"');
    expect(sent.headers.get('set-cookie')).toBeNull();
    expect(got).toEqual([{ line: 'POST /bucket/key?X-Signature=abc', authorization: undefined, body: 'bytes' }]);

    expect((await here.call('GET', path, null)).status).toBe(404);
    expect((await here.call('POST', `${path}A`, null, 'x')).status).toBe(404);
    here.book.update('a', { shown: { phase: 'finished' } });
    expect((await here.call('POST', path, null, 'x')).status).toBe(403);
    here.book.update('a', { shown: { phase: 'gone' } });
    expect((await here.call('POST', path, null, 'x')).status).toBe(404);
    expect(got.length).toBe(1);
  });
});

it('what cannot be written down is not done, and may be tried again', async () => {
  await using here = await agreeing();
  here.held('a');
  const session = here.token('session', 'a');
  const { update } = here.book;
  here.book.update = () => {
    throw new OnejobError('E_STATE_FULL', 'The disk is full.', { retry: true });
  };
  expect(await here.call('POST', '/v3/connect', session)).toMatchObject({ status: 503, json: { message: expect.any(String) } });
  here.book.update = update;
  expect((await here.call('POST', '/v3/connect', session)).status).toBe(200);
});

it('a service that wants to be left alone loses no log: the agent, which drops a chunk for any 4xx, is told to come again', async () => {
  await using here = await gatewayBench((_, response) => void response.writeHead(429, { 'retry-after': '1' }).end('{}'));
  here.held('a', { shown: { phase: 'running' } });
  const job = here.token('job', 'a');
  const path = `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=5`;
  expect((await here.call('POST', path, job, 'lines')).status).toBe(503);
  expect((await here.call('POST', `/v3/jobs/${jobId}/annotations`, job, {})).status).toBe(429);
});
