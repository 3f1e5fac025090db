/** Jobs of Buildkite are reserved by the Stacks API, and acquired by the real agent on the real Engine, at the stand-in. */
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Boundary } from '../../src/manager/actions/action-runner.ts';
import {
  aDay,
  cancelledThenLost,
  endOf,
  expectOnce,
  fork,
  killFilter,
  throughDeaths,
  troubleOf,
  untilRunning,
  untilSays,
  works,
} from '../support/buildkite-days.ts';
import { secretDay, seedValue } from '../support/buildkite-secrets.ts';
import { standbyOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

/** As the service may: a reserved job goes to nobody without its token. */
const strict = { reservedNeedsToken: true };
// Not `prepare`: what is made before there is a job is made as for any other way.
const acts = ['release', 'terminate', 'settle', 'clear'] as const;

/** The whole story of one death of the manager: what it had reserved is run or finished by the next one, and the job ends once. */
async function killedAt(boundary: Boundary): Promise<void> {
  // An agent ends by itself, so that only one whose job takes too long is told to.
  const isTooLong = boundary.startsWith('terminate');
  await using day = await aDay({ service: 'boot_timeout: 5s', ...(isTooLong && { pool: 'timeout: 10s' }) }, strict);
  const { bench, here } = day;
  const { buildkite } = bench;
  const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
  await doomed.says(/onejob is up/);
  const id = bench.hold('one');
  if (boundary.startsWith('settle') || boundary.startsWith('clear')) {
    await untilRunning(bench, id);
    bench.go('one');
  }
  expect((await doomed.ended).signal, boundary).toBe('SIGKILL');
  if (!isTooLong) bench.go('one');
  const daemon = await here.up();
  const job = await buildkite.jobEnded(id);
  if (isTooLong) expect(job.log.match(/^(began|ended) one$/gm), job.log).toEqual(['began one']);
  else expectOnce(job, 'one');
  await works(bench);
  await endOf(day, daemon);
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('a job that is acquired', () => {
  test('has an agent made for it alone, which registers with a token for that job', async () => {
    await using day = await aDay({}, strict);
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    for (let n = 1; n <= 3; n++) {
      const { exit, log } = await bench.job(`echo job ${n}; test ! -e /tmp/before; touch /tmp/before; exit ${n - 1}`);
      expect(exit, log).toBe(n - 1);
    }
    expect(buildkite.agents().map(({ token }) => token)).toEqual(['acquisition', 'acquisition', 'acquisition']);
    const listed = async () => (await here.cli(['jobs', '--all', '--json']).ended).stdout;
    await expect.poll(async () => (await listed()).match(/"state": ?"done"/g)?.length).toBe(3);
    await endOf(day, daemon);
    expect(buildkite.requests.filter(({ route }) => route === 'stacks/:key/deregister').map(({ status }) => status)).toEqual([204]);
  });

  test('fits the tags of its pool; others wait for hosts that have them, and a queue that is paused is left alone', async () => {
    const pools =
      '  big: { service: bk, queue: default, agents: 1, image: "debian:stable-slim", tags: "gpu=a100,cuda=12,cuda=13,multigpu" }';
    await using day = await aDay({ pools }, strict);
    const { bench, here } = day;
    const { buildkite } = bench;
    const strange = [['gpu=h100'], ['gpu=a100', 'cuda=14'], ['other=*']].map((rules) => buildkite.queueJob({ rules }));
    const elsewhere = buildkite.queueJob({ queue: 'elsewhere' });
    const daemon = await here.up();
    for (const rules of [[], ['gpu=a100', 'cuda=13'], ['cuda=*', 'multigpu=true']]) {
      const job = await bench.job('echo well', { rules });
      expect({ exit: job.exit, name: job.agent?.name }).toEqual({
        exit: 0,
        name: expect.stringMatching(rules.length === 0 ? /-(ci|big)-1$/ : /-big-1$/),
      });
    }
    buildkite.pauseQueue('default', true);
    const waits = buildkite.queueJob({ command: 'echo waited' });
    await sleep(3_000);
    expect([waits, ...strange, elsewhere].map((id) => buildkite.job(id).state)).toEqual(Array(5).fill('scheduled'));
    buildkite.pauseQueue('default', false);
    expect((await buildkite.jobEnded(waits)).exit).toBe(0);
    for (const id of [...strange, elsewhere]) buildkite.cancel(id);
    await endOf(day, daemon);
  });

  test('of a fork is ended with the reason before there is any sandbox, and the queue continues', async () => {
    await using day = await aDay({ pool: 'trust: { forks: refuse }' }, strict);
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    const refused = await bench.job('echo must not run', fork);
    expect(refused).toMatchObject({
      exit: -1,
      signalReason: 'stack_error',
      detail: expect.stringContaining('trust.forks'),
      log: '',
    });
    expect(buildkite.agents()).toEqual([]);
    expect((await here.cli(['jobs', '--all']).ended).stdout).toContain('refused');
    await works(bench);
    await endOf(day, daemon);
  });

  test('gets its secrets when it is trusted; a fork runs without, in a sandbox of its own kind', async () => {
    await using day = await secretDay({ pool: 'trust: { forks: run-without-secrets }' }, strict);
    const { bench, here, keys } = day;
    const daemon = await here.up();
    const env = { SECRET_TOKEN: seedValue(keys.rsa, 'swordfish') };
    const command = 'echo "is ${#TOKEN} long, $TOKEN"; touch /out/x && echo writable || true';
    const trusted = await bench.job(command, { env });
    expect(trusted.log).toContain('is 9 long, [REDACTED]');
    expect(trusted.log).toContain('writable');
    const other = await bench.job(command, { env, ...fork });
    expect(other).toMatchObject({ exit: 0, log: expect.stringContaining('is 0 long') });
    expect(other.log).not.toContain('writable\n');
    await endOf(day, daemon);
  });

  test('is no more than there are slots: the others wait, their pages say for what, once, and each runs once', async () => {
    await using day = await aDay({ agents: 2 }, strict);
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    // Else those that run in the end may have been told that they wait.
    await expect.poll(() => Promise.all(['ci/1', 'ci/2'].map((key) => standbyOf(here, key)))).not.toContain(null);
    const ids = ['a', 'b', 'c', 'd', 'e'].map((name) => bench.hold(name));
    const states = () => ids.map((id) => buildkite.job(id).state);
    await expect.poll(() => states().filter((state) => state === 'running').length, { timeout: 60_000 }).toBe(2);
    await expect.poll(() => ids.flatMap((id) => buildkite.job(id).notifications).length, { timeout: 60_000 }).toBe(3);
    await sleep(3_000);
    expect(states().filter((state) => state === 'scheduled')).toHaveLength(3);
    expect(ids.flatMap((id) => buildkite.job(id).notifications)).toEqual(Array(3).fill(expect.stringMatching(/waits for one$/)));
    for (const name of ['a', 'b', 'c', 'd', 'e']) bench.go(name);
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    for (const [n, name] of ['a', 'b', 'c', 'd', 'e'].entries()) expectOnce(jobs[n] as (typeof jobs)[number], name);
    const lists = buildkite.requests.filter(({ route }) => route === 'stacks/:key/scheduled-jobs').map(({ at }) => at);
    // Once a second at most; how far apart two of them arrive is the machine's affair.
    expect(((lists.at(-1) ?? 0) - (lists[0] ?? 0)) / (lists.length - 1)).toBeGreaterThan(900);
    await endOf(day, daemon);
  });

  test('is cancelled while it runs, and lost with its sandbox', async () => {
    await using day = await aDay({}, strict);
    const daemon = await day.here.up();
    await cancelledThenLost(day);
    await endOf(day, daemon);
  });

  test('whose manager dies again and again ends with its own result', async () => {
    await using day = await aDay({}, { ...strict, lostMs: 60_000 });
    const { daemon } = await throughDeaths(day, await day.here.up());
    await works(day.bench);
    await endOf(day, daemon);
  });

  test('of a fork continues while the filter is killed again and again: no line is lost or doubled, and a large artifact arrives', async () => {
    await using day = await aDay({}, { ...strict, lostMs: 60_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    const lines = 'for i in $(seq 1 400); do echo "line $i"; sleep 0.02; done; truncate -s 64M big; echo made';
    const id = buildkite.queueJob({ command: lines, artifactPaths: 'big', ...fork });
    await untilSays(bench, id, /^line 1$/m);
    for (let kills = 0; kills < 3; kills++) {
      await expect.poll(() => killFilter(here), { timeout: 20_000 }).toBe(true);
      await sleep(2_000);
    }
    const job = await buildkite.jobEnded(id);
    const found = [...job.log.matchAll(/^line (\d+)$/gm)].map(([, i]) => Number(i));
    expect({ exit: job.exit, missing: job.logMissing, found }).toEqual({
      exit: 0,
      missing: 0,
      found: Array.from({ length: 400 }, (_, i) => i + 1),
    });
    expect(job.artifacts).toMatchObject([{ path: 'big', state: 'finished', size: 64 << 20 }]);
    await works(bench, fork);
    await endOf(day, daemon);
  });

  test('with a token that may not use stacks says so, in status and doctor, and works once it has another', async () => {
    await using day = await aDay({}, strict);
    const { bench, here } = day;
    const { buildkite, tokenFile } = bench;
    writeFileSync(tokenFile, `${buildkite.metricsToken}\n`);
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here), { timeout: 20_000 }).toMatch(/Cannot register the stack/);
    const doctor = await here.cli(['doctor']).ended;
    expect(doctor.stdout.replaceAll(/\s+/g, ' ')).toMatch(/Cannot register the stack .* 403/);
    expect(buildkite.requests.filter(({ route }) => route === 'stacks/register').length).toBeLessThan(4);
    await daemon.stop();
    writeFileSync(tokenFile, `${buildkite.token}\n`);
    const again = await here.up();
    await works(bench);
    await endOf(day, again);
  });

  test('is found during an outage of the list, and after one of all', async () => {
    await using day = await aDay({}, { ...strict, lostMs: 60_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await works(bench);
    buildkite.faults.add({ kind: 'error', status: 429, retryAfter: 2 }, { route: 'stacks/:key/scheduled-jobs', times: 2 });
    buildkite.faults.add({ kind: 'error', status: 500 }, { route: 'stacks/:key/scheduled-jobs/batch-reserve', times: 1 });
    await works(bench);
    const through = bench.hold('through');
    await untilRunning(bench, through);
    await buildkite.faults.down();
    await sleep(6_000);
    bench.go('through');
    await buildkite.faults.up();
    expectOnce(await buildkite.jobEnded(through), 'through');
    await works(bench);
    await endOf(day, daemon);
  });

  test('is left to the next daemon if onejob goes down while the service is away', async () => {
    await using day = await aDay({}, { ...strict, lostMs: 20_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await works(bench);
    const left = bench.hold('left');
    await untilRunning(bench, left);
    await buildkite.faults.down();
    const down = await here.cli(['down', '--now']).ended;
    expect(down, down.stderr).toMatchObject({ code: 0 });
    const { stdout, stderr } = await daemon.child.ended;
    expect(stdout + stderr).toContain('leaving ended jobs of a service that does not answer');
    await buildkite.faults.up();
    const again = await here.up();
    await buildkite.jobEnded(left);
    await works(bench);
    await endOf(day, again);
  });

  test.each(acts)('its manager is killed before, while and after it does: %s', async (act) => {
    await Promise.all((['intent', 'effect', 'record'] as const).map((point) => killedAt(`${act}.${point}`)));
  });
});
