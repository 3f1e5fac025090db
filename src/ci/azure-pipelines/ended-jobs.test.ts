/** Whose fault the end of a failed job was, as the timeline of its build shows it. */
import { describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { worlds } from '../../../test/kit/azure-service.ts';
import { stepsOf } from '../../../test/standins/azure-devops/job-message.ts';
import type { Scope } from '../../../test/standins/azure-devops/standin.ts';
import { endIn } from './job-end.ts';
import { timeline } from './wire.ts';

const open = worlds();
const route = 'builds/{buildId}/timeline';
const step = stepsOf({ script: '' })[0]?.id ?? '';

type Record = Readonly<globalThis.Record<string, unknown>>;
const task = (name: string, result: string, more: Record = {}): Record => ({
  id: `${name}-record`,
  type: 'Task',
  name,
  state: 'completed',
  result,
  ...more,
});
const script = (result: string): Record => task('Command Line', result, { id: step });
const begun = task('Initialize job', 'succeeded', { refName: 'JobExtension_Init' });

/** An agent with a job, and a manager whose token has these scopes. */
async function busy(scopes: readonly Scope[] = ['agentpools_manage', 'build']) {
  const { world, one, agent } = await open.online({ pat: { scopes } });
  const queued = world.azure.queue(world.pool, { name: 'test' });
  const job = await agent.take();
  await one.watch();
  const id = `azure-${queued.requestId}`;
  return {
    world,
    one,
    row: () => one.store.serviceJobs.get(id),
    verdict: () => one.store.outcomes.get(id)?.verdict,
    /** What its agent says of the job, and how it ends it; its sandbox is gone then. When that was. */
    async end(records: readonly Record[], result = 'failed', its: Record = {}) {
      const own = { id: job.jobId, type: 'Job', name: 'test', state: 'completed', result };
      await agent.report(job, [{ ...own, ...its }, ...records.map((record) => ({ parentId: job.jobId, ...record }))]);
      await agent.complete(job, result);
      const ended = world.clock.wall();
      await one.end('a1');
      return ended;
    },
  };
}

it('a job whose script failed is its own code', async () => {
  const one = await busy();
  const ended = await one.end([begun, script('failed')]);
  expect(one.row()).toMatchObject({ result: 'failed', outcome: 'failed', failedIn: 'script', note: null, endedAt: ended });
  expect(one.verdict()).toMatchObject({ kind: 'code' });
  expect(one.world.asked(0, route)).toBe(1);
});

it.each([
  ['its containers could not start', task('Initialize containers', 'failed'), /an Engine, and sandboxes have none: name the image/],
  ['its agent could not begin', task('Initialize job', 'failed'), /"Initialize job", which is not a step of its script/],
  [
    'its repository could not be fetched',
    task('Checkout acme/app@main to s', 'failed', {
      task: { id: '6d15af64-176c-496d-b583-fd2ae21d4df4', name: 'Checkout', version: '1.0.0' },
    }),
    /"Checkout acme\/app@main to s"/,
  ],
])('a job is not to blame when %s', async (_, record, note) => {
  const one = await busy();
  const issues = [{ type: 'error', message: 'it could not be done' }];
  await one.end([{ ...record, issues }, script('skipped')]);
  expect(one.row()).toMatchObject({ outcome: 'failed', failedIn: 'runner', note: expect.stringMatching(note) });
  expect(one.row()?.note).toContain('it could not be done');
  expect(one.verdict()).toMatchObject({ kind: 'unknown', why: expect.stringContaining('outside of its script') });
});

it('a job without a failed step is not to blame, and what Azure Pipelines says of it is told', async () => {
  const one = await busy();
  await one.end([begun], 'failed', { issues: [{ type: 'error', message: 'The agent process ended' }] });
  expect(one.row()?.note).toBe('No step of its pipeline failed, as Azure Pipelines shows it: The agent process ended.');
  expect(one.verdict()?.kind).toBe('unknown');
});

it('nothing is asked of a job that passed or was cancelled', async () => {
  const one = await busy();
  await one.end([begun, script('canceled')], 'canceled');
  await one.world.pass(120_000);
  expect(one.row()).toMatchObject({ result: 'canceled', outcome: 'cancelled', failedIn: null, note: null });
  expect(one.world.asked(0, route)).toBe(0);
});

it('without the right to read builds the verdict is unknown; it says which right is missing, and so does doctor', async () => {
  const one = await busy(['agentpools_manage']);
  await one.end([begun, script('failed')]);
  await one.world.pass(120_000);
  expect(one.row()).toMatchObject({ failedIn: null, note: expect.stringMatching(/shows no steps.*scope Build \(Read\)\.$/) });
  expect(one.verdict()).toMatchObject({ kind: 'unknown', why: expect.stringContaining('nobody says whether its script failed') });
  expect(one.world.asked(0, route)).toBeLessThanOrEqual(1);
  const said = (await one.one.service.check(patient)).map(({ message }) => message).join('\n');
  expect(said).toContain('does not know whether the script of a failed job failed');
});

it.each(['broken', 'garbage', 'reset'] as const)(
  'an answer that is %s leaves the verdict unknown, and is asked for a few times',
  async (kind) => {
    const one = await busy();
    one.world.azure.faults.add({ kind }, { route });
    await one.end([begun, script('failed')]);
    await one.world.pass(120_000);
    expect(one.row()).toMatchObject({ result: 'failed', failedIn: null, note: expect.stringContaining('shows no steps') });
    expect(one.verdict()?.kind).toBe('unknown');
    expect(one.world.asked(0, route)).toBe(4);
  },
);

it('a service that knows the steps later than the end is asked again', async () => {
  const one = await busy();
  one.world.azure.faults.add({ kind: 'broken' }, { route, times: 2 });
  await one.end([begun, script('failed')]);
  expect(one.verdict()?.kind).toBe('unknown');
  await one.world.pass(60_000);
  expect(one.row()).toMatchObject({ failedIn: 'script', note: null });
  expect(one.verdict()?.kind).toBe('code');
});

describe('the timeline', () => {
  const read = (records: readonly Record[]) => endIn(timeline.parse({ records }), 'J');
  const job = (more: Record = {}): Record => ({
    id: 'j',
    type: 'Job',
    name: 'test',
    state: 'completed',
    result: 'failed',
    ...more,
  });
  const own = { parentId: 'J', task: { id: 'x', name: 'CmdLine' } };

  it('says nothing of a job that it does not show, or not to its end', () => {
    expect(read([])).toBeNull();
    expect(read([job({ state: 'inProgress' }), task('make', 'failed', own)])).toBeNull();
  });
  it('a failed step of another job of the build says nothing of this one', () => {
    expect(read([job(), task('make', 'failed', { ...own, parentId: 'k' })])).toMatchObject({ failedIn: 'runner' });
  });
  it('a lost agent is not the fault of the step that it was at', () => {
    const message = 'We stopped hearing from agent gpu-0. Verify the agent machine is running';
    const end = read([job({ issues: [{ type: 'error', message }] }), task('make', 'failed', own)]);
    expect(end).toEqual({ failedIn: 'runner', note: `Azure Pipelines lost its agent: ${message}.` });
  });
  it('a record that cannot be read is not an answer', () => {
    expect(timeline.safeParse({ records: [{ name: 'x' }] }).success).toBe(false);
    expect(timeline.safeParse({ records: null }).success).toBe(false);
  });
});
