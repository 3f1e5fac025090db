/** What a job of anybody may ask of the service, and what only a trusted one. */
import { describe, expect, it } from 'vitest';
import { bodyOf, gatewayBench, jobId } from './testing-gateway.ts';

const other = '01935a4b-0000-4000-8000-00000000beef';
const build = 'b0000000-0000-4000-8000-000000000001';
const env = { BUILDKITE_BUILD_ID: build };

async function service(trusted: boolean) {
  const seen: string[] = [];
  const bench = await gatewayBench(async (request, response) => {
    seen.push(`${request.method} ${request.url} ${await bodyOf(request)}`);
    response.end('{"value":"of the cluster"}');
  });
  bench.held('a', { shown: { phase: 'running', job: { id: jobId, env } }, trusted });
  return { ...bench, seen, [Symbol.asyncDispose]: bench[Symbol.asyncDispose] };
}

const usual = [
  `GET /v3/jobs/${jobId}`,
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
  `POST /v3/builds/${build}/data/exists`,
  `GET /v3/builds/${build}/artifacts/search?query=a`,
  `GET /v3/builds/${build}/artifacts/search?include_duplicates=true&include_retried_jobs=true&query=%2A%2A%2F%3B+x&scope=test&state=finished`,
  'POST /v3/cache_registries/default/retrieve',
];
const trustedOnly = [
  `DELETE /v3/jobs/${jobId}/annotations/a%2Fb`,
  `GET /v3/jobs/${jobId}/secrets?key=DEPLOY`,
  `POST /v3/jobs/${jobId}/oidc/tokens`,
  `POST /v3/jobs/${jobId}/repository_access_token`,
  `PUT /v3/jobs/${jobId}`,
  `POST /v3/jobs/${jobId}/something_new`,
  `POST /v3/builds/${build}/cancel`,
  'POST /v3/builds/another/data/get',
  'GET /v3/builds/another/artifacts/search?query=a',
  'PUT /v3/steps/deploy',
  'POST /v3/steps/deploy/cancel',
  `POST /v3/jobs/${other}/data/get`,
  `POST /v3/jobs/${other}/annotations`,
  `POST /v3/jobs/${other}/artifacts`,
  'PUT /v3/cache_registries/default/store',
  `POST /v3/builds/${build}/data/get?build_id=another`,
  `GET /v3/builds/${build}/artifacts/search?query=a&build_id=another`,
  `GET /v3/builds/${build}/artifacts/search?query=a;build_id=another`,
  `GET /v3/builds/${build}/artifacts/search?query=a&build%5Fid=another`,
  `GET /v3/builds/${build}/artifacts/search?query[build_id]=another`,
  `POST /v3/jobs/${jobId}/pipelines?async=true&replace=true`,
];
const nobodys = [`POST /v3/jobs/${other}/pipelines?async=true`, `GET /v3/jobs/${other}/secrets?key=DEPLOY`];

describe.each([
  { trusted: true, may: [...usual, ...trustedOnly], not: nobodys },
  { trusted: false, may: usual, not: [...trustedOnly, ...nobodys] },
])('trusted: $trusted', ({ trusted, may, not }) => {
  const ask = async (here: Awaited<ReturnType<typeof service>>, line: string) => {
    const [method = '', path = ''] = line.split(' ');
    return await here.call(method, path, here.token('job', 'a'), ['GET', 'DELETE'].includes(method) ? undefined : {});
  };

  it.each(may)('may %s', async (line) => {
    await using here = await service(trusted);
    expect((await ask(here, line)).status).toBe(200);
    expect(here.seen.map((each) => each.split(' ').slice(0, 2).join(' '))).toEqual([line]);
  });

  it.each(not)('may not %s', async (line) => {
    await using here = await service(trusted);
    expect(await ask(here, line)).toMatchObject({ status: 403, json: { message: expect.any(String) } });
    expect(here.seen).toEqual([]);
  });
});

it.each(['x%2Fstore', 'x%3Fa', 'x%252Fstore', 'x%20y', 'x;y', '%C3%BC'])(
  'a name such as %s in a path is not one that an untrusted job may ask for',
  async (name) => {
    await using here = await service(false);
    const { status } = await here.call('GET', `/v3/cache_registries/${name}`, here.token('job', 'a'));
    expect([400, 403]).toContain(status);
    expect(here.seen).toEqual([]);
  },
);

it('an untrusted job is told by which rule', async () => {
  await using here = await service(false);
  const { json } = await here.call('GET', `/v3/jobs/${jobId}/secrets?key=DEPLOY`, here.token('job', 'a'));
  expect(json).toEqual({ message: expect.stringMatching(/trust rule.*untrusted/) });
  expect((await here.call('GET', `/v3/jobs/${jobId}/secrets?key=onejob%3AA`, here.token('job', 'a'))).status).toBe(404);
});

it('its session is worth no more to it', async () => {
  await using here = await service(false);
  const session = here.token('session', 'a');
  expect((await here.call('POST', `/v3/jobs/${jobId}/oidc/tokens`, session, {})).status).toBe(403);
  expect((await here.call('POST', `/v3/builds/${build}/cancel`, session, {})).status).toBe(403);
  expect(here.seen).toEqual([]);
});

it('it may look at steps of its own build, whatever else its body says', async () => {
  await using here = await service(false);
  const step = (body: string) => here.call('POST', '/v3/steps/test/export', here.token('job', 'a'), body);
  expect((await step('{"attribute":"outcome"}')).status).toBe(403);
  expect((await step('{"build_id":"another"}')).status).toBe(403);
  expect((await step(`{"build_id":"${build}","build_id":"another"}`)).status).toBe(403);
  expect((await step(`{"build_id":"another","build_id":"${build}"}`)).status).toBe(200);
  for (const query of ['build_id=another', 'build_id', '%62uild_id=another', 'build_id[]=another', '&x']) {
    const body = { build_id: build };
    expect((await here.call('POST', `/v3/steps/test/export?${query}`, here.token('job', 'a'), body)).status).toBe(403);
  }
  expect(here.seen).toEqual([`POST /v3/steps/test/export {"build_id":"${build}"}`]);
});
