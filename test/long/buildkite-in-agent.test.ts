/** Agents that hold the service's own token and take their jobs themselves: the real agent on the real Engine, at the stand-in. */
import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import type { SlotView } from '../../src/contract/schema.ts';
import {
  aDay,
  connected,
  containerOf,
  type Day,
  endOf,
  expectOnce,
  laneOf,
  throughDeaths,
  untilRunning,
  works,
} from '../support/buildkite-days.ts';
import { engineAt, machineSocket } from '../support/engine-http.ts';
import { slotOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

const ready = { timeout: 60_000, interval: 100 };

const inAgent = (pool = '') =>
  aDay({ service: 'registration: in-agent', pool: `trust: { forks: refuse, others: refuse }${pool === '' ? '' : `, ${pool}`}` });

const agentOf = ({ agent }: SlotView): string | null => ('agent' in agent ? agent.agent : null);

/** One agent is online and has nothing to do. */
async function untilOnline({ bench, here }: Day, agents = 1): Promise<void> {
  await expect.poll(() => bench.buildkite.agents().length, ready).toBe(agents);
  await expect.poll(() => laneOf(here), ready).toBe('idle');
  await expect.poll(() => bench.buildkite.agents().filter(({ state }) => state === 'idle').length, ready).toBe(1);
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('an agent that takes its job itself', () => {
  test('runs one, ends, and the next stands ready; the token is in nothing that outlives it', async () => {
    await using day = await inAgent();
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilOnline(day);
    using engine = engineAt(machineSocket);
    const container = JSON.stringify(await engine.ok('GET', `/containers/${await containerOf(here)}/json`));
    expect(container).not.toContain(buildkite.token);
    const before = agentOf(await slotOf(here, 'ci/1'));
    for (let n = 1; n <= 2; n++) {
      const { exit, log } = await bench.job(`echo job ${n}; test ! -e /tmp/before; touch /tmp/before; exit ${n - 1}`);
      expect(exit, log).toBe(n - 1);
    }
    await untilOnline(day, 3);
    expect(agentOf(await slotOf(here, 'ci/1'))).not.toBe(before);
    expect(buildkite.agents().map(({ token }) => token)).toEqual(['registration', 'registration', 'registration']);
    expect(buildkite.requests.filter(({ route }) => route.startsWith('stacks'))).toEqual([]);
    const table = (await here.cli(['jobs', '--all']).ended).stdout;
    expect(table).toMatch(/ passed .* demo #\d+ /);
    expect(table).toMatch(/ failed \(exit 1\) .* demo #\d+ /);
    const [job] = buildkite.jobs();
    const logs = await here.cli(['logs', job?.id ?? '']).ended;
    expect(logs.stdout).toContain('job 1');
    const own = await here.cli(['logs', '--agent', job?.id ?? '']).ended;
    expect(own.stdout).toContain('Assigned job');
    expect(logs.stdout + own.stdout).not.toContain(buildkite.token);
    expect(spawnSync('grep', ['-rlF', buildkite.token, here.stateDir], { encoding: 'utf8' })).toMatchObject({
      status: 1,
      stdout: '',
    });
    await endOf(day, daemon);
  });

  test('is not disturbed when its manager dies', async () => {
    await using day = await inAgent();
    const first = await day.here.up();
    const { daemon } = await throughDeaths(day, first);
    await works(day.bench);
    await endOf(day, daemon);
  });

  test('finishes a job that came while it was being retired', async () => {
    await using day = await inAgent();
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilOnline(day);
    buildkite.faults.add({ kind: 'delay', ms: 3_000 }, { route: 'jobs/:id/accept', times: 1 });
    const id = bench.hold('late');
    await expect.poll(() => buildkite.requests.some(({ route }) => route === 'jobs/:id/accept'), ready).toBe(true);
    expect((await here.cli(['pause', 'ci']).ended).code).toBe(0);
    await untilRunning(bench, id);
    await expect.poll(() => laneOf(here), ready).toBe('busy');
    bench.go('late');
    expectOnce(await buildkite.jobEnded(id), 'late');
    await expect.poll(() => connected(bench), ready).toEqual([]);
    expect((await here.cli(['resume', 'ci']).ended).code).toBe(0);
    await works(bench);
    await endOf(day, daemon);
  });

  test('that was cancelled, or took too long, ends; one that is idle leaves when it is told to', async () => {
    await using day = await inAgent('timeout: 8s');
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    const cancelled = bench.hold('never');
    await untilRunning(bench, cancelled);
    buildkite.cancel(cancelled);
    expect(await buildkite.jobEnded(cancelled)).toMatchObject({ state: 'canceled' });
    const long = bench.hold('long');
    expect((await buildkite.jobEnded(long)).exit).not.toBe(0);
    await works(bench);
    await untilOnline(day, 4);
    await endOf(day, daemon);
  });
});
