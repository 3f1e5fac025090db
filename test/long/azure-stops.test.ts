/**
 * A pool of Azure Pipelines with more than one manager: one after the other on the same real containers, and two side by side. How it
 * is paused, drained and stopped at every moment is the simulator's, in its scenario azure-stops.
 */
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
