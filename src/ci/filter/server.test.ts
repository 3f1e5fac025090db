/** What an untrusted job may ask of the service, and what a hostile one tries. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, expect, it } from 'vitest';
import { buildId, filterBench, jobId } from '../../../test/kit/filter.ts';
import { gitlabRules, gitlabRulesOf } from '../gitlab/filter-rules.ts';
import type { Rules } from './rules.ts';
import { Seal } from './seal.ts';

const other = '01935a4b-0000-4000-8000-00000000beef';

const may = [
  `GET /v3/jobs/${jobId}`,
  `PUT /v3/jobs/${jobId}/start`,
  `PUT /v3/jobs/${jobId}/finish`,
  `POST /v3/jobs/${jobId}/pipelines?async=true`,
  `GET /v3/jobs/${jobId}/pipelines/1`,
  `POST /v3/jobs/${jobId}/annotations`,
  `DELETE /v3/jobs/${jobId}/annotations/a.b-c_d`,
  `DELETE /v3/jobs/${jobId}/annotations/a?scope=job`,
  `POST /v3/jobs/${jobId}/artifacts`,
  `PUT /v3/jobs/${jobId}/artifacts`,
  `POST /v3/jobs/${jobId}/data/set`,
  `POST /v3/jobs/${jobId}/data/set-batch`,
  `POST /v3/jobs/${jobId}/data/get`,
  `POST /v3/jobs/${jobId}/header_times`,
  `POST /v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=1`,
  `PUT /v3/jobs/${jobId}/promise_failure`,
  `POST /v3/builds/${buildId}/data/exists`,
  `GET /v3/builds/${buildId}/artifacts/search?query=a`,
  `GET /v3/builds/${buildId}/artifacts/search?include_duplicates=true&include_retried_jobs=true&query=%2A%2A%2F%3B+x&scope=test&state=finished`,
  'POST /v3/cache_registries/default/retrieve',
];
const mayNot = [
  `DELETE /v3/jobs/${jobId}/annotations/a%2Fb`,
  `GET /v3/jobs/${jobId}/secrets?key=DEPLOY`,
  `POST /v3/jobs/${jobId}/oidc/tokens`,
  `POST /v3/jobs/${jobId}/repository_access_token`,
  `PUT /v3/jobs/${jobId}`,
  `PUT /v3/jobs/${jobId}/acquire`,
  `PUT /v3/jobs/${jobId}/finish.json`,
  `POST /v3/jobs/${jobId}/something_new`,
  `POST /v3/builds/${buildId}/cancel`,
  'POST /v3/builds/another/data/get',
  'GET /v3/builds/another/artifacts/search?query=a',
  'PUT /v3/steps/deploy',
  'POST /v3/steps/deploy/cancel',
  `POST /v3/jobs/${other}/data/get`,
  `POST /v3/jobs/${other}/annotations`,
  `POST /v3/jobs/${other}/artifacts`,
  `PUT /v3/jobs/${other}/finish`,
  `POST /v3/jobs/${other}/pipelines?async=true`,
  'PUT /v3/cache_registries/default/store',
  'GET /v3/cache_registries/x;y',
  `POST /v3/builds/${buildId}/data/get?build_id=another`,
  `GET /v3/builds/${buildId}/artifacts/search?query=a&build_id=another`,
  `GET /v3/builds/${buildId}/artifacts/search?query=a;build_id=another`,
  `GET /v3/builds/${buildId}/artifacts/search?query=a&build%5Fid=another`,
  `GET /v3/builds/${buildId}/artifacts/search?query[build_id]=another`,
  `POST /v3/jobs/${jobId}/pipelines?async=true&replace=true`,
  'GET /v3/metrics',
  'GET /v3/token',
  'POST /v3/stacks/register',
  'POST /v3/register',
  'POST /v3/stop',
  'GET /v3/ping',
];

const bodyFor = (method: string): unknown => (['GET', 'DELETE'].includes(method) ? undefined : {});

describe('a job', () => {
  it('may ask for each of these, with the service’s own token and the bytes of its path', async () => {
    await using here = await filterBench();
    const token = here.token('job');
    for (const line of may) {
      const [method = '', path = ''] = line.split(' ');
      expect([line, (await here.call(method, path, token, bodyFor(method))).status]).toEqual([line, 200]);
    }
    const heads = here.seen.map((each) => each.split(' ').slice(0, 4).join(' '));
    expect(heads).toEqual(may.map((line) => `${line} Token real-job`));
  });

  it('may ask for none of these', async () => {
    await using here = await filterBench();
    const token = here.token('job');
    for (const line of mayNot) {
      const [method = '', path = ''] = line.split(' ');
      const { status, json } = await here.call(method, path, token, bodyFor(method));
      expect([line, [400, 403].includes(status), json]).toEqual([line, true, { message: expect.any(String) }]);
    }
    expect(here.seen).toEqual([]);
  });

  it('gets the rule in its answer, and the log has it once', async () => {
    await using here = await filterBench();
    const ask = () => here.call('GET', `/v3/jobs/${jobId}/secrets?key=DEPLOY`, here.token('job'));
    expect((await ask()).json).toEqual({
      message: expect.stringMatching(/trust rule.*untrusted.*may not read the service's secrets and tokens/),
    });
    await ask();
    expect(here.said).toEqual(['call of a job refused']);
  });

  it('may look at steps of its own build, whatever else its body says', async () => {
    await using here = await filterBench();
    const step = (body: string) => here.call('POST', '/v3/steps/test/export', here.token('job'), body);
    expect((await step('{"attribute":"outcome"}')).status).toBe(403);
    expect((await step('{"build_id":"another"}')).status).toBe(403);
    expect((await step(`{"build_id":"${buildId}","build_id":"another"}`)).status).toBe(403);
    expect((await step(`{"build_id":"another","build_id":"${buildId}"}`)).status).toBe(200);
    expect(here.seen).toEqual([`POST /v3/steps/test/export Token real-job {"build_id":"${buildId}"}`]);
  });

  it('whose log is not taken now is told so in the way that makes its agent try again', async () => {
    await using here = await filterBench(() => ({ status: 429, json: { message: 'slow down' } }));
    const path = `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=1`;
    expect(await here.call('POST', path, here.token('job'), 'x')).toEqual({ status: 503, json: { message: 'slow down' } });
    expect((await here.call('POST', `/v3/jobs/${jobId}/data/get`, here.token('job'), {})).status).toBe(429);
  });

  it('is told nothing of the service’s own token, wherever that repeats it', async () => {
    await using here = await filterBench(() => ({ status: 422, json: { message: 'not with Token real-job' } }));
    const { json } = await here.call('PUT', `/v3/jobs/${jobId}/finish`, here.token('job'), {});
    expect(json).toEqual({ message: 'not with Token [token]' });
  });
});

describe('a token', () => {
  it.each<[string, Parameters<Awaited<ReturnType<typeof filterBench>>['token']>, string]>([
    ['that is over', ['job', { until: 1 }], `GET /v3/jobs/${jobId}`],
    ['of rules that nobody knows', ['job', { rules: 'other' }], `GET /v3/jobs/${jobId}`],
    ['that registers, used for its job', ['register'], `GET /v3/jobs/${jobId}`],
  ])('%s is invalid', async (_, about, line) => {
    await using here = await filterBench();
    const [method = '', path = ''] = line.split(' ');
    expect((await here.call(method, path, here.token(...about))).status).toBe(401);
    expect(here.seen).toEqual([]);
  });

  it('that was changed, made elsewhere, or is the service’s own is invalid', async () => {
    await using here = await filterBench();
    const token = here.token('job');
    const elsewhere = new Seal(Buffer.alloc(32, 8)).close(here.seal.open(token) as never);
    const flipped = `${token.slice(0, -2)}${token.endsWith('A') ? 'BB' : 'AA'}`;
    for (const one of [flipped, elsewhere, 'real-job', 'ojf_', token.slice(0, 30)])
      expect((await here.call('GET', `/v3/jobs/${jobId}`, one)).status).toBe(401);
    expect(here.seen).toEqual([]);
  });

  it('of a session is worth no more than it needs to be', async () => {
    await using here = await filterBench();
    const session = here.token('session');
    for (const line of [
      `POST /v3/jobs/${jobId}/oidc/tokens`,
      `PUT /v3/jobs/${other}/acquire`,
      `POST /v3/builds/${buildId}/cancel`,
    ]) {
      const [method = '', path = ''] = line.split(' ');
      expect((await here.call(method, path, session, {})).status).toBe(403);
    }
    expect(here.seen).toEqual([]);
  });
});

describe('an agent', () => {
  it('registers, acquires its job and has no token of the service’s in the end', async () => {
    await using here = await filterBench((request) => {
      if (request.url === '/v3/register')
        return { json: { access_token: 'real-session', endpoint: 'http://else', ping_interval: 0 } };
      if (request.url?.endsWith('/acquire') !== true) return { json: { job: { id: other }, endpoint: 'x', action: 'idle' } };
      const env = { BUILDKITE_AGENT_ACCESS_TOKEN: 'real-session', BUILDKITE_BUILD_ID: buildId, NO_PROXY: 'x', A: 'real-session' };
      return { json: { id: jobId, env, token: 'real-job', endpoint: 'http://else', later: [1] } };
    });
    const registered = (await here.call('POST', '/v3/register', here.token('register'), { name: 'a' })).json as Record<
      string,
      unknown
    >;
    expect(registered).toEqual({
      access_token: expect.stringMatching(/^ojf_/),
      ping_interval: 1,
      job_status_interval: 1,
      heartbeat_interval: 1,
    });
    const session = String(registered.access_token);
    expect(here.seal.open(session)).toMatchObject({ use: 'session', token: 'real-session', job: jobId });
    expect((await here.call('GET', '/v3/ping', session)).json).toEqual({ action: 'idle' });
    const { json } = await here.call('PUT', `/v3/jobs/${jobId}/acquire`, session, {});
    const own = String((json as { token: string }).token);
    expect(json).toEqual({
      id: jobId,
      later: [1],
      token: own,
      env: { BUILDKITE_BUILD_ID: buildId, NO_PROXY: 'x,127.0.0.1', A: '[token]' },
    });
    expect(here.seal.open(own)).toMatchObject({ use: 'job', token: 'real-job', build: buildId });
  });

  it('is not given another job than its own, whatever the service says', async () => {
    await using here = await filterBench(() => ({ json: { id: other, env: {}, token: 'real-job' } }));
    expect((await here.call('PUT', `/v3/jobs/${jobId}/acquire`, here.token('session'), {})).status).toBe(502);
  });
});

const inner = 'PUT /v3/jobs/stolen/finish HTTP/1.1\r\nHost: x\r\nAuthorization: Token theirs\r\nContent-Length: 190\r\n\r\n';
const chunked = `${inner.length.toString(16)}\r\n${inner}\r\n0\r\n\r\n`;
const framings = {
  chunks: `Transfer-Encoding: chunked\r\n\r\n${chunked}`,
  'a length': `Content-Length: ${inner.length}\r\n\r\n${inner}`,
  both: `Content-Length: ${inner.length}\r\nTransfer-Encoding: chunked\r\n\r\n${chunked}`,
  'other chunks': `Transfer-Encoding: gzip, chunked\r\n\r\n${chunked}`,
};

/** The status of the first answer to these bytes; 0 for none. */
async function raw(port: number, text: string): Promise<number> {
  const socket = connect({ port, host: '127.0.0.1' }).on('error', () => {});
  socket.write(text);
  const back = await Promise.race([once(socket, 'data').then(([bytes]) => String(bytes)), once(socket, 'close').then(() => '')]);
  socket.destroy();
  return Number(/^HTTP\/1\.1 (\d+)/.exec(back)?.[1] ?? 0);
}

describe('a call with a second one in its body', () => {
  it.each(Object.keys(framings) as (keyof typeof framings)[])('stays one call, framed by %s', async (framing) => {
    await using here = await filterBench();
    for (const [method, path] of [
      ['POST', `/v3/jobs/${jobId}/annotations`],
      ['PUT', `/v3/jobs/${jobId}/finish`],
      ['GET', `/v3/jobs/${jobId}`],
      ['DELETE', `/v3/jobs/${jobId}/annotations/x`],
    ] as const) {
      here.seen.length = 0;
      const head = `${method} ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${here.token('job')}\r\n`;
      const status = await raw(here.port, `${head}${framings[framing]}`);
      const passes = (method === 'POST' || method === 'PUT') && (framing === 'chunks' || framing === 'a length');
      expect([method, status]).toEqual([method, passes ? 200 : 400]);
      expect(here.seen).toEqual(passes ? [`${method} ${path} Token real-job ${inner}`] : []);
    }
  });
});

it('pipelined calls end their connection, and the filter keeps running', async () => {
  await using here = await filterBench();
  const one = `GET /v3/jobs/${jobId} HTTP/1.1\r\nHost: x\r\nAuthorization: Token ${here.token('job')}\r\n\r\n`;
  const socket = connect({ port: here.port, host: '127.0.0.1' }).on('error', () => {});
  socket.write(one.repeat(500));
  await new Promise((resolve) => socket.once('close', resolve));
  expect((await here.call('GET', `/v3/jobs/${jobId}`, here.token('job'))).status).toBe(200);
});

it('no more calls of one job are under way than it may have, and others are served', async () => {
  const hold = Promise.withResolvers<void>();
  await using here = await filterBench(() => ({}), { calls: 2 });
  const { listening, stopped } = await import('../../../test/kit/filter.ts');
  const slow = await listening(async (_, response) => {
    await hold.promise;
    response.end('{}');
  });
  const token = here.token('job', { endpoint: `http://127.0.0.1:${slow.port}/v3` });
  const asked = [1, 2, 3].map(() => here.call('GET', `/v3/jobs/${jobId}`, token));
  const first = await Promise.race(asked);
  expect(first).toMatchObject({ status: 503, json: { message: 'Too many concurrent calls.' } });
  const others = here.token('job', { job: other });
  expect((await here.call('GET', `/v3/jobs/${other}`, others)).status).toBe(200);
  hold.resolve();
  await Promise.all(asked);
  await stopped(slow.server);
});

it('a body that is too large to be read whole is refused, and a log of any size goes through', async () => {
  await using here = await filterBench((_, body) => ({ json: { size: body.length } }));
  expect((await here.call('POST', '/v3/register', here.token('register'), 'x'.repeat(100_000))).status).toBe(413);
  const path = `/v3/jobs/${jobId}/chunks?sequence=1&offset=0&size=1`;
  expect(await here.call('POST', path, here.token('job'), 'x'.repeat(3_000_000))).toEqual({
    status: 200,
    json: { size: 3_000_000 },
  });
});

it('an unreachable service is reported as an error that may pass', async () => {
  await using here = await filterBench();
  const token = here.token('job', { endpoint: 'http://127.0.0.1:1/v3' });
  expect(await here.call('GET', `/v3/jobs/${jobId}`, token)).toMatchObject({ status: 502 });
});

describe('a service whose agents sign their calls themselves', () => {
  const rules: Rules = {
    root: 'own',
    scheme: null,
    judge(sealed, { segments: [first, id] }) {
      if (first === 'job') return { kind: 'left', status: 201, type: 'application/json', after: 204 };
      if (first === 'hello') return { kind: 'answered', status: 200, json: { hello: sealed.job } };
      return first === 'jobs' && id === sealed.job ? { kind: 'stream' } : { kind: 'refused', status: 403, why: 'Not that.' };
    },
  };
  const bench = () => filterBench(undefined, {}, { own: rules });
  type Bench = Awaited<ReturnType<typeof bench>>;
  const tokenOf = (here: Bench, file?: string) => {
    const key = file === undefined ? 'none' : here.left.leave(file, '{"id":1}');
    return here.token('job', { rules: 'own', token: key, ...(file !== undefined && { file }) });
  };
  const ask = (here: Bench, path: string, headers: Record<string, string> = {}, body = '{}') =>
    fetch(`http://127.0.0.1:${here.port}${path}`, { method: 'POST', headers, body });

  it('gets the path without the sealed token, and the agent’s own headers', async () => {
    await using here = await bench();
    const token = tokenOf(here);
    const answer = await ask(here, `/own/${token}/jobs/${jobId}?a=1`, { 'job-token': 'its-own', authorization: 'Token real' });
    expect(answer.status).toBe(200);
    expect(here.seen).toEqual([`POST /v3/jobs/${jobId}?a=1 undefined {}`]);
    expect(here.heads[0]).toMatchObject({ 'job-token': 'its-own' });
    expect(JSON.stringify(here.heads)).not.toContain(token);
  });

  it('is not asked for what was left for its job, which is given out once', async () => {
    await using here = await bench();
    const token = tokenOf(here, 'agent-1');
    const first = await ask(here, `/own/${token}/job`);
    expect([first.status, await first.text()]).toEqual([201, '{"id":1}']);
    expect((await ask(here, `/own/${token}/job`)).status).toBe(204);
    expect(await (await ask(here, `/own/${token}/hello`)).json()).toEqual({ hello: jobId });
    expect(here.seen).toEqual([]);
  });

  it('gives what was left only to an agent that shows its key, where that is apart from the token', async () => {
    const apart: Rules = {
      ...rules,
      judge: () => ({
        kind: 'left',
        status: 201,
        type: 'application/json',
        after: 204,
        keyIn: (json) => (json as { key?: string }).key ?? null,
      }),
    };
    await using here = await filterBench(undefined, {}, { own: apart });
    const key = here.left.leave('agent-1', '{"id":1}');
    const token = here.token('job', { rules: 'own', token: 'another', file: 'agent-1' });
    const asWith = async (body: unknown) => (await ask(here, `/own/${token}/job`, {}, JSON.stringify(body))).status;
    expect([await asWith({}), await asWith({ key: 'another' }), await asWith({ key }), await asWith({ key })]).toEqual([
      204, 204, 201, 204,
    ]);
  });

  it('gives its job to a runner of GitLab that an older onejob released, whose key is in the sealed token', async () => {
    await using here = await filterBench(undefined, {}, { [gitlabRulesOf]: gitlabRules });
    const key = here.left.leave('agent-1', '{"id":1}');
    const ask = (token: string, shown: string) => here.call('POST', `/gitlab/${token}/api/v4/jobs/request`, '', { token: shown });
    const about = { rules: gitlabRulesOf, file: 'agent-1' };
    // The sealed token alone opens nothing if the key is apart.
    expect((await ask(here.token('job', about), 'onejob')).status).toBe(204);
    const old = here.token('job', { ...about, token: key });
    expect(await ask(old, 'onejob')).toEqual({ status: 201, json: { id: 1 } });
    expect((await ask(old, 'onejob')).status).toBe(204);
  });

  it.each([
    ['another job', (token: string) => `/own/${token}/jobs/${other}`, 403],
    ['another root', (token: string) => `/v3/${token}/jobs/${jobId}`, 404],
    ['a token that is written otherwise', (token: string) => `/own/%6F${token.slice(1)}/jobs/${jobId}`, 404],
    ['no token', () => `/own/jobs/${jobId}`, 401],
    ['a broken token', (token: string) => `/own/${token.slice(0, -4)}/jobs/${jobId}`, 401],
    ['a step up', (token: string) => `/own/${token}/jobs/${jobId}/../${other}`, 400],
  ])('is not asked for %s', async (_, path, status) => {
    await using here = await bench();
    // fetch would resolve the steps.
    const head = `POST ${path(tokenOf(here))} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}`;
    expect(await raw(here.port, head)).toBe(status);
    expect(here.seen).toEqual([]);
  });

  it('accepts no sealed token of another service in its path, and none of its own in a header', async () => {
    await using here = await bench();
    expect((await ask(here, `/v3/${here.token('job')}/jobs/${jobId}`)).status).toBe(401);
    const answer = await ask(here, `/own/jobs/${jobId}`, { authorization: `Token ${tokenOf(here)}` });
    expect(answer.status).toBe(401);
    expect(here.seen).toEqual([]);
  });
});

describe('a service whose agents sign in with a header', () => {
  const rules: Rules = { root: 'own', scheme: 'x-runner-token', judge: () => ({ kind: 'stream' }) };
  const signs = { 'x-runner-uuid': 'the-uuid', 'x-runner-token': 'the-key' };
  const ask = (port: number, token: string) => {
    const headers = { 'x-runner-token': token, 'x-runner-uuid': 'onejob', authorization: 'Token real' };
    return fetch(`http://127.0.0.1:${port}/own/call`, { method: 'POST', headers, body: '{}' });
  };

  it('gets the agent’s real headers in the place of the sealed token, and no answer shows them', async () => {
    await using here = await filterBench(() => ({ status: 400, json: { said: 'the-key' } }), {}, { own: rules });
    const token = here.token('job', { rules: 'own', token: 'none', signs });
    const answer = await ask(here.port, token);
    expect(await answer.json()).toEqual({ said: '[token]' });
    expect(here.seen).toEqual(['POST /v3/call undefined {}']);
    expect(here.heads[0]).toMatchObject(signs);
    expect(JSON.stringify(here.heads)).not.toContain(token);
  });

  it('is not asked with a token of another service, or one that is not sealed', async () => {
    await using here = await filterBench(undefined, {}, { own: rules });
    for (const token of [
      here.token('job'),
      'the-key',
      here.token('job', { rules: 'own', signs }).slice(0, -4),
      here.token('job', { rules: 'own', signs, until: 0 }),
    ])
      expect((await ask(here.port, token)).status).toBe(401);
    expect(here.seen).toEqual([]);
  });
});
