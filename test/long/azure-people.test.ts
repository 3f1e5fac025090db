/** What people see of jobs of Azure Pipelines, with the real commands: while a job waits, runs, has ended, and when all is taken back. */
import { expect, test } from 'vitest';
import { azureBench, isPlaceholder, untilIdle, untilRunning } from '../support/azure.ts';
import { onejob } from '../support/onejob.ts';

test('a job from its waiting to its agent’s own logs, and a host that is taken back', async () => {
  await using bench = await azureBench();
  const { azure, pool } = bench;
  await using here = await onejob({ config: bench.config() });
  const daemon = await here.up();
  const text = async (...args: string[]) => {
    const { code, stdout, stderr } = await here.cli(args).ended;
    return { code, stdout, stderr, all: stdout + stderr };
  };
  await untilIdle(bench);
  await expect.poll(async () => (await text('status')).stdout).toMatch(/ci\/1 +online .*waits for a job/);
  expect((await text('doctor')).all).toContain('service azure');

  const first = bench.hold('one');
  const second = bench.hold('two');
  await untilRunning(first);
  await expect.poll(async () => (await text('status')).stdout).toMatch(/ci\/1 +busy .*azure-\d+ .*one/);
  await expect.poll(async () => (await text('jobs')).stdout).toMatch(/azure-\d+ +ci +waiting .*two/);
  const listed = (await text('jobs')).stdout;
  const id = /^(azure-\d+) +ci +running/m.exec(listed)?.[1] ?? 'none';
  expect(await text('cancel', id)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('and only that service can cancel it'),
  });
  expect(await text('logs', '--agent', id)).toMatchObject({ code: 1, stderr: expect.stringContaining('copied when it ends') });

  const followed = here.cli(['logs', '-f', id]).ended;
  bench.go('one');
  bench.go('two');
  const { result } = await first.finished;
  expect(result).toBe('succeeded');
  expect((await followed).code).toBe(0);
  await second.finished;
  await expect
    .poll(async () => (await text('jobs', '--all')).stdout)
    .toMatch(new RegExp(`^${id} +ci +passed \\(succeeded\\) .*one`, 'm'));
  await expect.poll(async () => (await text('logs', '--agent', id)).code).toBe(0);
  const own = await text('logs', '--agent', id);
  expect(own.stdout).toMatch(/^==> .*\.log <==$/m);

  const down = await text('down', '--forget');
  expect(down).toMatchObject({ code: 0, stdout: expect.stringMatching(/azure: removed onejob-placeholder-/) });
  await daemon.stop();
  expect(azure.agents(pool)).toEqual([]);
});

test('a service that is away keeps its placeholder, and that is said, also when no daemon runs any more', async () => {
  await using bench = await azureBench();
  const { azure, pool } = bench;
  await using here = await onejob({ config: bench.config() });
  await here.up();
  await untilIdle(bench);
  const refuse = azure.faults.add({ kind: 'broken' }, { method: 'DELETE', route: 'agents/{agentId}' });
  const down = await here.cli(['down', '--forget']).ended;
  expect(down).toMatchObject({ code: 1, stdout: expect.stringMatching(/azure: still there: .*onejob-placeholder-/) });
  const again = await here.cli(['down', '--forget']).ended;
  expect(again).toMatchObject({
    code: 1,
    stdout: expect.stringContaining('No daemon runs here, so nothing was ended.\nazure: still there: '),
  });
  refuse();
  await here.up();
  await untilIdle(bench);
  expect((await here.cli(['down', '--forget']).ended).code).toBe(0);
  expect(azure.agents(pool).filter(({ name }) => isPlaceholder(name))).toEqual([]);
});
