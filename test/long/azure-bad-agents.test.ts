/** Agents of Azure Pipelines that come to a bad end, or to none: the job gets its result, the slot goes on, and nothing spins. */
import { describe, expect, test } from 'vitest';
import { azureBench, expectClean, troubleOf, untilIdle, untilRunning, works } from '../support/azure.ts';
import { azureImages } from '../support/azure-images.ts';
import { poolOf } from '../support/look.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** Agents that misbehave at their start: `says` is shown, and it waits longer each time. */
async function backsOff(how: string, says: RegExp, service = ''): Promise<void> {
  await using bench = await azureBench();
  const { azure } = bench;
  let added = 0;
  azure.on(({ kind }) => void (kind === 'agentAdded' && added++));
  await using here = await onejob({ config: bench.config({ pool: `env: { STANDIN_AGENT: "${how}" }`, service }) });
  const daemon = await here.up();
  await expect.poll(() => troubleOf(here), { timeout: 30_000 }).toMatch(says);
  // An agent that was seen online before it ended does not make the back-off begin anew.
  await expect.poll(async () => (await poolOf(here, 'ci')).backoff?.failures ?? 0, { timeout: 60_000, interval: 200 }).toBe(4);
  // Each time the agent and its standby; beside them the placeholder.
  expect(added, how).toBeLessThanOrEqual(9);
  await daemon.stop();
  expectClean(bench);
}

/** A second job is given to an agent that works on its first one. */
async function secondJob(options: { readonly requeueUnreceived: boolean }, result: string): Promise<void> {
  await using bench = await azureBench({ lockMs: 6_000, ...options });
  const { azure, pool } = bench;
  azure.faults.secondJob = 'while-busy';
  await using here = await onejob({ config: bench.config() });
  const daemon = await here.up();
  await untilIdle(bench);
  const received: number[] = [];
  azure.on((event) => void (event.kind === 'requestReceived' && received.push(event.request.requestId)));
  const first = bench.hold('first');
  await untilRunning(first);
  const second = azure.queue(pool, { script: 'echo second' });
  await expect.poll(() => second.view().state).toBe('assigned');
  expect(second.view().agent).toEqual(first.view().agent);
  azure.faults.secondJob = 'no';
  bench.go('first');
  expect((await first.finished).result).toBe('succeeded');
  await works(bench);
  expect((await second.finished).result).toBe(result);
  expect(received.filter((id) => id === second.requestId)).toHaveLength(result === 'succeeded' ? 1 : 0);
  await expect.poll(() => bench.left().includes(first.view().agent?.name ?? ''), { timeout: 30_000 }).toBe(false);
  await daemon.stop();
  expectClean(bench);
}

describe.skipIf(lacks('docker'))('a bad agent', () => {
  test('crashes, vanishes or runs out of memory with a job: its lock runs out, the slot has gone on long before, its entry goes', async () => {
    await using bench = await azureBench({ lockMs: 20_000 });
    const { azure, pool } = bench;
    await using here = await onejob({ config: bench.config({ pool: 'memory: 96MiB' }) });
    const daemon = await here.up();
    await untilIdle(bench);
    const bad = ['crash', 'vanish', 'eat-memory'].map((how) => azure.queue(pool, { name: how, script: `# standin-agent: ${how}` }));
    const last = azure.queue(pool, { script: 'echo last' });
    expect((await last.finished).result).toBe('succeeded');
    // DELETE was refused for each of them, and nobody waited for that.
    expect(bad.at(-1)?.view().state).toBe('running');
    expect((await Promise.all(bad.map(({ finished }) => finished))).map(({ result }) => result)).toEqual(
      bad.map(() => 'abandoned'),
    );
    const agents = [...bad, last].map((job) => job.view().agent?.name);
    expect(new Set(agents).size).toBe(4);
    await expect.poll(() => bench.left().filter((name) => agents.includes(name)), { timeout: 30_000 }).toEqual([]);
    expect(await troubleOf(here)).toBe('');
    await daemon.stop();
    expectClean(bench);
  });

  test('that is gone when onejob stops: the next onejob removes its entry once the service lets it', async () => {
    await using bench = await azureBench({ lockMs: 8_000 });
    const { azure, pool } = bench;
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await untilIdle(bench);
    const job = azure.queue(pool, { script: '# standin-agent: crash' });
    await untilRunning(job);
    await azure.next('agentAdded');
    await daemon.stop();
    expect(bench.left()).toEqual([job.view().agent?.name]);
    const again = await here.up();
    await job.finished;
    await expect.poll(() => bench.left().includes(job.view().agent?.name ?? ''), { timeout: 30_000 }).toBe(false);
    await again.stop();
    expectClean(bench);
  });

  // At the same time, each with a service and a home of its own: mostly they wait.
  test('wants to be updated, or never comes online: said with what to do, and backed off from, though it was online', async () => {
    const update = /newer version \(exit [34]\).*onejob image refresh/;
    await Promise.all([
      backsOff('exit3', update),
      backsOff('exit4,real-pace', update),
      backsOff('never-online', /has not come online(.|\n)*Connecting to the server/, 'boot_timeout: 4s'),
    ]);
  });

  test('is not in the image at all: said with what to do, and nothing is registered', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    await using here = await onejob({ config: bench.config({ image: azureImages.base }) });
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here)).toMatch(/its image has no agent.*Let onejob build the image/);
    expect((await here.cli(['doctor']).ended).stdout.replaceAll(/\s+/g, ' ')).toContain('its image has no agent');
    expect(azure.agents(pool)).toEqual([]);
    await daemon.stop();
    expectClean(bench);
  });

  test('is given a second job: it is not run twice, and lost only where the service gives it up with its lock', async () => {
    await Promise.all([secondJob({ requeueUnreceived: false }, 'abandoned'), secondJob({ requeueUnreceived: true }, 'succeeded')]);
  });

  test('has its job cancelled at the service: the job ends so, and the next one runs', async () => {
    await using bench = await azureBench();
    const { azure } = bench;
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await untilIdle(bench);
    const job = bench.hold('unwanted');
    await untilRunning(job);
    azure.cancel(job.requestId);
    expect((await job.finished).result).toBe('canceled');
    await works(bench);
    expect(await troubleOf(here)).toBe('');
    await daemon.stop();
    expectClean(bench);
  });
});
