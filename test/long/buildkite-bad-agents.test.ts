/** Agents and jobs of Buildkite that come to a bad end, or to none: the service shows why, the slot goes on, and nothing spins. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { JobView } from '../standins/buildkite/standin.ts';
import { untilIdle } from '../support/buildkite.ts';
import { aDay, connected, containerOf, endOf, laneOf, troubleOf, untilSays, works } from '../support/buildkite-days.ts';
import { engineAt } from '../support/engine-http.ts';
import { lacks } from '../support/require.ts';

/** A program in the agent's place, by what it does: it says the right version, as that is looked at. */
function broken(script: string): { readonly path: string } & Disposable {
  const dir = mkdtempSync(join(tmpdir(), 'oj-broken-'));
  chmodSync(dir, 0o755);
  const path = join(dir, 'buildkite-agent');
  writeFileSync(path, `#!/bin/sh\ncase "$*" in *version*) echo "buildkite-agent version 3.137.0+x.y"; exit 0;; esac\n${script}\n`);
  chmodSync(path, 0o755);
  return { path, [Symbol.dispose]: () => rmSync(dir, { recursive: true, force: true }) };
}

type Story = (day: Awaited<ReturnType<typeof aDay>>) => Promise<void>;

/** A day with one agent, on which one thing happens; afterwards the pool works, and nothing is left. */
async function aDayOn(config: Parameters<typeof aDay>[0], story: Story, options?: Parameters<typeof aDay>[1]): Promise<void> {
  await using day = await aDay(config, options);
  const daemon = await day.here.up();
  await untilIdle(day.bench);
  await story(day);
  await works(day.bench);
  await expect.poll(() => troubleOf(day.here)).toBe('');
  await endOf(day, daemon);
}

/** A sandbox that ends under its job: the service shows why. */
const ends =
  (how: RegExp, act: (container: string) => Promise<void>): Story =>
  async ({ bench, here }) => {
    const id = bench.hold('doomed');
    await untilSays(bench, id, /^began doomed$/m);
    await expect.poll(() => laneOf(here)).toBe('busy');
    await act(await containerOf(here));
    const job = await bench.buildkite.jobEnded(id);
    expectLost(job, how);
  };

function expectLost(job: JobView, how: RegExp): void {
  expect({ exit: job.exit, reason: job.signalReason, log: job.log }).toEqual({
    ...{ exit: -1, reason: 'process_run_error', log: expect.stringMatching(how) },
  });
}

async function engine(method: string, path: string): Promise<void> {
  using docker = engineAt();
  await docker.ok(method, path);
}

/** A letter for each of its processes that is an agent: `T` is one that is stopped. */
async function statesOf(container: string): Promise<string> {
  using docker = engineAt();
  const { Processes } = (await docker.ok(
    'GET',
    `/containers/${container}/top?ps_args=${encodeURIComponent('-eo pid,stat,comm')}`,
  )) as {
    readonly Processes: readonly string[][];
  };
  return Processes.flatMap(([, state = '', name]) => (name === 'buildkite-agent' ? [state.slice(0, 1)] : [])).join('');
}

async function isThere(container: string): Promise<boolean> {
  using docker = engineAt();
  return (await docker.call('GET', `/containers/${container}/json`)).status === 200;
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('a bad end', () => {
  // At the same time, each with a service and a home of its own: mostly they wait.
  test('of a sandbox: killed or removed by a person, by its own job, or out of memory', async () => {
    await Promise.all([
      aDayOn(
        {},
        ends(/This job was lost: /, (id) => engine('POST', `/containers/${id}/kill`)),
      ),
      aDayOn(
        {},
        ends(/This job was lost: /, (id) => engine('DELETE', `/containers/${id}?force=1`)),
      ),
      aDayOn({}, async ({ bench }) => {
        // The oldest first: should its bootstrap go before it, the agent may still say that the job was killed.
        const job = await bench.job(
          'echo began; kill -9 $(pidof buildkite-agent | tr " " "\\n" | sort -n) || for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done',
        );
        expectLost(job, /This job was lost: /);
      }),
      aDayOn({ pool: 'memory: 128MiB' }, async ({ bench }) => {
        const job = await bench.job('echo began; a=$(head -c 400M /dev/zero | tr "\\0" x); echo ${#a}');
        expect(job.exit).not.toBe(0);
        expect(job.log).toMatch(/began/);
      }),
    ]);
  });

  test('by a cancel at the service: while it runs, while it takes long to end, and while it waits for its sandbox', async () => {
    await Promise.all([
      aDayOn({}, async ({ bench }) => {
        const id = bench.hold('unwanted');
        await untilSays(bench, id, /^began unwanted$/m);
        bench.buildkite.cancel(id);
        const job = await bench.buildkite.jobEnded(id);
        expect(job).toMatchObject({ state: 'canceled', log: expect.not.stringMatching(/^ended unwanted$/m) });
      }),
      aDayOn({}, async ({ bench }) => {
        const id = bench.buildkite.queueJob({
          command: 'trap "echo cleaning; sleep 3; echo cleaned; exit 7" TERM; echo began; while :; do sleep 0.1; done',
        });
        await untilSays(bench, id, /^began$/m);
        bench.buildkite.cancel(id);
        const job = await bench.buildkite.jobEnded(id);
        expect(job.state).toBe('canceled');
        expect(job.log).toMatch(/^cleaning\ncleaned$/m);
      }),
      aDayOn({ pool: 'standby: false' }, async ({ bench }) => {
        const { buildkite } = bench;
        const id = buildkite.queueJob({ command: 'echo ran' });
        await expect.poll(() => buildkite.job(id).state, { interval: 5 }).toBe('accepted');
        buildkite.cancel(id);
        const job = await buildkite.jobEnded(id);
        expect(job.state).toBe('canceled');
      }),
    ]);
  });

  test('by a cancel at the service that its agent cannot hear, since the job has stopped it', async () => {
    // It goes on calling in by itself, as an agent that is there would.
    const calls = 'wget -qO /dev/null --header "Authorization: Token $t" "$e/jobs/$BUILDKITE_JOB_ID/data/get" || :';
    const story: Story = async ({ bench, here }) => {
      const id = bench.buildkite.queueJob({
        command: [
          't=$BUILDKITE_AGENT_ACCESS_TOKEN; e=$BUILDKITE_AGENT_ENDPOINT; echo began; sleep 2; kill -STOP $(pidof buildkite-agent)',
          `while :; do ${calls}; sleep 1; done`,
        ].join('; '),
      });
      await untilSays(bench, id, /^began$/m);
      const container = await containerOf(here);
      await expect.poll(() => statesOf(container)).toMatch(/^T+$/);
      bench.buildkite.cancel(id);
      const job = await bench.buildkite.jobEnded(id);
      expect(job).toMatchObject({ state: 'canceled', exit: -1, signalReason: 'cancel' });
      expect(job.log).toMatch(/^The job was cancelled\.$/m);
      await expect.poll(() => isThere(container)).toBe(false);
    };
    const ways = ['', 'binding: early'];
    await Promise.all(ways.map((service) => aDayOn({ service, pool: 'stop_grace: 2s' }, story, { lostMs: 600_000 })));
  });

  test("by the pool's timeout, however it was bound: the service shows it and its log says so, polite or not", async () => {
    const ways = ['', 'binding: early'].flatMap((service) => ['exit 0', ':'].map((onTerm) => ({ service, onTerm })));
    await Promise.all(
      ways.map(({ service, onTerm }) =>
        aDayOn({ service, pool: 'timeout: 10s, stop_grace: 2s' }, async ({ bench }) => {
          const id = bench.buildkite.queueJob({ command: `trap "${onTerm}" TERM; echo began; while :; do sleep 0.1; done` });
          const job = await bench.buildkite.jobEnded(id);
          expect(job.exit).not.toBe(0);
          expect(job.log).toMatch(/^began$/m);
          expect(job.signalReason).toBe('agent_stop');
          expect(job.log).toMatch(/^onejob ended this job: pool ci lets a job run for 10s at most\.\n$/m);
          expect(job.logMissing).toBe(0);
        }),
      ),
    );
  });

  test('of an agent that never calls in: given up after `boot_timeout` with the reason, and backed off from', async () => {
    using sleeper = broken('exec sleep 1000');
    await using day = await aDay();
    const { bench, here } = day;
    here.configure(bench.config({ service: 'boot_timeout: 3s' }).replace(/from: \S+ }/, `from: ${sleeper.path} }`));
    const daemon = await here.up();
    const first = await bench.job('echo never');
    expectLost(first, /did not call in within 3 s/);
    expect(first.log).not.toMatch(/^never$/m);
    await expect.poll(() => troubleOf(here)).toMatch(/never called in/);
    // Each time longer.
    expectLost(await bench.job('echo never'), /did not call in within 3 s/);
    await expect.poll(() => troubleOf(here)).toMatch(/never called in/);
    // Longer than an agent stays without need: none is left that would take jobs, only to lose them.
    expectLost(await bench.job('echo never'), /did not call in within 3 s/);
    await expect.poll(() => connected(bench)).toEqual([]);
    await endOf(day, daemon);
  });

  test('of an agent that ends at once, and of an image that cannot start: said at the service, and the pool backs off', async () => {
    using crasher = broken('echo "no such flag" >&2; exit 3');
    await Promise.all([
      (async () => {
        await using day = await aDay();
        const { bench, here } = day;
        here.configure(bench.config().replace(/from: \S+ }/, `from: ${crasher.path} }`));
        const daemon = await here.up();
        expectLost(await bench.job('echo never'), /ended with exit code 3|This job was lost/);
        await expect.poll(() => troubleOf(here)).toMatch(/never called in/);
        await endOf(day, daemon);
      })(),
      (async () => {
        await using day = await aDay({ image: 'onejob.test/none:1', service: 'hold_timeout: 20s' });
        const { bench, here } = day;
        const daemon = await here.up();
        await expect.poll(() => troubleOf(here), { timeout: 20_000 }).toMatch(/none:1/);
        // No agent is offered whose job could not be run.
        const id = bench.buildkite.queueJob();
        await sleep(3_000);
        expect(bench.buildkite.job(id).state).toBe('scheduled');
        expect(connected(bench)).toEqual([]);
        bench.buildkite.cancel(id);
        await endOf(day, daemon);
      })(),
      (async () => {
        await using day = await aDay({ image: 'onejob.test/none:1', pool: 'standby: false' });
        const { bench, here } = day;
        const daemon = await here.up();
        // Only a job shows it here.
        const job = await bench.job('echo never');
        expectLost(job, /could not make a sandbox for this job: .*none:1/);
        await expect.poll(() => troubleOf(here)).toMatch(/none:1/);
        await endOf(day, daemon);
      })(),
    ]);
  });
});
