/** `binding: early`: the real agent waits for its job itself, on the real Engine, through the broker, at the stand-in. */
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Boundary } from '../../src/pools/executors.ts';
import { onlyAtTheEnd, untilIdle } from '../support/buildkite.ts';
import {
  aDay,
  cancelledThenLost,
  connected,
  endOf,
  expectOnce,
  throughDeaths,
  troubleOf,
  untilRunning,
  works,
} from '../support/buildkite-days.ts';
import { makeKeys, seedValue } from '../support/buildkite-secrets.ts';
import { lacks } from '../support/require.ts';

const early = { service: 'binding: early' };
const fork = { pullRequest: 7, pullRequestRepo: 'https://git.example.org/stranger/demo.git' };
// Not `prepare`: a sandbox is made as for any other way, until its agent is registered.
const acts = ['register', 'release', 'retire', 'terminate', 'settle', 'clear'] as const;

/** The whole story of one death of the manager: what was begun is finished or taken back by the next one, and the job ends once. */
async function killedAt(boundary: Boundary): Promise<void> {
  await using day = await aDay(early);
  const { bench, here } = day;
  const { buildkite } = bench;
  const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
  await doomed.says(/onejob is up/);
  const act = boundary.split('.')[0] ?? '';
  const isLate = act === 'terminate' || act === 'settle' || act === 'clear';
  const before = isLate ? bench.hold('one') : null;
  if (before !== null) {
    await untilRunning(bench, before);
    bench.go('one');
  }
  if (act === 'retire') {
    await untilIdle(bench);
    void here.cli(['pause', 'ci']).ended;
  }
  expect((await doomed.ended).signal, boundary).toBe('SIGKILL');
  const daemon = await here.up();
  if (act === 'retire') await here.cli(['resume', 'ci']).ended;
  const id = before ?? bench.hold('one');
  bench.go('one');
  expectOnce(await buildkite.jobEnded(id), 'one');
  await works(bench);
  await endOf(day, daemon);
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('an agent that waits for its job itself', () => {
  test('runs one job, and the next one runs in the next sandbox', async () => {
    await using day = await aDay(early);
    const { bench, here } = day;
    const daemon = await here.up();
    await untilIdle(bench);
    const agents = new Set<string>();
    for (let n = 1; n <= 3; n++) {
      const { exit, log, agent } = await bench.job(`echo job ${n}; test ! -e /tmp/before; touch /tmp/before; exit ${n - 1}`);
      expect({ exit, name: agent?.name }, log).toEqual({ exit: n - 1, name: expect.stringMatching(/ci-1$/) });
      agents.add(agent?.id ?? '');
    }
    expect(agents.size).toBe(3);
    const jobs = await here.cli(['jobs', '--all', '--json']).ended;
    expect(jobs.stdout.match(/"state": ?"done"/g)).toHaveLength(3);
    await endOf(day, daemon);
  });

  test('is told that a fork may not run here, says so in its log, and the pool goes on without a pause', async () => {
    await using day = await aDay({ ...early, pool: 'trust: { forks: refuse }' });
    const { bench, here } = day;
    const daemon = await here.up();
    await untilIdle(bench);
    for (let n = 0; n < 2; n++) {
      const refused = await bench.job('echo must not run', fork);
      expect(refused).toMatchObject({ exit: -1, signalReason: 'agent_refused', log: expect.stringContaining('trust.forks') });
      expect(refused.log).not.toContain('must not run');
      expect(await troubleOf(here)).toBe('');
      await works(bench);
    }
    await endOf(day, daemon);
  });

  test('gets the secrets of its job when that is trusted, and none for a fork', async () => {
    await using day = await aDay(early);
    const { bench, here } = day;
    const keys = await makeKeys(here.dir);
    const top = `secrets: { key: { file: ${keys.file} } }`;
    here.configure(bench.config({ ...early, top, pool: 'trust: { forks: run-without-secrets }' }));
    const daemon = await here.up();
    await untilIdle(bench);
    const env = { SECRET_TOKEN: seedValue(keys.rsa, 'swordfish') };
    const command = 'echo "is ${#TOKEN} long, $TOKEN"';
    const trusted = await bench.job(command, { env });
    expect(trusted.log).toContain('is 9 long, [REDACTED]');
    const other = await bench.job(command, { env, ...fork });
    expect(other).toMatchObject({ exit: 0, log: expect.stringContaining('is 0 long') });
    await endOf(day, daemon);
  });

  test('is cancelled with its job, and loses a job with its sandbox', async () => {
    await using day = await aDay(early);
    const daemon = await day.here.up();
    await cancelledThenLost(day);
    await endOf(day, daemon);
  });

  test('whose job comes while the manager is away waits with it for the manager', async () => {
    await using day = await aDay(early, { lostMs: 60_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench);
    await daemon.kill();
    const id = bench.hold('late');
    bench.go('late');
    await expect.poll(() => buildkite.job(id).state).toBe('accepted');
    await sleep(2_000);
    expect(buildkite.job(id).state).toBe('accepted');
    const again = await here.up();
    expectOnce(await buildkite.jobEnded(id), 'late');
    expect(buildkite.job(id).assignments).toBe(1);
    await works(bench);
    await endOf(day, again);
  });

  test('whose manager and broker die again and again ends its job with its own result', async () => {
    await using day = await aDay(early, { lostMs: 60_000 });
    const { daemon, job } = await throughDeaths(day, await day.here.up());
    expect(job.assignments).toBe(1);
    await works(day.bench);
    await endOf(day, daemon);
  });

  test('is retired again and again under a stream of jobs, and none of them is lost', async () => {
    await using day = await aDay({ ...early, agents: 2 }, { lostMs: 60_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench, 2);
    const ids: string[] = [];
    for (let n = 0; n < 24; n++) {
      ids.push(
        buildkite.queueJob({ command: `echo began ${n}; sleep 0.${n % 9}; echo ended ${n}`, chunksIntervalS: onlyAtTheEnd }),
      );
      if (n % 8 === 3) await here.cli(['pause', 'ci']).ended;
      if (n % 8 === 6) await here.cli(['resume', 'ci']).ended;
      await sleep(500);
    }
    await here.cli(['resume', 'ci']).ended;
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    for (const [n, job] of jobs.entries()) expectOnce(job, String(n));
    await endOf(day, daemon);
  });

  test('that has no answer to its accept asks again, also once it is to leave', async () => {
    await using day = await aDay(early, { lostMs: 60_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench);
    buildkite.faults.add({ kind: 'reset' }, { route: 'jobs/:id/accept', times: 2 });
    const id = bench.hold('asked');
    bench.go('asked');
    await expect
      .poll(() => buildkite.requests.filter(({ route }) => route === 'jobs/:id/accept').length, { timeout: 20_000 })
      .toBeGreaterThan(0);
    expect((await here.cli(['pause', 'ci']).ended).code).toBe(0);
    expectOnce(await buildkite.jobEnded(id), 'asked');
    await here.cli(['resume', 'ci']).ended;
    await works(bench);
    await endOf(day, daemon);
  });

  test('with a token that is none says so, and the pool does not spin', async () => {
    await using day = await aDay(early);
    const { bench, here } = day;
    const { buildkite, tokenFile } = bench;
    writeFileSync(tokenFile, 'bkct_this_is_not_one\n');
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here), { timeout: 30_000 }).toMatch(/401|does not accept|invalid/i);
    await sleep(6_000);
    expect(buildkite.requests.filter(({ route }) => route === 'register').length).toBeLessThan(8);
    expect(connected(bench)).toEqual([]);
    await endOf(day, daemon);
  });

  test.each(acts)('its manager is killed before, while and after it does: %s', async (act) => {
    await Promise.all((['intent', 'effect', 'record'] as const).map((point) => killedAt(`${act}.${point}`)));
  });
});
