import { afterEach, expect, test } from 'vitest';
import { asking, registration } from './asking.ts';
import { type HandAgent, newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from './standin.ts';

const MINUTE = 60_000;
const key = newKey();
let azure: AzureDevOps;
let pool: number;
let now: number;
afterEach(() => azure[Symbol.asyncDispose]());

async function start(o: StandInOptions = {}): Promise<void> {
  now = Date.now();
  azure = await startAzureDevOps({ pollHoldMs: 20, ...o });
  pool = azure.addPool('gpu');
}
/** Time as this file moves it. */
const virtual = { now: () => now };
const register = (name: string, capabilities: Record<string, string> = {}) =>
  registerByHand(azure, pool, name, { key, capabilities });
async function online(name = 'one', capabilities: Record<string, string> = {}): Promise<HandAgent> {
  const agent = await register(name, capabilities);
  await agent.open(capabilities);
  return agent;
}
const agentPath = (agent: HandAgent) => `_apis/distributedtask/pools/${pool}/agents/${agent.identity.agentId}`;

test('a job without any agent fails at once', async () => {
  await start();
  const job = azure.queue(pool);
  expect(job.view()).toMatchObject({
    state: 'done',
    result: 'failed',
    failedAtQueue: true,
    statusMessage: expect.stringContaining('No agents were found in pool gpu'),
  });
  await expect(job.finished).resolves.toEqual({ result: 'failed', log: '' });
});

test('an agent that was never online keeps jobs waiting, if it meets their demands', async () => {
  await start();
  await register('placeholder', { cuda: '12' });
  expect(azure.queue(pool, { demands: ['cuda'] }).view()).toMatchObject({ state: 'waiting', failedAtQueue: false });
  expect(azure.queue(pool, { demands: ['rocm'] }).view()).toMatchObject({
    failedAtQueue: true,
    statusMessage: expect.stringContaining('rocm'),
  });
});

test('whether such an agent counts can be switched', async () => {
  await start();
  await register('placeholder');
  azure.faults.placeholderNotCounted = true;
  expect(azure.queue(pool).view().failedAtQueue).toBe(true);
  await online('real');
  expect(azure.queue(pool).view().failedAtQueue).toBe(false);
});

test('a job goes to an agent that is online, enabled, idle and able, the oldest job first', async () => {
  await start();
  const plain = await online('plain');
  const able = await register('able', { cuda: '12' });
  const [first, second] = [azure.queue(pool, { demands: ['cuda'] }), azure.queue(pool, { demands: ['cuda'] })];
  expect(first.view().state).toBe('waiting');
  await asking(azure)('PATCH', agentPath(able), { id: able.identity.agentId, enabled: false });
  await able.open({ cuda: '12' });
  expect(first.view().state).toBe('waiting');
  await asking(azure)('PATCH', agentPath(able), { id: able.identity.agentId, enabled: true });
  expect(first.view()).toMatchObject({ state: 'assigned', agent: { name: 'able' } });
  expect(second.view().state).toBe('waiting');
  await asking(azure)('PUT', `${agentPath(plain)}/usercapabilities`, { CUDA: 'yes' });
  expect(second.view()).toMatchObject({ state: 'assigned', agent: { name: 'plain' } });
});

test('a job is received with the first renewal, and ends with the event of its plan', async () => {
  await start();
  const agent = await online();
  const job = azure.queue(pool, { script: 'nvidia-smi' });
  expect(job.view().state).toBe('assigned');
  const taken = await agent.take();
  expect(taken.script).toBe('nvidia-smi');
  expect(job.view().state).toBe('running');
  await agent.feed(taken, ['one', 'two']);
  await agent.complete(taken, 'succeeded');
  await expect(job.finished).resolves.toEqual({ result: 'succeeded', log: 'one\ntwo\n' });
  await expect(agent.renew(job.requestId)).rejects.toThrow(/^400 .*TaskAgentJobTokenExpiredException/);
});

test('an agent that says it leaves gets no other job, one that does not gets it', async () => {
  await start();
  const agent = await online();
  const jobs = [azure.queue(pool), azure.queue(pool), azure.queue(pool)];
  await agent.complete(await agent.take(), 'succeeded', { leaving: false });
  expect(jobs[1]?.view().state).toBe('assigned');
  await agent.complete(await agent.take(), 'succeeded', { leaving: true });
  expect(jobs[2]?.view().state).toBe('waiting');
  await agent.close();
  await agent.open();
  expect(jobs[2]?.view().state).toBe('assigned');
});

test.each(['while-busy', 'at-end'] as const)('a second job can be given to an agent that wants one only: %s', async (when) => {
  await start();
  azure.faults.secondJob = when;
  const agent = await online();
  const [, second] = [azure.queue(pool), azure.queue(pool)];
  const taken = await agent.take();
  expect(second.view().state).toBe(when === 'while-busy' ? 'assigned' : 'waiting');
  await agent.complete(taken, 'succeeded', { leaving: true });
  expect(second.view()).toMatchObject({ state: 'assigned', agent: { name: 'one' } });
  await agent.close();
  // It stays with the agent that has gone, whose registration cannot be removed either.
  expect(second.view().state).toBe('assigned');
  expect((await asking(azure)('DELETE', agentPath(agent))).status).toBe(400);
});

test('a registration cannot be removed while it has a job, and can be after', async () => {
  await start({ statusCodes: { deleteRefused: 409 } });
  const agent = await online();
  azure.queue(pool);
  const taken = await agent.take();
  const refused = await asking(azure)('DELETE', agentPath(agent));
  expect(refused).toMatchObject({
    status: 409,
    json: { typeKey: 'TaskAgentJobStillRunningException', message: expect.stringContaining('running a job for pool gpu') },
  });
  await agent.complete(taken);
  expect((await asking(azure)('DELETE', agentPath(agent))).status).toBe(204);
  expect(azure.agents(pool)).toEqual([]);
});

test('a job whose lock is not renewed is abandoned, and one that is renewed is not', async () => {
  await start({ ...virtual, lockMs: 10 * MINUTE, sessionMs: 60 * MINUTE });
  const agent = await online();
  const job = azure.queue(pool);
  now += 9 * MINUTE;
  await agent.take();
  now += 9 * MINUTE;
  azure.sweep();
  expect(job.view().state).toBe('running');
  now += MINUTE;
  azure.sweep();
  expect(job.view()).toMatchObject({
    state: 'done',
    result: 'abandoned',
    statusMessage: expect.stringContaining('stopped hearing from agent one'),
  });
});

test.each([false, true])(
  'a job whose agent went before it received it waits again only if told so: %s',
  async (requeueUnreceived) => {
    await start({ ...virtual, requeueUnreceived });
    const agent = await online();
    const job = azure.queue(pool);
    await agent.close();
    azure.sweep();
    expect(job.view().state).toBe(requeueUnreceived ? 'waiting' : 'assigned');
  },
);

test('cancelling ends a job that waits, and tells the agent of one that runs', async () => {
  await start();
  const agent = await online();
  const [running, waiting] = [azure.queue(pool), azure.queue(pool)];
  const taken = await agent.take();
  azure.cancel(waiting.requestId);
  expect(waiting.view().result).toBe('canceled');
  azure.cancel(running.requestId);
  expect(await agent.poll()).toMatchObject({ type: 'JobCancellation', body: { jobId: taken.jobId, timeout: '00:05:00' } });
  expect(running.view().state).toBe('running');
  await agent.complete(taken, 'canceled');
  await expect(running.finished).resolves.toMatchObject({ result: 'canceled' });
});

test('the list of requests: what each variant shows, and what it leaves out', async () => {
  await start();
  await online();
  const values = async (query: string) =>
    (await asking(azure)('GET', `_apis/distributedtask/pools/${pool}/jobrequests${query}`)).list;
  azure.queue(pool, { demands: ['missing'] });
  for (let i = 0; i < 230; i++) azure.queue(pool, { name: `job ${i}` });
  const unfinished = await values('?completedRequestCount=0');
  expect(unfinished).toHaveLength(230);
  expect(unfinished[0]).toMatchObject({ jobName: 'job 0', reservedAgent: { name: 'one' }, assignTime: expect.any(String) });
  expect(unfinished[0]).not.toHaveProperty('receiveTime');
  expect(unfinished[0]).not.toHaveProperty('result');
  expect(unfinished[1]).toMatchObject({ matchedAgents: [{ name: 'one', status: 'online' }] });
  expect(await values('')).toHaveLength(231);
  const newest = await values('?$top=1000');
  expect(newest).toHaveLength(200);
  expect(newest[0]).toMatchObject({ jobName: 'job 229' });
  expect(newest[0]).not.toHaveProperty('matchedAgents');
});

test('the list of agents leaves out what was not asked for', async () => {
  await start();
  const agent = await online();
  azure.queue(pool);
  await agent.complete(await agent.take(), 'failed', { leaving: false });
  azure.queue(pool);
  const one = async (query: string) => (await asking(azure)('GET', `_apis/distributedtask/pools/${pool}/agents${query}`)).list[0];
  const plain = await one('');
  for (const name of ['systemCapabilities', 'userCapabilities', 'assignedRequest', 'lastCompletedRequest'])
    expect(plain).not.toHaveProperty(name);
  expect(await one('?INCLUDEassignedRequest=True')).toMatchObject({ status: 'online', assignedRequest: { jobName: 'Job' } });
  expect(await one('?includeLastCompletedRequest=true')).toMatchObject({ lastCompletedRequest: { result: 'failed' } });
});

test('a registration must carry a key of the right size, and the id when it is changed', async () => {
  await start();
  const ask = asking(azure);
  const path = `_apis/distributedtask/pools/${pool}/agents`;
  const short = { publicKey: { exponent: 'AQAB', modulus: Buffer.alloc(255, 7).toString('base64') } };
  expect((await ask('POST', path, registration('one', { authorization: short }))).status).toBe(400);
  expect((await ask('POST', path, registration('one'))).json).toMatchObject({
    properties: { ServerUrl: { $type: 'System.String', $value: `${azure.url}/` } },
  });
  const id = azure.agents(pool)[0]?.id;
  expect((await ask('PATCH', `${path}/${id}`, { enabled: false })).status).toBe(400);
});
