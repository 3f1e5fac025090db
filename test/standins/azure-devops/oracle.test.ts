/** Microsoft's own client drives the stand-in: what it cannot use is not faithful. */
import { Readable } from 'node:stream';
import { getBearerHandler, getPersonalAccessTokenHandler, WebApi } from 'azure-devops-node-api';
import * as Wire from 'azure-devops-node-api/interfaces/TaskAgentInterfaces.js';
import { afterEach, expect, test } from 'vitest';
import { type HandAgent, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

let azure: AzureDevOps;
afterEach(() => azure[Symbol.asyncDispose]());

const styles = [
  ['hosted', {}],
  ['on-premises', { collectionPath: 'tfs/Default Collection' }],
] as const;
const options = { allowRetries: false, maxRetries: 0 };
const asManager = () => new WebApi(azure.url, getPersonalAccessTokenHandler(azure.pat), options);
const asBearer = (token: string) => new WebApi(azure.url, getBearerHandler(token), options);
// Key parts are typed as numbers, and travel as base64.
const registration = (name: string): Wire.TaskAgent =>
  ({
    name,
    version: '5.278.0',
    osDescription: 'Linux',
    maxParallelism: 1,
    provisioningState: 'Provisioned',
    systemCapabilities: { 'Agent.Version': '5.278.0' },
    authorization: { publicKey: { exponent: 'AQAB', modulus: Buffer.alloc(256, 7).toString('base64') } },
  }) as unknown as Wire.TaskAgent;

test.each(styles)('the client finds pools, %s', async (_style, style) => {
  azure = await startAzureDevOps(style);
  const pool = azure.addPool('gpu pool', { autoUpdate: false });
  const api = await asManager().getTaskAgentApi();
  expect(await api.getAgentPools('GPU POOL', undefined, Wire.TaskAgentPoolType.Automation)).toMatchObject([
    { id: pool, name: 'gpu pool', autoUpdate: false, isHosted: false },
  ]);
  expect(await api.getAgentPools('missing')).toEqual([]);
  expect((await api.getAgentPools()).map((each) => each.name)).toEqual(['Default', 'Azure Pipelines', 'gpu pool']);
});

test.each(styles)('the client registers, finds, replaces, changes and removes agents, %s', async (_style, style) => {
  azure = await startAzureDevOps(style);
  const pool = azure.addPool('gpu');
  const api = await asManager().getTaskAgentApi();
  const made = await api.addAgent(registration('one'), pool);
  expect(made).toMatchObject({ name: 'one', status: Wire.TaskAgentStatus.Offline, enabled: true });
  expect(made.authorization).toMatchObject({
    clientId: expect.any(String),
    authorizationUrl: expect.stringContaining('/_apis/oauth2/token'),
  });
  const id = made.id ?? 0;
  await expect(api.addAgent(registration('ONE'), pool)).rejects.toMatchObject({
    statusCode: 409,
    message: expect.stringContaining('already contains'),
  });

  expect((await api.updateAgentUserCapabilities({ cuda: '12.4' }, pool, id)).userCapabilities).toEqual({ cuda: '12.4' });
  expect(await api.getAgents(pool, 'one')).toEqual([expect.not.objectContaining({ systemCapabilities: expect.anything() })]);
  expect(await api.getAgents(pool, 'one', true)).toMatchObject([
    { userCapabilities: { cuda: '12.4' }, systemCapabilities: { 'Agent.Version': '5.278.0' } },
  ]);

  const replaced = await api.replaceAgent({ ...registration('one'), id }, pool, id);
  expect(replaced.authorization?.clientId).not.toBe(made.authorization?.clientId);
  expect((await api.getAgent(pool, id, true)).userCapabilities).toEqual({ cuda: '12.4' });
  expect((await api.updateAgent({ id, enabled: false } as Wire.TaskAgent, pool, id)).enabled).toBe(false);
  await api.deleteAgent(pool, id);
  expect(azure.agents(pool)).toEqual([]);
  // The client makes null of every 404.
  expect(await api.getAgent(pool, id)).toBeNull();
});

test('the client sees requests, and packages', async () => {
  azure = await startAzureDevOps();
  const pool = azure.addPool('gpu');
  const agent = await registerByHand(azure, pool, 'one', { capabilities: { cuda: '12' } });
  const api = await asManager().getTaskAgentApi();
  azure.queue(pool, { name: 'hopeless', demands: ['rocm'] });
  const waiting = azure.queue(pool, { name: 'train', demands: ['cuda', 'Agent.Version -gtVersion 2.182.1'] });
  // Nobody said Agent.Version at registration, so both failed at once.
  expect(waiting.view().failedAtQueue).toBe(true);
  const third = azure.queue(pool, { name: 'train', demands: ['cuda'] });

  const unfinished = await api.getAgentRequestsForAgents(pool, undefined, 0);
  expect(unfinished).toMatchObject([
    { requestId: third.requestId, jobName: 'train', matchedAgents: [{ id: agent.identity.agentId }], planType: 'Build' },
  ]);
  expect(unfinished[0]?.demands).toEqual(['cuda']);
  const [, failed] = await api.getAgentRequestsForAgents(pool, undefined, 2);
  expect(failed).toMatchObject({
    requestId: waiting.requestId,
    result: Wire.TaskResult.Failed,
    finishTime: expect.any(Date),
  });

  const packages = await api.getPackages('agent', 'linux-x64', 1);
  expect(packages).toMatchObject([
    { version: { major: 5, minor: 278, patch: 0 }, filename: 'vsts-agent-linux-x64-5.278.0.tar.gz', hashValue: expect.any(String) },
  ]);
});

async function online(): Promise<{ pool: number; agent: HandAgent; token: string }> {
  azure = await startAzureDevOps({ pollHoldMs: 50 });
  const pool = azure.addPool('gpu');
  const agent = await registerByHand(azure, pool, 'one');
  return { pool, agent, token: await agent.signIn() };
}

test('the client plays an agent: session, message, renewal, end, and leaves', async () => {
  const { pool, agent, token } = await online();
  const api = await asBearer(token).getTaskAgentApi();
  const about = { id: agent.identity.agentId, name: 'one', version: '5.278.0' };
  const open = () =>
    api.createAgentSession(
      { ownerName: 'oracle', agent: about, systemCapabilities: { bash: '/bin/bash' } } as unknown as Wire.TaskAgentSession,
      pool,
    );
  const session = await open();
  expect(session.encryptionKey).toMatchObject({ encrypted: true });
  await expect(open()).rejects.toMatchObject({ statusCode: 409 });
  const id = session.sessionId ?? '';
  const job = azure.queue(pool, { demands: ['bash'] });
  const message = await api.getMessage(pool, id);
  expect(message).toMatchObject({ messageType: 'PipelineAgentJobRequest', iv: expect.any(String) });
  expect((await api.getMessage(pool, id)).messageId).toBe(message.messageId);
  const renewed = await api.updateAgentRequest(
    { requestId: job.requestId } as Wire.TaskAgentJobRequest,
    pool,
    job.requestId,
    NO_LOCK,
  );
  expect(renewed.lockedUntil).toBeInstanceOf(Date);
  await api.deleteMessage(pool, message.messageId ?? 0, id);
  const end = { requestId: job.requestId, finishTime: new Date(), result: Wire.TaskResult.SucceededWithIssues };
  await api.updateAgentRequest(end as Wire.TaskAgentJobRequest, pool, job.requestId, NO_LOCK);
  await expect(job.finished).resolves.toMatchObject({ result: 'succeededWithIssues' });
  await api.deleteAgentSession(pool, id);
  expect(azure.agents(pool)[0]?.online).toBe(false);
  const seen = await (await asManager().getTaskAgentApi()).getAgents(pool, 'one', true, true);
  expect(seen[0]).toMatchObject({ systemCapabilities: { bash: '/bin/bash' } });
});
const NO_LOCK = '00000000-0000-0000-0000-000000000000';

test('the client fills timeline, feed and log with the token of the job, and reads the build', async () => {
  const { pool, agent } = await online();
  await agent.open();
  const about = { name: 'train', definition: 'nightly', repository: 'acme/models', branch: 'refs/pull/42/merge' };
  const queued = azure.queue(pool, about);
  const job = await agent.take();
  const { plan, timeline, resources } = job.message as {
    plan: { scopeIdentifier: string; planId: string };
    timeline: { id: string };
    resources: { endpoints: { authorization: { parameters: { AccessToken: string } } }[] };
  };
  const api = await asBearer(resources.endpoints[0]?.authorization.parameters.AccessToken ?? '').getTaskApi();
  const at = [plan.scopeIdentifier, 'build', plan.planId] as const;
  const record = { id: job.jobId, name: 'train', type: 'Job', state: 'inProgress' };
  await api.updateRecords({ count: 1, value: [record] } as never, ...at, timeline.id);
  expect((await api.getTimeline(...at, timeline.id, undefined, true)).records).toMatchObject([{ id: job.jobId, name: 'train' }]);
  await api.appendTimelineRecordFeed(
    { count: 2, value: ['first', 'second'], stepId: job.jobId } as never,
    ...at,
    timeline.id,
    job.jobId,
  );
  const log = await api.createLog({ path: 'logs\\1' } as never, ...at);
  await api.appendLogContent({}, Readable.from(['first\nsecond\n']), ...at, log.id ?? 0);
  expect(azure.lines(queued.requestId)).toEqual(['first', 'second']);

  const builds = await asManager().getBuildApi();
  const { buildId } = queued.view();
  const build = await builds.getBuild('demo', buildId);
  expect(build).toMatchObject({
    definition: { name: 'nightly' },
    repository: { name: 'acme/models' },
    sourceBranch: 'refs/pull/42/merge',
  });
  expect((await builds.getBuildTimeline('demo', buildId)).records).toHaveLength(1);
  await agent.complete(job, 'failed');
  await expect(queued.finished).resolves.toEqual({ result: 'failed', log: 'first\nsecond\n' });
});

test('a PAT on an agent route, and an agent on a manager route, are refused and recorded', async () => {
  const { pool, token } = await online();
  await expect((await asManager().getTaskAgentApi()).getMessage(pool, 'none')).rejects.toMatchObject({ statusCode: 403 });
  await expect((await asBearer(token).getTaskAgentApi()).getAgents(pool)).rejects.toMatchObject({ statusCode: 403 });
  expect(azure.log.filter((entry) => entry.status === 403)).toMatchObject([
    { route: 'messages', identity: 'pat' },
    { route: 'agents', identity: 'agent' },
  ]);
});
