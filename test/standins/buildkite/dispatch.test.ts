/** Who gets which job, and what becomes of it when the agent goes away. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { asking, handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

let now = 1_800_000_000_000;
let bk: BuildkiteStandin;
beforeEach(async () => {
  bk = await startBuildkite({ now: () => now, lostMs: 180_000 });
});
afterEach(() => bk[Symbol.asyncDispose]());

test('a job goes through an agent and leaves nothing behind', async () => {
  const agent = await handAgent(bk, 'one');
  expect(await agent.ping()).toBeNull();
  const id = bk.queueJob({ command: 'true', env: { EXTRA: '1' }, pipeline: 'things', branch: 'work', pullRequest: 7 });
  expect(await agent.ping()).toBe(id);
  const job = await agent.accept(id);
  expect(job.env).toMatchObject({
    EXTRA: '1',
    BUILDKITE_COMMAND: 'true',
    BUILDKITE_SKIP_CHECKOUT: 'true',
    BUILDKITE_PIPELINE_SLUG: 'things',
    BUILDKITE_BRANCH: 'work',
    BUILDKITE_PULL_REQUEST: '7',
    BUILDKITE_PULL_REQUEST_REPO: 'https://git.example.org/acme/things.git',
    BUILDKITE_AGENT_NAME: 'one',
  });
  expect(await agent.ping()).toBeNull();
  await job.start();
  expect((await job.ask('GET', `jobs/${id}`)).json).toEqual({ state: 'running' });
  await job.log('hello\n', { sequence: 1, offset: 0 });
  await job.finish(3);
  expect(await bk.jobEnded(id)).toMatchObject({ state: 'finished', exit: 3, log: 'hello\n', agent: { name: 'one' } });
  expect(bk.agents()).toMatchObject([{ name: 'one', state: 'idle', job: null }]);
  expect(bk.census()).toEqual({ agents: ['one'], jobs: [] });
  await agent.disconnect();
  expect(bk.census()).toEqual({ agents: [], jobs: [] });
});

test.each([
  { tags: [], queue: undefined, rules: [], fits: true },
  { tags: ['queue=gpu'], queue: undefined, rules: [], fits: false },
  { tags: ['queue=gpu'], queue: 'gpu', rules: [], fits: true },
  { tags: ['queue=gpu', 'gpu=a100', 'gpu=a100-mig'], queue: 'gpu', rules: ['gpu=a100-mig'], fits: true },
  { tags: ['queue=gpu', 'gpu=a100'], queue: 'gpu', rules: ['gpu=h100'], fits: false },
  { tags: ['queue=gpu', 'cuda=12'], queue: 'gpu', rules: ['cuda=*'], fits: true },
  { tags: ['queue=gpu'], queue: 'gpu', rules: ['cuda=*'], fits: false },
  { tags: ['queue=gpu', 'big'], queue: 'gpu', rules: ['big=true'], fits: true },
])('an agent with $tags gets a job of $queue with $rules: $fits', async ({ tags, queue, rules, fits }) => {
  const agent = await handAgent(bk, 'one', { tags });
  const id = bk.queueJob({ rules, ...(queue === undefined ? {} : { queue }) });
  expect(await agent.ping()).toBe(fits ? id : null);
});

test('jobs of higher priority come first, then the older; agents of higher priority are asked first, those without last', async () => {
  const [low, old, young] = [bk.queueJob({ priority: -1 }), bk.queueJob(), bk.queueJob()];
  const first = await handAgent(bk, 'first');
  expect(await first.ping()).toBe(old);
  const second = await handAgent(bk, 'second');
  expect(await second.ping()).toBe(young);
  const third = await handAgent(bk, 'third');
  expect(await third.ping()).toBe(low);
  await handAgent(bk, 'none');
  await handAgent(bk, 'zero', { priority: 0 });
  await handAgent(bk, 'nine', { priority: 9 });
  const names = [1, 2, 3].map(() => bk.job(bk.queueJob()).agent?.name);
  expect(names).toEqual(['nine', 'zero', 'none']);
});

test('of equal agents the one whose job passed last is asked first', async () => {
  const agents = [await handAgent(bk, 'a'), await handAgent(bk, 'b')];
  const [a, b] = [bk.queueJob(), bk.queueJob()];
  const jobs = [await agents[0]?.accept(a), await agents[1]?.accept(b)];
  await jobs[0]?.finish(1);
  now += 1000;
  await jobs[1]?.finish(0);
  expect(bk.job(bk.queueJob()).agent?.name).toBe('b');
});

test('what an agent had not accepted goes to another when it leaves, and what it had is over', async () => {
  const leaving = await handAgent(bk, 'leaving');
  const id = bk.queueJob();
  await leaving.disconnect();
  expect(bk.job(id)).toMatchObject({ state: 'scheduled', agent: null });
  const next = await handAgent(bk, 'next');
  const job = await next.accept(id);
  await job.start();
  await next.disconnect();
  expect(bk.job(id)).toMatchObject({ state: 'finished', exit: -1, signalReason: 'agent_disconnected', assignments: 2 });
  expect((await job.ask('GET', `jobs/${id}`)).status).toBe(401);
});

test('three minutes without a heartbeat lose an agent with its job; pings do not help', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  now += 179_000;
  await agent.heartbeat();
  now += 180_000;
  await agent.ping();
  expect(bk.agents()).toMatchObject([{ state: 'busy' }]);
  now += 1;
  bk.sweep();
  expect(bk.agents()).toMatchObject([{ state: 'lost' }]);
  expect(await bk.jobEnded(job.id)).toMatchObject({ exit: -1, signalReason: 'agent_lost' });
  expect((await agent.heartbeat()).status).toBe(401);
});

test('an agent that says so gets no further job', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  bk.queueJob();
  await job.finish(0, { ignore_agent_in_dispatches: true });
  expect(await agent.ping()).toBeNull();
  const never = await handAgent(bk, 'never', { ignoreInDispatches: true });
  expect(await never.ping()).toBeNull();
});

test('a cancelled job ends at once while nobody has it, and else when its agent says so', async () => {
  const id = bk.queueJob();
  bk.cancel(id);
  expect(bk.job(id)).toMatchObject({ state: 'canceled', exit: -1 });
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  await job.start();
  bk.cancel(job.id);
  expect((await job.ask('GET', `jobs/${job.id}`)).json).toEqual({ state: 'canceling' });
  await job.finish(-1, { signal: 'SIGTERM', signal_reason: 'cancel' });
  expect(bk.job(job.id)).toMatchObject({ state: 'canceled', exit: -1, signal: 'SIGTERM', signalReason: 'cancel' });
});

test('an agent that a person pauses or stops is told with its next ping, and gets nothing', async () => {
  const agent = await handAgent(bk, 'one');
  bk.pauseAgent('one', 'lunch');
  const id = bk.queueJob();
  expect((await agent.ask('GET', 'ping')).json).toEqual({ action: 'pause', message: 'lunch' });
  bk.resumeAgent('one');
  expect(await agent.ping()).toBe(id);
  await (await agent.accept(id)).finish();
  bk.stopAgent('one');
  expect((await agent.ask('GET', 'ping')).json).toMatchObject({ action: 'disconnect' });
});

test('nothing is dispatched from a paused queue, and nothing that waits for something else', async () => {
  const agent = await handAgent(bk, 'one');
  bk.pauseQueue('default', true);
  const id = bk.queueJob({ waiting: true });
  bk.pauseQueue('default', false);
  expect(await agent.ping()).toBeNull();
  bk.release(id);
  expect(await agent.ping()).toBe(id);
});

test('counts are told per queue, with how often one may ask', async () => {
  const agent = await handAgent(bk, 'one', { tags: ['queue=gpu'] });
  await handAgent(bk, 'two', { tags: ['queue=gpu'], ignoreInDispatches: true });
  await agent.accept(bk.queueJob({ queue: 'gpu' }));
  bk.queueJob({ queue: 'gpu' });
  bk.queueJob({ queue: 'gpu', waiting: true });
  bk.queueJob();
  const { json, headers } = await asking(bk, bk.metricsToken)('GET', 'metrics');
  const gpu = { scheduled: 1, running: 1, waiting: 1, total: 3 };
  expect(json).toMatchObject({
    agents: { total: 2, idle: 1, busy: 1, queues: { gpu: { idle: 1, busy: 1, total: 2 }, default: { total: 0 } } },
    jobs: { scheduled: 2, running: 1, waiting: 1, total: 4, queues: { gpu, default: { scheduled: 1 } } },
    organization: { slug: 'acme' },
    cluster: { name: 'Lab' },
  });
  expect(headers.get('buildkite-agent-metrics-poll-duration')).toBe('10');
  expect((await asking(bk, bk.metricsToken)('GET', 'metrics/queue?name=gpu')).json).toMatchObject({ jobs: gpu });
});
