/** The Stacks API: listed, reserved, acquired by token, ended without an agent. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { type Ask, asking, handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

let now = 1_800_000_000_000;
let bk: BuildkiteStandin;
let ask: Ask;
beforeEach(async () => {
  bk = await startBuildkite({ now: () => now });
  ask = asking(bk, bk.token);
  await ask('POST', 'stacks/register', { key: 'lab-host', type: 'custom', queue_key: 'gpu', metadata: {} });
});
afterEach(() => bk[Symbol.asyncDispose]());

const reserve = (ids: readonly string[], seconds = 60) =>
  ask('PUT', 'stacks/lab-host/scheduled-jobs/batch-reserve', { job_uuids: ids, reservation_expiry_seconds: seconds });
const tokenFor = async (id: string, seconds = 60): Promise<string> => {
  const { json } = await ask('POST', 'stacks/lab-host/job-acquisition-tokens', {
    job_uuids: [id],
    token_lifetime_seconds: seconds,
  });
  return (
    z.array(z.object({ job_acquisition_token: z.string() })).parse(json.job_acquisition_tokens)[0]?.job_acquisition_token ?? ''
  );
};

test('a stack registers, again, and leaves', async () => {
  const about = { key: 'other', type: 'custom', queue_key: '__default__', metadata: { host: 'a' } };
  expect(await ask('POST', 'stacks/register', about)).toMatchObject({ status: 201, json: { cluster_queue_key: 'default' } });
  expect((await ask('POST', 'stacks/register', about)).status).toBe(200);
  expect((await ask('POST', 'stacks/other/deregister')).status).toBe(204);
  expect((await ask('GET', 'stacks/other/scheduled-jobs')).status).toBe(404);
  expect((await ask('POST', 'stacks/register', { ...about, key: 'a/b' })).status).toBe(422);
  expect((await asking(bk, bk.metricsToken)('POST', 'stacks/register', about)).status).toBe(403);
});

test('jobs are listed page by page, without those that are reserved', async () => {
  const ids = [1, 2, 3].map((priority) => bk.queueJob({ queue: 'gpu', priority, rules: ['gpu=a100'], pipeline: 'things' }));
  bk.queueJob();
  const page = z.object({
    jobs: z.array(z.object({ id: z.string() })),
    page_info: z.object({ has_next_page: z.boolean(), end_cursor: z.string().nullable() }),
  });
  const first = await ask('GET', 'stacks/lab-host/scheduled-jobs?queue_key=gpu&limit=2');
  expect(first.json.jobs).toMatchObject([
    { id: ids[0], priority: 1, agent_query_rules: ['queue=gpu', 'gpu=a100'], pipeline: { slug: 'things' } },
    { id: ids[1] },
  ]);
  const { page_info } = page.parse(first.json);
  expect(page_info.has_next_page).toBe(true);
  await reserve([ids[1] ?? '']);
  const next = await ask('GET', `stacks/lab-host/scheduled-jobs?queue_key=gpu&after=${page_info.end_cursor}`);
  expect(next.json).toMatchObject({ jobs: [{ id: ids[2] }], page_info: { has_next_page: false } });
  bk.pauseQueue('gpu', true);
  expect((await ask('GET', 'stacks/lab-host/scheduled-jobs?queue_key=gpu')).json).toMatchObject({
    jobs: [{ id: ids[0] }, { id: ids[2] }],
    cluster_queue: { dispatch_paused: true },
  });
});

test('a reserved job goes to nobody else until the reservation runs out, which the same stack can put off', async () => {
  const id = bk.queueJob({ queue: 'gpu' });
  expect((await reserve([id, 'nonsense'])).json).toEqual({ reserved: [id], not_reserved: ['nonsense'] });
  await ask('POST', 'stacks/register', { key: 'rival', type: 'custom', queue_key: 'gpu', metadata: {} });
  const rival = await ask('PUT', 'stacks/rival/scheduled-jobs/batch-reserve', { job_uuids: [id] });
  expect(rival.json).toEqual({ reserved: [], not_reserved: [id] });
  const agent = await handAgent(bk, 'one', { tags: ['queue=gpu'] });
  expect(await agent.ping()).toBeNull();
  now += 50_000;
  await reserve([id]);
  now += 50_000;
  expect(await agent.ping()).toBeNull();
  now += 10_000;
  expect(await agent.ping()).toBe(id);
});

test('an acquisition token registers an agent for that job, and for nothing else', async () => {
  const [id, other] = [bk.queueJob({ queue: 'gpu' }), bk.queueJob({ queue: 'gpu' })];
  expect((await ask('GET', `stacks/lab-host/jobs/${id}`)).json).toMatchObject({ id, command: 'echo hello' });
  expect(await tokenFor(id)).toBe('');
  await reserve([id, other]);
  const token = await tokenFor(id);
  expect(token).toMatch(/^bkjat_/);
  expect((await asking(bk, token)('GET', 'metrics')).status).toBe(401);
  const agent = await handAgent(bk, 'one', { token });
  expect(bk.agents()).toMatchObject([{ token: 'acquisition', ignored: true }]);
  await expect(agent.acquire(other)).rejects.toThrow('403');
  const job = await agent.acquire(id);
  await expect(agent.acquire(id)).rejects.toThrow('422');
  await job.finish();
  expect((await ask('POST', 'stacks/lab-host/jobs/get-states', { job_uuids: [id, other, 'x'] })).json).toEqual({
    states: { [id]: 'finished', [other]: 'reserved' },
  });
});

test('an acquisition token runs out, at the latest with its reservation', async () => {
  const id = bk.queueJob({ queue: 'gpu' });
  await reserve([id], 30);
  const token = await tokenFor(id, 900);
  now += 30_000;
  await expect(handAgent(bk, 'one', { token })).rejects.toThrow('401');
});

test('acquire waits for dependencies, and refuses what is over; where it is asked for, a reservation needs its token', async () => {
  const agent = await handAgent(bk, 'one', { ignoreInDispatches: true });
  const waiting = bk.queueJob({ waiting: true });
  await expect(agent.acquire(waiting)).rejects.toThrow('423');
  bk.cancel(waiting);
  await expect(agent.acquire(waiting)).rejects.toThrow('422');
  const id = bk.queueJob({ queue: 'gpu' });
  await reserve([id]);
  expect((await agent.acquire(id)).id).toBe(id);
  await using strict = await startBuildkite({ reservedNeedsToken: true });
  const stack = asking(strict, strict.token);
  await stack('POST', 'stacks/register', { key: 's', type: 'custom', queue_key: 'default', metadata: {} });
  const held = strict.queueJob();
  await stack('PUT', 'stacks/s/scheduled-jobs/batch-reserve', { job_uuids: [held] });
  await expect((await handAgent(strict, 'two')).acquire(held)).rejects.toThrow('423');
});

test('a stack ends a job that it cannot start, and tells people why others wait', async () => {
  const id = bk.queueJob({ queue: 'gpu' });
  await reserve([id]);
  const told = await ask('POST', 'stacks/lab-host/notifications', {
    notifications: [
      { job_uuid: id, detail: 'waits for a GPU' },
      { job_uuid: 'nonsense', detail: 'x' },
      { job_uuid: id, detail: 'x'.repeat(257) },
    ],
  });
  expect(told.json.errors).toMatchObject([{ indexes: [1] }, { indexes: [2] }]);
  expect((await ask('POST', `stacks/lab-host/jobs/${id}/finish`, { detail: 'No such image' })).status).toBe(200);
  expect(await bk.jobEnded(id)).toMatchObject({
    exit: -1,
    signalReason: 'stack_error',
    detail: 'No such image',
    notifications: ['waits for a GPU'],
  });
  expect((await ask('POST', `stacks/lab-host/jobs/${id}/finish`, {})).status).toBe(422);
});

test('too many requests of one kind in a second are refused, with what was too much', async () => {
  const answers = [];
  for (let i = 0; i < 11; i++) answers.push(await ask('GET', 'stacks/lab-host/scheduled-jobs'));
  expect(answers[0]?.headers.get('ratelimit-remaining')).toBe('9');
  expect(answers.map(({ status }) => status)).toEqual([...Array(10).fill(200), 429]);
  expect(answers[10]?.json).toMatchObject({ scope: 'list', limit: 10, current: 11, reset: 1 });
  now += 1000;
  expect((await ask('GET', 'stacks/lab-host/scheduled-jobs')).status).toBe(200);
});
