/** What people do to a pool of Azure Pipelines: pause, drain, stop in every way, run two onejobs on it, and leave for good. */
import { describe, expect, test } from 'vitest';
import { type AzureBench, azureBench, expectClean, isPlaceholder, untilIdle, untilRunning, works } from '../support/azure.ts';
import { slotOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const laneOf = async (here: Home) => (await slotOf(here, 'ci/1')).agent.state;

/** Names of those that are online. */
function online({ azure, pool }: AzureBench): string[] {
  return azure
    .agents(pool)
    .filter((agent) => agent.online)
    .map(({ name }) => name);
}

async function down(here: Home, ...flags: string[]): Promise<void> {
  const { code, stderr } = await here.cli(['down', ...flags]).ended;
  expect(code, stderr).toBe(0);
}

describe.skipIf(lacks('docker'))('a pool of Azure Pipelines', () => {
  test('is paused: its idle agent goes, jobs wait without failing; resumed, they run. Drained: the running job ends first', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await untilIdle(bench);
    expect((await here.cli(['pause', 'ci']).ended).code).toBe(0);
    await expect.poll(() => online(bench)).toEqual([]);
    const waits = azure.queue(pool, { script: 'echo waited' });
    await expect.poll(() => laneOf(here)).toBe('free');
    expect(waits.view().state).toBe('waiting');
    expect((await here.cli(['resume', 'ci']).ended).code).toBe(0);
    expect((await waits.finished).result).toBe('succeeded');

    const runs = bench.hold('drained');
    await untilRunning(runs);
    expect((await here.cli(['drain', 'ci']).ended).code).toBe(0);
    const later = azure.queue(pool, { script: 'echo later' });
    // The standby goes with its registration; the one that works stays.
    await expect.poll(() => bench.left()).toEqual([runs.view().agent?.name]);
    bench.go('drained');
    expect((await runs.finished).result).toBe('succeeded');
    await expect.poll(() => bench.left()).toEqual([]);
    expect(later.view().state).toBe('waiting');
    await here.api.resume(null, 'person');
    expect((await later.finished).result).toBe('succeeded');
    await daemon.stop();
    expectClean(bench);
  });

  test('is stopped with an idle agent, with a job that is ended, and with one that is waited for', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob({ config: bench.config() });
    await here.up();
    await untilIdle(bench);
    await down(here);
    expect(bench.left()).toEqual([]);

    // Nobody is there, and a job that comes now waits for the next start.
    const ended = bench.hold('ended');
    await here.up();
    await untilRunning(ended);
    await down(here);
    expect((await ended.finished).result).toBe('canceled');
    expect(bench.left()).toEqual([]);

    await here.up();
    const drained = bench.hold('drained');
    await untilRunning(drained);
    const stopping = down(here, '--drain');
    const next = azure.queue(pool, { script: 'echo next' });
    await expect.poll(async () => (await here.api.status()).stopping).toBe(true);
    await expect.poll(() => bench.left()).toEqual([drained.view().agent?.name]);
    bench.go('drained');
    await stopping;
    expect((await drained.finished).result).toBe('succeeded');
    expect(bench.left()).toEqual([]);
    expect(next.view().state).toBe('waiting');
    const daemon = await here.up();
    expect((await next.finished).result).toBe('succeeded');
    await daemon.stop();
    expectClean(bench);
  });

  test('is stopped while a job is on its way to an idle agent: the job is reported as cancelled, not lost until its lock runs out', async () => {
    await using bench = await azureBench();
    const { azure } = bench;
    azure.faults.add({ kind: 'delay', ms: 1_000 }, { method: 'GET', route: 'messages' });
    await using here = await onejob({ config: bench.config() });
    await here.up();
    await untilIdle(bench);
    await expect.poll(() => laneOf(here)).toBe('idle');
    const given = bench.hold('on its way');
    expect(given.view().state).toBe('assigned');
    await down(here);
    expect((await given.finished).result).toBe('canceled');
    expectClean(bench);
  });

  test('is left with its agents, or killed: the next onejob takes over the job that runs, and the agent that waits', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob({ config: bench.config() });
    const first = await here.up();
    await untilIdle(bench);
    const [idle = ''] = online(bench);
    await expect.poll(() => laneOf(here)).toBe('idle');
    await first.kill();
    const second = await here.up();
    await expect.poll(() => laneOf(here)).toBe('idle');
    const job = bench.hold('adopted');
    await untilRunning(job);
    expect(job.view().agent?.name).toBe(idle);
    await expect.poll(() => laneOf(here)).toBe('busy');
    await down(here, '--leave');
    await second.child.ended;
    const third = await here.up();
    expect(await slotOf(here, 'ci/1')).toMatchObject({ agent: { state: 'busy', job: `azure-${job.requestId}` } });
    await third.kill();
    // It ends while nobody looks.
    bench.go('adopted');
    expect((await job.finished).result).toBe('succeeded');
    const fourth = await here.up();
    await works(bench);
    await expect.poll(() => bench.left()).not.toContain(idle);
    expect(azure.requests(pool)).toHaveLength(2);
    await fourth.stop();
    expectClean(bench);
  });

  test('serves two onejobs: neither touches what the other has, and one that leaves for good takes only its own', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using one = await onejob({ config: bench.config() });
    await using two = await onejob({ config: bench.config() });
    const [first, second] = [await one.up(), await two.up()];
    await untilIdle(bench, 2);
    const jobs = Array.from({ length: 6 }, (_, n) => azure.queue(pool, { script: `echo ${n}` }));
    const results = await Promise.all(jobs.map(({ finished }) => finished));
    expect(results.map(({ result }) => result)).toEqual(jobs.map(() => 'succeeded'));
    await untilIdle(bench, 2);
    const placeholders = () => azure.agents(pool).filter(({ name }) => isPlaceholder(name));
    expect(placeholders()).toHaveLength(2);
    await first.kill();
    await second.stop();
    // The other's are all still there, though nobody looks after them.
    const [owner = ''] = bench.left().map((name) => name.split('-').at(-2) ?? '');
    expect(bench.left().every((name) => name.includes(`-${owner}-`))).toBe(true);
    expect(online(bench)).toHaveLength(1);
    const again = await two.up();
    await untilIdle(bench, 2);
    await down(two, '--forget');
    await again.child.ended;
    expect(online(bench)).toHaveLength(1);
    expect(placeholders().map(({ name }) => name.includes(owner))).toEqual([true]);
    await one.up();
    await works(bench);
    await down(one, '--forget');
    expect(azure.agents(pool)).toEqual([]);
  });
});
