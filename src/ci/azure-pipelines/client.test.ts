import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  failureOf,
  inTurn,
  json,
  list,
  page,
  patient,
  type Reply,
  refusalOf,
  sampleAgent,
  samplePat,
  serve,
  serveClient,
} from '../../../test/kit/azure.ts';

const nothing: Reply = (_, response) => response.writeHead(204).end();

describe('what is sent', () => {
  it('each route, below the address as it is configured', async () => {
    await using one = await serveClient(inTurn(...Array(6).fill(list()), nothing), { path: '/tfs/My Collection//' });
    const { client } = one;
    await client.findPool('Größe & Co', patient);
    await client.agents(3, { name: 'gpu 0', capabilities: true, assigned: true }, patient);
    await client.agents(3, {}, patient);
    await client.requests(3, { unfinished: true }, patient);
    await client.requests(3, { agent: 7 }, patient);
    await client.packages('linux-x64', patient);
    await client.setEnabled(3, 7, false, patient);
    await client.setUserCapabilities(3, 7, { cuda: '12.4' }, patient);
    await client.deleteAgent(3, 7, patient);
    const base = '/tfs/My%20Collection/_apis/distributedtask';
    expect(one.sent()).toEqual([
      `GET ${base}/pools?poolName=Gr%C3%B6%C3%9Fe%20%26%20Co&poolType=automation`,
      `GET ${base}/pools/3/agents?agentName=gpu%200&includeCapabilities=true&includeAssignedRequest=true`,
      `GET ${base}/pools/3/agents`,
      `GET ${base}/pools/3/jobrequests?completedRequestCount=0`,
      `GET ${base}/pools/3/jobrequests?agentId=7`,
      `GET ${base}/packages/agent/linux-x64?$top=20`,
      `PATCH ${base}/pools/3/agents/7`,
      `PUT ${base}/pools/3/agents/7/usercapabilities`,
      `DELETE ${base}/pools/3/agents/7`,
    ]);
    expect(JSON.parse(one.server.seen[6]?.body ?? '')).toEqual({ id: 7, enabled: false });
    expect(JSON.parse(one.server.seen[7]?.body ?? '')).toEqual({ cuda: '12.4' });
  });

  it('with the credential, the version and what it is', async () => {
    await using one = await serveClient(list());
    await one.client.pools(patient);
    await one.client.requests(3, { unfinished: true }, patient);
    const [first, second] = one.server.seen;
    expect(first?.headers).toMatchObject({
      authorization: `Basic ${Buffer.from(`:${samplePat}`).toString('base64')}`,
      accept: 'application/json;api-version=7.1',
      'x-tfs-fedauthredirect': 'Suppress',
      'user-agent': 'onejob/1.2.3',
    });
    expect(second?.headers.accept).toBe('application/json;api-version=7.1-preview.1');
  });

  it('an agent, and what comes back', async () => {
    const authorization = { clientId: 'c', authorizationUrl: 'https://vssps.example/token' };
    await using one = await serveClient(json({ id: 9, name: 'gpu-0', authorization }));
    expect(await one.client.addAgent(3, sampleAgent, patient)).toEqual({ id: 9, name: 'gpu-0', authorization, serverUrl: null });
    expect(JSON.parse(one.server.seen[0]?.body ?? '')).toEqual({
      name: 'gpu-0',
      version: '5.278.0',
      osDescription: 'Linux',
      systemCapabilities: { cuda: '12.4' },
      maxParallelism: 1,
      provisioningState: 'Provisioned',
      authorization: { publicKey: sampleAgent.publicKey },
    });
  });
});

it('of an agent no more than was asked for', async () => {
  await using one = await serveClient(json({ id: 7, name: 'gpu-0' }));
  await one.client.agent(3, 7, { capabilities: true }, patient);
  await one.client.agent(3, 7, { assigned: true }, patient);
  expect(one.sent().map((line) => line.split('?')[1])).toEqual(['includeCapabilities=true', 'includeAssignedRequest=true']);
});

describe('what comes back', () => {
  it('a pool by its whole name, in whatever case', async () => {
    await using one = await serveClient(list({ id: 1, name: 'gpu-small' }, { id: 2, name: 'GPU' }));
    expect(await one.client.findPool('gpu', patient)).toMatchObject({ id: 2 });
    expect(await one.client.findPool('gp', patient)).toBeNull();
  });

  it('packages, newest first', async () => {
    const of = (minor: number) => ({ version: { major: 4, minor, patch: 0 }, downloadUrl: 'https://x.example/a', hashValue: null });
    await using one = await serveClient(list(of(99), of(275), of(3)));
    expect((await one.client.packages('linux-x64', patient)).map(({ version }) => version)).toEqual(['4.275.0', '4.99.0', '4.3.0']);
  });

  it('who one is, and how far the clocks are apart', async () => {
    const user = { authenticatedUser: { id: 'u', providerDisplayName: 'Ada' } };
    await using one = await serveClient(json(user, 200, { Date: 'Tue, 01 Jan 2030 00:05:00 GMT' }));
    expect(await one.client.connection(patient)).toEqual({ user: 'Ada', skew: 300_500 });
  });

  it('nobody, as whom a public organisation takes a wrong token', async () => {
    await using one = await serveClient(json({ authenticatedUser: { id: 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa' } }));
    expect(await failureOf(one.client.connection(patient))).toMatchObject({ code: 'E_CI_CREDENTIAL' });
    // The work continues with it: a doctor must not stop who is not ill.
    expect(await one.credential.header(patient)).toMatch(/^Basic /);
  });

  it('nothing, only when a real 404 says so', async () => {
    await using gone = await serveClient(json(refusalOf('TaskAgentNotFoundException', 'No agent.'), 404));
    expect(await gone.client.agent(3, 7, {}, patient)).toBeNull();
    expect(await gone.client.deleteAgent(3, 7, patient)).toBe('absent');
    expect(await gone.client.setEnabled(3, 7, true, patient)).toBe('absent');
    expect(await gone.client.setUserCapabilities(3, 7, {}, patient)).toBe('absent');
    expect(await gone.client.build('p', 1, patient)).toBeNull();
    await using other = await serveClient(page(404));
    for (const ask of [other.client.agent(3, 7, {}, patient), other.client.deleteAgent(3, 7, patient)]) {
      expect(await failureOf(ask)).toMatchObject({ code: 'E_CI_ANSWER', hint: expect.stringContaining('organisation') });
    }
  });

  it('a pool that is not there is no empty one, and its agents are not absent', async () => {
    await using one = await serveClient(json(refusalOf('TaskAgentPoolNotFoundException', 'No pool.'), 404));
    const { client } = one;
    for (const ask of [client.agents(3, {}, patient), client.agent(3, 7, {}, patient), client.deleteAgent(3, 7, patient)]) {
      expect(await failureOf(ask)).toMatchObject({ code: 'E_CI_POOL' });
    }
  });

  it('something else than was asked for', async () => {
    await using one = await serveClient(json({ value: [{ id: 1 }] }));
    expect(await failureOf(one.client.agents(3, {}, patient))).toMatchObject({
      code: 'E_CI_ANSWER',
      retry: true,
      message: expect.stringMatching(
        /Cannot list the agents of pool 3: http.* sent an unexpected response: "value\.0\.name" of its response is invalid\.$/,
      ),
    });
  });

  it('an agent that is not given up', async () => {
    const words = 'Agent gpu-0 is currently running a job for pool GPU.';
    await using busy = await serveClient(json(refusalOf('TaskAgentJobStillRunningException', words), 400));
    expect(await busy.client.deleteAgent(3, 7, patient)).toEqual({ refused: `400: ${words}` });
    await using asRight = await serveClient(json(refusalOf('AccessDeniedException', words), 403));
    expect(await asRight.client.deleteAgent(3, 7, patient)).toEqual({ refused: `403: ${words}` });
    await using denied = await serveClient(json(refusalOf('AccessDeniedException', 'needs Manage'), 403));
    expect(await failureOf(denied.client.deleteAgent(3, 7, patient))).toMatchObject({ code: 'E_CI_DENIED' });
  });
});

it('the credential reaches no other host', async () => {
  await using other = await serve(list());
  await using one = await serveClient((_, response) => response.writeHead(307, { Location: `${other.url}/acme` }).end());
  expect(await failureOf(one.client.pools(patient))).toMatchObject({
    code: 'E_CI_ANSWER',
    message: expect.stringContaining(other.url),
  });
  expect(other.seen).toEqual([]);
});

it('no error shows the token, whatever the service repeats', async () => {
  const basic = Buffer.from(`:${samplePat}`).toString('base64');
  const said = `${samplePat} Basic ${basic}`;
  const replies = [
    json(refusalOf('X', said), 400),
    json(refusalOf('X', said), 401),
    json(refusalOf('X', said), 403),
    json(refusalOf('X', said), 409),
    json(refusalOf('X', said), 429, { 'Retry-After': '99' }),
    json(refusalOf('X', said), 500),
    json({ value: [{ id: said }] }),
    page(200, said),
    page(404, said),
    page(302, said, { Location: `https://x.example/${samplePat}?t=${basic}` }),
  ];
  for (const reply of replies) {
    await using one = await serveClient(reply);
    const text = inspect([await failureOf(one.client.pools(patient)), one.client, one.credential], { depth: 10 });
    expect(text).not.toContain(samplePat);
    expect(text).not.toContain(basic);
  }
});
