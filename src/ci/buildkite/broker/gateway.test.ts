import { describe, expect, it } from 'vitest';
import { bodyOf, gatewayBench, jobId, serviceTokens } from './gateway-testing.ts';

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
