/** Days on which Buildkite, or what onejob signs in with, does not work: no job is lost, nothing spins, and it says why. */
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Fault, FaultWhere } from '../standins/buildkite/standin.ts';
import { untilIdle } from '../support/buildkite.ts';
import { aDay, connected, endOf, expectOnce, troubleOf, untilRunning, works } from '../support/buildkite-days.ts';
import { lacks } from '../support/require.ts';

/** A service with a bad time of some seconds, for an idle agent and for a job that ends within it. */
async function through(fault: Fault | 'silence', where: FaultWhere = {}): Promise<void> {
  await using day = await aDay({ agents: 2 }, { lostMs: 60_000 });
  const { bench, here } = day;
  const { buildkite } = bench;
  const what = JSON.stringify(fault);
  const daemon = await here.up();
  await untilIdle(bench, 2);
  const id = bench.hold('through');
  const { agent } = await untilRunning(bench, id);
  const before = connected(bench);
  if (fault === 'silence') await buildkite.faults.down();
  else buildkite.faults.add(fault, { ...where, forMs: 7_000 });
  await sleep(3_000);
  bench.go('through');
  const later = buildkite.queueJob({ command: 'echo later' });
  if (fault === 'silence') {
    await sleep(4_000);
    await buildkite.faults.up();
  }
  const job = await buildkite.jobEnded(id);
  expectOnce(job, 'through');
  expect(job.agent, what).toEqual(agent);
  expect(await buildkite.jobEnded(later), what).toMatchObject({ exit: 0, log: expect.stringContaining('later') });
  await works(bench);
  await expect.poll(() => connected(bench), { timeout: 30_000, message: what }).toEqual(before);
  await expect.poll(() => troubleOf(here)).toBe('');
  await endOf(day, daemon);
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('a bad day of Buildkite', () => {
  test('a wrong token: said, held without a storm, and well again once the file has a good one', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    const { buildkite, tokenFile } = bench;
    writeFileSync(tokenFile, 'bkct_this_is_not_one\n');
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here)).toMatch(/does not accept|answered 401/);
    await sleep(1_000);
    const before = buildkite.requests.filter(({ route }) => route === 'register').length;
    await sleep(5_000);
    // What was refused is not shown to the service again.
    expect(buildkite.requests.filter(({ route }) => route === 'register').length).toBe(before);
    const [status, doctor] = await Promise.all([here.cli(['status']).ended, here.cli(['doctor']).ended]);
    for (const shown of [status.stdout, doctor.stdout, daemon.child.stdout + daemon.child.stderr]) {
      expect(shown.replaceAll(/\s+/g, ' ')).toMatch(/does not accept|401|not valid/);
      expect(shown).not.toContain('bkct_');
    }
    writeFileSync(tokenFile, `${buildkite.token}\n`);
    // A person who has just changed it restarts; it is read again by itself too.
    await daemon.stop();
    const again = await here.up();
    await works(bench);
    await expect.poll(() => troubleOf(here)).toBe('');
    await endOf(day, again);
  });

  test('a token that is revoked under a running job: the job ends well, and then the pool says why nothing comes', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    const { buildkite, tokenFile } = bench;
    const daemon = await here.up();
    await untilIdle(bench);
    const id = bench.hold('long');
    await untilRunning(bench, id);
    buildkite.revoke(buildkite.token);
    await sleep(1_000);
    bench.go('long');
    expectOnce(await buildkite.jobEnded(id), 'long');
    // Its slot's next agent was registered before that, and is good for one more job.
    await works(bench);
    await expect.poll(() => troubleOf(here), { timeout: 30_000 }).toMatch(/does not accept|answered 401/);
    const next = buildkite.queueJob({ command: 'echo next' });
    writeFileSync(tokenFile, `${buildkite.addToken({ kind: 'registration' })}\n`);
    // Looked at again every half minute.
    expect((await buildkite.jobEnded(next)).exit).toBe(0);
    await expect.poll(() => troubleOf(here)).toBe('');
    await endOf(day, daemon);
  });

  // At the same time, each with a service and a home of its own: mostly they wait.
  test('calls of some seconds that are refused, cut, lost, or answered with nonsense: no idle agent is replaced, no job lost', async () => {
    await Promise.all([
      through({ kind: 'error', status: 500 }),
      through({ kind: 'error', status: 429, retryAfter: 1 }),
      through({ kind: 'reset' }),
      through({ kind: 'lost' }),
      // Whoever is told that a result was taken believes it, so not of all calls.
      through({ kind: 'garbage' }, { route: 'ping' }),
      through('silence'),
    ]);
  });

  test('agents that the service has lost meanwhile: new ones take their places, and the lost job is its own', async () => {
    await using day = await aDay({ agents: 2, pool: 'name: "b.{n}"' });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench, 2);
    const id = bench.hold('lost');
    const { agent } = await untilRunning(bench, id);
    buildkite.loseAgent('b.1');
    buildkite.loseAgent('b.2');
    const job = await buildkite.jobEnded(id);
    expect(job).toMatchObject({ exit: -1, signalReason: 'agent_lost', agent });
    // The agent hears it with its next call, ends its job and goes.
    await untilIdle(bench, 2, 40_000);
    await works(bench);
    await endOf(day, daemon);
  });

  test('a clock that is an hour off at the service disturbs nothing, and doctor says so', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    bench.buildkite.faults.skew = 3_600_000;
    const daemon = await here.up();
    await works(bench);
    const { stdout } = await here.cli(['doctor']).ended;
    expect(stdout).toMatch(/clock/i);
    await endOf(day, daemon);
  });

  test('answers to register and accept that are lost: no job is run twice, and none is left waiting', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    const { buildkite } = bench;
    buildkite.faults.add({ kind: 'lost' }, { route: 'register', times: 1 });
    const daemon = await here.up();
    await untilIdle(bench);
    buildkite.faults.add({ kind: 'lost' }, { route: 'jobs/:id/accept', times: 1 });
    const lost = await bench.job('echo unsure');
    // The answer had the job's token: nobody can run it, and the service is told so as well as it can be.
    expect(lost).toMatchObject({ exit: -1 });
    await works(bench);
    await expect
      .poll(() => buildkite.agents().filter(({ gone }) => gone === null).length, { timeout: 30_000 })
      .toBeLessThanOrEqual(3);
    await daemon.stop();
    expect(buildkite.census().jobs).toEqual([]);
  });
});
