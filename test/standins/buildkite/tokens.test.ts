/** Which token opens what, for how long, and how the log proves who came with which. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { asking, handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

let bk: BuildkiteStandin;
beforeEach(async () => {
  bk = await startBuildkite();
});
afterEach(() => bk[Symbol.asyncDispose]());

const name = { name: 'one' };

test('only a registration token registers; a revoked one no longer does, and leaves who is connected alone', async () => {
  expect((await asking(bk, null)('POST', 'register', name)).status).toBe(401);
  expect(await asking(bk, 'bkct_wrong')('POST', 'register', name)).toMatchObject({
    status: 401,
    json: { message: 'Invalid access token' },
  });
  expect(await asking(bk, bk.metricsToken)('POST', 'register', name)).toMatchObject({ status: 403 });
  const agent = await handAgent(bk, 'one');
  bk.revoke(bk.token);
  await expect(handAgent(bk, 'two')).rejects.toThrow('401');
  expect(await agent.ping()).toBeNull();
});

test('a token of a queue registers there and nowhere else', async () => {
  const token = bk.addToken({ kind: 'registration', queue: 'gpu' });
  await expect(handAgent(bk, 'one', { token })).rejects.toThrow('403');
  await handAgent(bk, 'one', { token, tags: ['queue=gpu'] });
  expect((await asking(bk, token)('GET', 'token')).json).toMatchObject({
    organization_slug: 'acme',
    organization_queue_key: 'gpu',
  });
});

test('a session is over with its agent, a job token with its job', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  expect((await asking(bk, agent.session)('PUT', `jobs/${job.id}/start`, {})).status).toBe(401);
  expect((await job.ask('PUT', `jobs/${job.id}/accept`)).status).toBe(401);
  expect((await job.start()).status).toBe(200);
  expect((await job.finish()).status).toBe(200);
  expect((await job.log('late', { sequence: 1, offset: 0 })).status).toBe(401);
  expect((await job.finish()).status).toBe(422);
  expect((await agent.disconnect()).status).toBe(200);
  expect((await agent.disconnect()).status).toBe(401);
});

test('a job is accepted once, by the agent that it was given to', async () => {
  const agent = await handAgent(bk, 'one');
  const id = bk.queueJob();
  const other = await handAgent(bk, 'two');
  await expect(other.accept(id)).rejects.toThrow('422');
  await agent.accept(id);
  await expect(agent.accept(id)).rejects.toThrow('422');
});

test('a job token is for its own job, except for data', async () => {
  const [one, two] = [await handAgent(bk, 'one'), await handAgent(bk, 'two')];
  const [a, b] = [await one.accept(bk.queueJob()), await two.accept(bk.queueJob())];
  expect((await a.ask('PUT', `jobs/${b.id}/finish`, { exit_status: '0' })).status).toBe(403);
  expect((await a.ask('GET', `jobs/${b.id}`)).status).toBe(403);
  expect((await a.ask('POST', `jobs/${b.id}/data/set`, { key: 'k', value: 'v' })).status).toBe(200);
  expect(bk.job(b.id).metaData).toEqual({ k: 'v' });
});

test('where jobs have no token, the session serves', async () => {
  await using plain = await startBuildkite({ jobTokens: false });
  const agent = await handAgent(plain, 'one');
  const job = await agent.accept(plain.queueJob());
  expect((await agent.ask('PUT', `jobs/${job.id}/start`, {})).status).toBe(200);
  expect((await agent.ask('PUT', `jobs/${job.id}/finish`, { exit_status: '0' })).status).toBe(200);
});

test('the log says which kind of token came, from where and whether it was good, and never the token', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  await job.finish();
  await asking(bk, 'oj_one-time')('POST', 'register', name);
  const seen = bk.requests.map(({ method, route, token, agent, status, from }) => [method, route, token, agent, status, from]);
  expect(seen).toEqual([
    ['POST', 'register', 'registration', null, 200, '127.0.0.1'],
    ['POST', 'connect', 'session', 'one', 200, '127.0.0.1'],
    ['PUT', 'jobs/:id/accept', 'session', 'one', 200, '127.0.0.1'],
    ['PUT', 'jobs/:id/finish', 'job', 'one', 200, '127.0.0.1'],
    ['POST', 'register', 'unknown', null, 401, '127.0.0.1'],
  ]);
  const all = JSON.stringify(bk.requests);
  for (const token of [bk.token, agent.session, job.token, 'oj_one-time']) expect(all).not.toContain(token);
  expect(bk.requests.some(({ leaked }) => leaked)).toBe(false);
});

test('a registration token where it must not be is noticed, also in a packed log', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  const text = `TOKEN=${bk.token}`;
  await job.log(text, { sequence: 1, offset: 0 });
  expect(bk.requests.at(-1)).toMatchObject({ route: 'jobs/:id/chunks', leaked: true });
  await job.ask('POST', `jobs/${job.id}/annotations`, { body: bk.metricsToken });
  expect(bk.requests.at(-1)).toMatchObject({ leaked: true });
  await job.ask('GET', `jobs/${job.id}`);
  expect(bk.requests.at(-1)).toMatchObject({ leaked: false });
});

test('streaming is not there, and says so at once', async () => {
  const root = bk.endpoint.replace('/v3', '');
  const response = await fetch(`${root}/agentedge.v1.AgentEdgeService/StreamPings`, { method: 'POST', body: 'x' });
  expect(response.status).toBe(404);
});
