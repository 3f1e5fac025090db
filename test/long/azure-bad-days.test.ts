/** Days on which Azure DevOps, or what onejob signs in with, does not work: nothing ends, nothing spins, and it says why. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { azureBench, expectClean, troubleOf, untilIdle, untilRunning, works, writeToken } from '../support/azure.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker'))('a bad day of Azure DevOps', () => {
  test('a PAT that has expired before the start: said once, held without a storm, and well again once the file has a good one', async () => {
    await using bench = await azureBench();
    const { azure, pool, tokenFile } = bench;
    writeToken(tokenFile, azure.addPat({ scopes: ['agentpools_manage'], expired: true }));
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here)).toMatch(/does not accept the token/);
    await sleep(1_000);
    const before = azure.log.length;
    await sleep(6_000);
    // What was refused is not shown to the service again.
    expect(azure.log.length - before).toBe(0);
    const [status, doctor] = await Promise.all([here.cli(['status']).ended, here.cli(['doctor']).ended]);
    for (const shown of [status.stdout, doctor.stdout, daemon.child.stdout + daemon.child.stderr]) {
      expect(shown.replaceAll(/\s+/g, ' ')).toContain('does not accept the token');
      expect(shown).not.toContain('AZDO');
    }
    expect(azure.agents(pool)).toEqual([]);
    writeToken(tokenFile, azure.pat);
    await azure.next('agentAdded');
    await works(bench);
    await expect.poll(() => troubleOf(here)).toBe('');
    await daemon.stop();
    expectClean(bench);
  });

  test('a PAT that expires in the middle of a day: the running job goes on and ends well, and so does the next with a new PAT', async () => {
    await using bench = await azureBench();
    const { azure, tokenFile } = bench;
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await azure.next('sessionOpened');
    const job = bench.hold('long');
    await untilRunning(job);
    azure.expirePat(azure.pat);
    await expect.poll(() => troubleOf(here)).toMatch(/does not accept the token/);
    await sleep(2_000);
    expect(job.view().state).toBe('running');
    bench.go('long');
    expect(await job.finished).toMatchObject({ result: 'succeeded', log: expect.stringContaining('ended long') });
    const next = bench.hold('next');
    await sleep(2_000);
    expect(await troubleOf(here)).toMatch(/does not accept the token/);
    writeToken(tokenFile, azure.addPat({ scopes: ['agentpools_manage'] }));
    bench.go('next');
    expect((await next.finished).result).toBe('succeeded');
    await daemon.stop();
    expectClean(bench);
  });

  test('a pool that is not there yet: named with those that are, and used once somebody made it', async () => {
    await using bench = await azureBench();
    const { azure } = bench;
    await using here = await onejob({ config: bench.config({ queue: 'lab' }) });
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here)).toMatch(/Cannot use agent pool "lab".*It shows .*gpu/);
    const lab = azure.addPool('lab');
    await azure.next('agentAdded');
    expect((await azure.queue(lab, { script: 'echo there' }).finished).result).toBe('succeeded');
    await expect.poll(() => troubleOf(here)).toBe('');
    await daemon.stop();
    expectClean({ ...bench, pool: lab });
  });

  test('without the rights to manage the pool: names scope and role, makes nothing, and goes on once they are given', async () => {
    await using bench = await azureBench();
    const { azure, pool, tokenFile } = bench;
    writeToken(tokenFile, azure.addPat({ scopes: ['agentpools_manage'], poolAdmin: false }));
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here)).toMatch(/Agent Pools \(Read & manage\).*Administrator/);
    expect(azure.agents(pool)).toEqual([]);
    const tries = azure.log.filter(({ method, route }) => method === 'POST' && route === 'agents').length;
    await sleep(4_000);
    expect(azure.log.filter(({ method, route }) => method === 'POST' && route === 'agents').length).toBeLessThan(tries + 3);
    // A restart is what a person does who has just changed something, and it forgets how long to wait.
    await daemon.stop();
    writeToken(tokenFile, azure.pat);
    const again = await here.up();
    await azure.next('agentAdded');
    await works(bench);
    await again.stop();
    expectClean(bench);
  });

  test('down for a while with a job running: nothing is ended, the job finishes, and the next one runs', async () => {
    await using bench = await azureBench({ sessionMs: 5 * 60_000 });
    const { azure } = bench;
    // As long as the real one goes on trying: its log would be lost with a moment's delay.
    await using here = await onejob({ config: bench.config({ pool: 'env: { STANDIN_AGENT: real-pace }' }) });
    const daemon = await here.up();
    await azure.next('sessionOpened');
    const job = bench.hold('through');
    await untilRunning(job);
    await expect.poll(async () => (await here.api.status()).pools[0]?.slots[0]?.agent.state).toBe('busy');
    const agent = job.view().agent?.name;
    await azure.faults.down();
    await expect.poll(() => troubleOf(here)).toMatch(/ECONNREFUSED|does not answer|[Cc]annot/);
    await sleep(10_000);
    bench.go('through');
    await sleep(200);
    await azure.faults.up();
    expect(await job.finished).toMatchObject({ result: 'succeeded', log: expect.stringContaining('ended through') });
    expect(job.view().agent?.name).toBe(agent);
    await works(bench);
    await expect.poll(() => troubleOf(here)).toBe('');
    await daemon.stop();
    expectClean(bench);
  });

  test('a registration whose answer is lost, a reset, a page instead of JSON: one agent comes of it, none twice', async () => {
    await using bench = await azureBench();
    const { azure, pool } = bench;
    for (const kind of ['lost', 'reset', 'broken'] as const)
      azure.faults.add({ kind }, { method: 'POST', route: 'agents', times: 1, after: 1 });
    await using here = await onejob({ config: bench.config() });
    const daemon = await here.up();
    await untilIdle(bench);
    await works(bench);
    await untilIdle(bench);
    // The idle one, and at most the one that stands by.
    await expect.poll(() => azure.agents(pool).length).toBeLessThanOrEqual(3);
    await daemon.stop();
    expectClean(bench);
  });
});
