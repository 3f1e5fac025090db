/** What a temporary manager does with a pool of Buildkite: nothing. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { leaderOf } from '../../src/store/lead.ts';
import { aDay, connected, endOf, expectOnce, laneOf, untilRunning } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { untilGone } from '../support/child.ts';
import { lacks } from '../support/require.ts';

const quick = '  quick: { service: own, agents: 1, runtime: process }';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('a pool of Buildkite', () => {
  test('keeps its job while "onejob run" stands in for a daemon that was killed, and the next daemon takes it over', async () => {
    await using day = await aDay({ pools: quick });
    const { bench, here } = day;
    const first = await here.up();
    await untilAsking(bench);
    const job = bench.hold('kept');
    await untilRunning(bench, job);
    await first.kill();
    for (let n = 1; n <= 2; n++) {
      const { code, stdout, stderr } = await here.run('--pool', 'quick', '--', 'echo', `stood in ${n}`).ended;
      expect({ code, stdout }, stderr).toEqual({ code: 0, stdout: `stood in ${n}\n` });
      const pid = leaderOf(here.stateDir)?.pid ?? null;
      if (pid !== null) await untilGone(pid);
    }
    expect(readFileSync(join(here.stateDir, 'daemon.log'), 'utf8').match(/leaving other services' agents/g)).toHaveLength(2);
    expect(bench.buildkite.job(job).state).toBe('running');
    const next = await here.up();
    expect(await laneOf(here)).toBe('busy');
    bench.go('kept');
    expectOnce(await bench.buildkite.jobEnded(job), 'kept');
    await endOf(day, next);
  });

  test('is not there for the service as long as only "onejob run" is', async () => {
    await using day = await aDay({ pools: quick });
    const { bench, here } = day;
    const { code, stderr } = await here.run('--pool', 'quick', '--', 'sleep', '3').ended;
    expect(code, stderr).toBe(0);
    expect(connected(bench)).toEqual([]);
    expect(bench.buildkite.requests.filter(({ route }) => route !== 'metrics')).toEqual([]);
    const daemon = await here.up();
    await untilAsking(bench);
    await endOf(day, daemon);
  });
});
