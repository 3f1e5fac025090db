/** Whom a pool of Buildkite trusts, with the real agent: what a pull request from a fork is given, and what it is told. */
import { describe, expect, test } from 'vitest';
import { endOf } from '../support/buildkite-days.ts';
import { untilAsking } from '../support/buildkite-host.ts';
import { containersMade, containersOf, secretDay, seedValue } from '../support/buildkite-secrets.ts';
import { standbyOf } from '../support/look.ts';
import { lacks } from '../support/require.ts';

const own = 'https://github.com/acme/solver.git';
const fork = { pullRequest: 7, pullRequestRepo: 'https://github.com/mallory/solver.git', branch: 'mallory:main', repo: own };
const tell = 'echo "token is ${TOKEN-unset}, cache is $(ls /cache 2>&1)"';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))('trust', () => {
  test("a secret is for the repository's own jobs, also its pull requests, by whatever address; not for a fork's", async () => {
    await using day = await secretDay({ pool: 'caches: ["depot:/cache"]' });
    const { bench, here, keys } = day;
    const daemon = await here.up();
    await untilAsking(bench);
    const env = { SECRET_TOKEN: seedValue(keys.rsa, 'hunter2 hunter2') };
    const trusted = await bench.job(`touch /cache/kept; ${tell}`, { env, repo: own });
    expect(trusted.log).toContain('token is [REDACTED], cache is kept\n');
    const sameRepository = { pullRequest: 6, pullRequestRepo: 'git@github.com:Acme/solver', branch: 'fix-it' };
    expect((await bench.job(tell, { env, repo: own, ...sameRepository })).log).toContain('token is [REDACTED], cache is kept\n');
    const stranger = await bench.job(tell, { env, ...fork });
    expect({ exit: stranger.exit, log: stranger.log }).toEqual({
      exit: 0,
      log: expect.stringMatching(
        /The job runs without secrets, and without the caches of its pool: its branch "mallory:main" belongs to a fork[\s\S]*token is unset, cache is .*No such/,
      ),
    });
    expect(trusted.log).not.toContain('without secrets');
    const triggered = { BUILDKITE_SOURCE: 'trigger_job', BUILDKITE_TRIGGERED_FROM_BUILD_PIPELINE_SLUG: 'lib' };
    expect((await bench.job(tell, { env: { ...env, ...triggered }, repo: own })).log).toMatch(
      /another build triggered it \(of pipeline lib\)[\s\S]*"trust.triggered: trust"[\s\S]*token is unset, cache is .*No such/,
    );
    await endOf(day, daemon);
  });

  test('a pool that refuses forks says so in the log of the job, and makes nothing for it', async () => {
    await using day = await secretDay({ pool: 'trust: { forks: refuse }' });
    const { bench, here } = day;
    const daemon = await here.up();
    await untilAsking(bench);
    await expect.poll(() => standbyOf(here, 'ci/1')).not.toBe(null);
    const [standby, containers] = [await standbyOf(here, 'ci/1'), await containersOf(here)];
    const since = Date.now();
    expect(await containersMade(here, since - 60_000)).toEqual(containers);
    const job = await bench.job(tell, fork);
    expect(job).toMatchObject({ exit: -1, signalReason: 'stack_error' });
    expect(job.detail).toBe('onejob refused this job: its branch "mallory:main" belongs to a fork (rule "trust.forks: refuse").');
    expect(await here.cli(['logs', job.id]).ended).toMatchObject({
      code: 0,
      stderr: `onejob: job ${job.id} has no output: ${job.detail}\n`,
    });
    await untilAsking(bench);
    expect([await standbyOf(here, 'ci/1'), await containersOf(here)]).toEqual([standby, containers]);
    expect(await containersMade(here, since)).toEqual([]);
    await endOf(day, daemon);
  });
});
