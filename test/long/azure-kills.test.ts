/**
 * S3, S4 and S5 with agents that must be online to be given a job: the manager is killed at every boundary of intent, effect and
 * record, and at random moments. Each job ends once and well, and nothing is left on either side but the placeholder.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Boundary } from '../../src/pools/executors.ts';
import { type AzureBench, azureBench, expectClean, isPlaceholder, untilIdle, untilRunning, works } from '../support/azure.ts';
import { slotOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const acts = ['prepare', 'register', 'release', 'retire', 'terminate', 'kill', 'settle', 'clear'] as const;

/** Makes the doomed manager come to the boundary; what it does before anybody asks for it needs nothing. */
async function provoke(bench: AzureBench, here: Home, boundary: Boundary): Promise<void> {
  const act = boundary.split('.')[0];
  if (act === 'retire' || act === 'terminate' || act === 'kill') {
    await untilIdle(bench);
    await expect.poll(async () => (await slotOf(here, 'ci/1')).agent.state, { interval: 20 }).toBe('idle');
    // It may be dead before it can answer.
    await here.api.pause('ci', 'test').catch(() => {});
  }
  if (act === 'settle' || act === 'clear') {
    await untilIdle(bench);
    const job = bench.hold('first');
    await untilRunning(job);
    await expect.poll(async () => (await slotOf(here, 'ci/1')).agent.state, { interval: 20 }).toBe('busy');
    bench.go('first');
    expect((await job.finished).result).toBe('succeeded');
  }
}

/** The whole story of one death: what was begun is finished or taken back by the next manager, and the one job ends well. */
async function killedAt(boundary: Boundary): Promise<void> {
  await using bench = await azureBench({ lockMs: 8_000 });
  const { azure, pool } = bench;
  const counts = begun(bench);
  const env = boundary.startsWith('kill') ? 'env: { STANDIN_AGENT: ignore-term }' : '';
  await using here = await onejob({ config: bench.config({ pool: env, grace: '2s' }) });
  const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
  await doomed.says(/onejob is up/);
  await Promise.race([provoke(bench, here, boundary), doomed.ended]);
  expect((await doomed.ended).signal, boundary).toBe('SIGKILL');
  // Where somebody has the placeholder already, a job may come while nobody is there.
  const meanwhile = azure.agents(pool).length > 0 ? bench.hold('meanwhile') : null;
  const daemon = await here.up();
  // What it was provoked with outlives it.
  await here.api.resume('ci', 'test');
  if (meanwhile === null) await untilIdle(bench);
  else {
    // It may have begun before, and is not to notice.
    await untilRunning(meanwhile);
    const busy = { state: 'busy', job: `azure-${meanwhile.requestId}` };
    await expect.poll(async () => (await slotOf(here, 'ci/1')).agent).toMatchObject(busy);
    bench.go('meanwhile');
    expect((await meanwhile.finished).result, boundary).toBe('succeeded');
  }
  await works(bench);
  expect(azure.agents(pool).filter(({ name }) => isPlaceholder(name))).toHaveLength(1);
  await daemon.stop();
  expect([...counts.values()].every((count) => count === 1)).toBe(true);
  expect(azure.requests(pool).map(({ result }) => result)).toEqual(azure.requests(pool).map(() => 'succeeded'));
  expectClean(bench);
  expect((await here.census()).left, boundary).toEqual([]);
}

/** How often each job was begun. */
function begun({ azure }: AzureBench): Map<number, number> {
  const counts = new Map<number, number>();
  azure.on((event) => {
    if (event.kind !== 'requestReceived') return;
    const { requestId } = event.request;
    counts.set(requestId, (counts.get(requestId) ?? 0) + 1);
  });
  return counts;
}

describe.skipIf(lacks('docker'))('the manager of a pool of Azure Pipelines', () => {
  // The three of one action at a time, each with a service and a home of its own: mostly they wait.
  test.each(acts)('killed before, while and after it does: %s', async (act) => {
    await Promise.all((['intent', 'effect', 'record'] as const).map((point) => killedAt(`${act}.${point}`)));
  });

  test('killed again and again for 40 s under a stream of jobs', async () => {
    await using bench = await azureBench({ lockMs: 20_000 });
    const { azure, pool } = bench;
    const counts = begun(bench);
    await using here = await onejob({ config: bench.config({ agents: 2 }) });
    let daemon = await here.up();
    await azure.next('agentAdded');
    const jobs = [];
    for (const until = Date.now() + 40_000; Date.now() < until; ) {
      const open = jobs.filter((job) => job.view().result === null).length;
      if (open < 4) jobs.push(azure.queue(pool, { script: `sleep ${(Math.random() * 0.5).toFixed(2)}; echo well` }));
      await sleep(Math.random() * 2_500);
      await daemon.kill();
      daemon = await here.up();
    }
    const results = await Promise.all(jobs.map(({ finished }) => finished));
    expect(results.map(({ result }) => result)).toEqual(jobs.map(() => 'succeeded'));
    expect([...counts.values()].filter((count) => count !== 1)).toEqual([]);
    expect(counts.size).toBe(jobs.length);
    await works(bench);
    await daemon.stop();
    expectClean(bench);
    expect((await here.census()).left).toEqual([]);
  });
});
