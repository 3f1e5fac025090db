/** What people do to a pool of Buildkite: pause, drain, stop in every way, change its config, run two onejobs on it, upgrade. */
import { renameSync, rmSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { onlyAtTheEnd, untilIdle } from '../support/buildkite.ts';
import {
  aDay,
  brokerPid,
  connected,
  down,
  endOf,
  expectOnce,
  laneOf,
  troubleOf,
  untilRunning,
  works,
} from '../support/buildkite-days.ts';
import { untilGone } from '../support/child.ts';
import { slotOf, standbyOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** From now on the broker that is there seems to be of another version: its real words pass by, all but that one. */
async function speakingOtherwise({ stateDir }: Home): Promise<{ close(): Promise<void> }> {
  const path = join(stateDir, 'broker', 'broker.sock');
  renameSync(path, `${path}.real`);
  const server = http.createServer((request, response) => {
    const { method, url, headers } = request;
    const inner = http.request({ socketPath: `${path}.real`, method, path: url, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 500, { 'content-type': 'application/json' });
      answer.on('data', (data: Buffer) => response.write(data.toString().replace(/"protocol":\d+/, '"protocol":99')));
      answer.on('close', () => response.end());
    });
    inner.on('error', () => response.destroy());
    request.pipe(inner);
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  return {
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      rmSync(`${path}.real`, { force: true });
    },
  };
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('a pool of Buildkite', () => {
  test('is paused: its idle agent goes, jobs wait; resumed, they run. Drained: the running job ends first', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench);
    expect((await here.cli(['pause', 'ci']).ended).code).toBe(0);
    await expect.poll(() => connected(bench)).toEqual([]);
    const waits = buildkite.queueJob({ command: 'echo waited' });
    await sleep(2_000);
    expect(buildkite.job(waits).state).toBe('scheduled');
    expect((await here.cli(['resume', 'ci']).ended).code).toBe(0);
    expect((await buildkite.jobEnded(waits)).exit).toBe(0);

    const runs = bench.hold('drained');
    await untilRunning(bench, runs);
    expect((await here.cli(['drain', 'ci']).ended).code).toBe(0);
    const later = buildkite.queueJob({ command: 'echo later' });
    await sleep(1_000);
    bench.go('drained');
    expectOnce(await buildkite.jobEnded(runs), 'drained');
    await expect.poll(() => connected(bench)).toEqual([]);
    await sleep(1_000);
    expect(buildkite.job(later).state).toBe('scheduled');
    await here.api.resume(null, 'person');
    expect((await buildkite.jobEnded(later)).exit).toBe(0);
    await endOf(day, daemon);
  });

  test('is stopped with an idle agent, with a job that is ended, and with one that is waited for', async () => {
    await using day = await aDay({ pool: 'stop_grace: 2s' });
    const { bench, here } = day;
    const { buildkite } = bench;
    await here.up();
    await untilIdle(bench);
    await down(here);
    await expect.poll(() => buildkite.census().agents).toEqual([]);

    const ended = bench.hold('ended');
    await here.up();
    await untilRunning(bench, ended);
    await down(here);
    const view = await buildkite.jobEnded(ended);
    expect(view.exit).not.toBe(0);
    expect(view).toMatchObject({ signalReason: expect.stringMatching(/agent_stop|cancel|process_run_error/) });
    expect(view.log).toMatch(/^onejob ended this job: it was told to stop\.$/m);
    await expect.poll(() => buildkite.census().agents).toEqual([]);

    await here.up();
    const drained = bench.hold('drained');
    await untilRunning(bench, drained);
    const stopping = down(here, '--drain');
    const next = buildkite.queueJob({ command: 'echo next' });
    await expect.poll(async () => (await here.api.status()).stopping).toBe(true);
    bench.go('drained');
    await stopping;
    expectOnce(buildkite.job(drained), 'drained');
    await expect.poll(() => buildkite.census().agents).toEqual([]);
    expect(buildkite.job(next).state).toBe('scheduled');
    const daemon = await here.up();
    expect((await buildkite.jobEnded(next)).exit).toBe(0);
    await endOf(day, daemon);
  });

  test('is left with its jobs: the next onejob takes over the one that runs, and hears of one that has ended', async () => {
    await using day = await aDay({ agents: 2 });
    const { bench, here } = day;
    const { buildkite } = bench;
    await here.up();
    await untilIdle(bench, 2);
    const [one, two] = [bench.hold('one'), bench.hold('two')];
    await untilRunning(bench, one);
    await untilRunning(bench, two);
    const broker = brokerPid(here);
    await down(here, '--leave');
    expect(brokerPid(here)).toBe(broker);
    bench.go('one');
    expectOnce(await buildkite.jobEnded(one), 'one');
    const daemon = await here.up();
    await expect.poll(async () => [await laneOf(here, 'ci/1'), await laneOf(here, 'ci/2')].sort()).toEqual(['busy', 'free']);
    const slots = await Promise.all(['ci/1', 'ci/2'].map((key) => slotOf(here, key)));
    expect(slots.map(({ agent }) => agent.job)).toContain(two);
    bench.go('two');
    expectOnce(await buildkite.jobEnded(two), 'two');
    await works(bench);
    const { stdout } = await here.cli(['jobs', '--all']).ended;
    expect(stdout).toContain(one);
    await endOf(day, daemon);
  });

  test('has its tags, its name and its queue changed: idle agents are renewed, and a job that runs is not disturbed', async () => {
    await using day = await aDay({ agents: 2, pool: 'name: "old.{n}", tags: "gpu=a100"' });
    const { bench, here } = day;
    const { buildkite } = bench;
    const first = await here.up();
    await untilIdle(bench, 2);
    const id = bench.hold('through');
    const { agent } = await untilRunning(bench, id);
    await expect.poll(async () => [await standbyOf(here, 'ci/1'), await standbyOf(here, 'ci/2')]).not.toContain(null);
    await down(here, '--leave');
    // Also with sandboxes at the gate whose doors are open.
    expect((await first.child.ended).code).toBe(0);
    here.configure(bench.config({ agents: 2, pool: 'name: "new.{n}", tags: "gpu=h100,fast"', queue: 'other' }));
    const daemon = await here.up();
    const idle = () => buildkite.agents().filter(({ state }) => state === 'idle');
    await expect.poll(() => idle().map(({ name }) => name), { timeout: 20_000 }).toHaveLength(1);
    await expect
      .poll(() => idle().map(({ name, tags }) => ({ name: name.slice(0, 4), tags: [...tags].sort() })), { timeout: 20_000 })
      .toEqual([{ name: 'new.', tags: ['fast', 'gpu=h100', 'queue=other'] }]);
    expect(buildkite.job(id)).toMatchObject({ state: 'running', agent });
    bench.go('through');
    expectOnce(await buildkite.jobEnded(id), 'through');
    await works(bench, { queue: 'other', rules: ['gpu=h100'] });
    await endOf(day, daemon);
  });

  test('serves two onejobs under one name: each job runs once, and who stops takes only its own', async () => {
    await using day = await aDay({ pool: 'name: "gpu.{n}"' });
    const { bench, here: one } = day;
    const { buildkite } = bench;
    await using two = await onejob({ config: bench.config({ pool: 'name: "gpu.{n}"' }) });
    const [first, second] = [await one.up(), await two.up()];
    await untilIdle(bench, 2);
    expect(connected(bench)).toEqual(['gpu.1', 'gpu.1']);
    const ids = Array.from({ length: 6 }, (_, n) =>
      buildkite.queueJob({ command: `echo began ${n}; echo ended ${n}`, chunksIntervalS: onlyAtTheEnd }),
    );
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    for (const [n, job] of jobs.entries()) expectOnce(job, String(n));
    expect(jobs.map(({ assignments }) => assignments)).toEqual(jobs.map(() => 1));
    await second.stop();
    await expect.poll(() => connected(bench)).toEqual(['gpu.1']);
    await works(bench);
    await endOf(day, first);
  });

  test('is upgraded while a broker that speaks otherwise runs a job: it says so, the job ends well, and then a new broker comes', async () => {
    await using day = await aDay();
    const { bench, here } = day;
    const { buildkite } = bench;
    const first = await here.up();
    await untilIdle(bench);
    const id = bench.hold('old');
    await untilRunning(bench, id);
    const old = brokerPid(here);
    await first.kill();
    const other = await speakingOtherwise(here);
    const daemon = await here.up();
    await expect.poll(() => troubleOf(here)).toMatch(/A broker of onejob .* is still at work/);
    const next = buildkite.queueJob({ command: 'echo next' });
    await sleep(2_000);
    expect(buildkite.job(id).state).toBe('running');
    expect(buildkite.job(next).state).toBe('scheduled');
    bench.go('old');
    expectOnce(await buildkite.jobEnded(id), 'old');
    await untilGone(old ?? 0);
    await other.close();
    expect((await buildkite.jobEnded(next)).exit).toBe(0);
    expect(brokerPid(here)).not.toBe(old);
    await works(bench);
    await expect.poll(() => troubleOf(here)).toBe('');
    await endOf(day, daemon);
  });
});
