import { afterEach, expect, test } from 'vitest';
import { asking } from './asking.ts';
import { type HandAgent, newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from './standin.ts';

const MINUTE = 60_000;
const key = newKey();
let azure: AzureDevOps;
let pool: number;
afterEach(() => azure[Symbol.asyncDispose]());

async function online(o: StandInOptions = {}, autoUpdate = true): Promise<HandAgent> {
  azure = await startAzureDevOps({ pollHoldMs: 20, ...o });
  pool = azure.addPool('gpu', { autoUpdate });
  const agent = await registerByHand(azure, pool, 'one', { key, capabilities: { cuda: '12', gone: 'yes' } });
  await agent.open({ cuda: '13' }, '5.277.0');
  return agent;
}
const remove = (agent: HandAgent) =>
  asking(azure)('DELETE', `_apis/distributedtask/pools/${pool}/agents/${agent.identity.agentId}`);

test('opening a session makes the agent online, with the capabilities and the version that it says then', async () => {
  await online();
  expect(azure.agents(pool)).toMatchObject([
    { online: true, everOnline: true, version: '5.277.0', systemCapabilities: { cuda: '13' } },
  ]);
  expect(azure.agents(pool)[0]?.systemCapabilities).not.toHaveProperty('gone');
});

test('a second session of a live agent is a conflict, and none after the first has ended', async () => {
  const agent = await online();
  await expect(agent.open()).rejects.toThrow(/^409 .*TaskAgentSessionConflictException/);
  await agent.close();
  await agent.open();
});

test('an empty poll is held, and answered with 202', async () => {
  const agent = await online();
  expect(await agent.poll()).toBeNull();
  expect(azure.log.at(-1)).toMatchObject({ route: 'messages', status: 202 });
});

test('a message wakes every poll that is held, and comes again until it is deleted', async () => {
  const agent = await online({ pollHoldMs: 60_000 });
  const polls = Promise.all([agent.poll(), agent.poll()]);
  await expect.poll(() => azure.log.filter(({ route }) => route === 'messages').length).toBe(2);
  azure.queue(pool);
  const [first, second] = await polls;
  expect(first).toMatchObject({ type: 'PipelineAgentJobRequest' });
  expect(second?.messageId).toBe(first?.messageId);
  expect((await agent.poll())?.messageId).toBe(first?.messageId);
  await agent.acknowledge(first?.messageId ?? 0);
  azure.updateAgents(pool, '5.279.0');
  expect((await agent.poll())?.type).toBe('AgentRefresh');
});

test('a poll that names the last message sees newer ones only', async () => {
  const agent = await online();
  azure.queue(pool);
  const job = await agent.poll();
  expect(await agent.poll(job?.messageId)).toBeNull();
});

test('a session that nobody polls expires, and says so to one that comes back', async () => {
  let now = Date.now();
  const agent = await online({ now: () => now, sessionMs: 5 * MINUTE, statusCodes: { sessionExpired: 410 } });
  now += 4 * MINUTE;
  await agent.poll();
  now += 4 * MINUTE;
  azure.sweep();
  expect(azure.agents(pool)[0]?.online).toBe(true);
  now += MINUTE;
  azure.sweep();
  expect(azure.agents(pool)[0]?.online).toBe(false);
  await expect(agent.poll()).rejects.toThrow(/^410 .*TaskAgentSessionExpiredException/);
});

test('a poll that is held keeps the session alive, and no longer when the agent has hung up', async () => {
  let now = Date.now();
  const agent = await online({ now: () => now, sessionMs: MINUTE, pollHoldMs: 60_000 });
  const hangUp = new AbortController();
  const bearer = await agent.signIn();
  const { sessionId } = { sessionId: azure.agents(pool)[0]?.session };
  const poll = fetch(`${azure.url}/_apis/distributedtask/pools/${pool}/messages?sessionId=${sessionId}`, {
    headers: { authorization: `Bearer ${bearer}` },
    signal: hangUp.signal,
  });
  await expect.poll(() => azure.log.at(-1)?.route).toBe('messages');
  now += 2 * MINUTE;
  azure.sweep();
  expect(azure.agents(pool)[0]?.online).toBe(true);
  hangUp.abort();
  await expect(poll).rejects.toThrow();
  await expect
    .poll(() => {
      now += 2 * MINUTE;
      azure.sweep();
      return azure.agents(pool)[0]?.online;
    })
    .toBe(false);
});

test('an agent whose registration is removed learns it in its poll', async () => {
  const agent = await online({ pollHoldMs: 60_000 });
  const closed = azure.next('sessionClosed');
  const poll = agent.poll();
  const refused = expect(poll).rejects.toThrow(/^404 .*TaskAgentNotFoundException/);
  await expect.poll(() => azure.log.at(-1)?.route).toBe('messages');
  expect((await remove(agent)).status).toBe(204);
  await refused;
  expect(await closed).toMatchObject({ name: 'one', why: 'removed' });
});

test('asking for an update reaches live agents, and later ones of a pool that updates by itself', async () => {
  const agent = await online();
  azure.updateAgents(pool, '5.278.0');
  expect(await agent.poll()).toMatchObject({
    type: 'AgentRefresh',
    body: { agentId: agent.identity.agentId, targetVersion: '5.278.0' },
  });
  await agent.close();
  await agent.open({}, '5.277.9');
  expect(await agent.poll()).toMatchObject({ type: 'AgentRefresh' });
  await agent.close();
  await agent.open({}, '5.278.0');
  expect(await agent.poll()).toBeNull();
});

test('a pool that does not update by itself leaves later agents alone', async () => {
  const agent = await online({}, false);
  azure.updateAgents(pool, '5.278.0');
  expect((await agent.poll())?.type).toBe('AgentRefresh');
  await agent.close();
  await agent.open({}, '5.277.0');
  expect(await agent.poll()).toBeNull();
});
