/**
 * S3, S4 and S5 with Buildkite: the manager, the broker and both at once are killed while agents register, take jobs, run them,
 * write logs, upload and leave. Each job has one result, its log is whole, and nothing is left on either side.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import type { Boundary } from '../../src/pools/executors.ts';
import type { JobView } from '../standins/buildkite/standin.ts';
import { onlyAtTheEnd, untilIdle } from '../support/buildkite.ts';
import {
  aDay,
  brokerPid,
  endOf,
  expectOnce,
  killBroker,
  nextBroker,
  untilRunning,
  untilSays,
  works,
} from '../support/buildkite-days.ts';
import { dice } from '../support/dice.ts';
import type { Daemon } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

// Not `register`, `retire` and `prove`: agents that are the broker come and go with their slot's offer, and no pool here has devices.
const acts = ['prepare', 'release', 'terminate', 'kill', 'settle', 'clear'] as const;

/** The agent ends a job that is deaf to TERM by itself; only one that is stopped has to be killed. */
const frozen =
  'echo began one; sleep 2; for p in /proc/[0-9]*; do case $(cat $p/comm) in buildkite-agent) kill -STOP ${p#/proc/};; esac; done; sleep 1000';

/** The whole story of one death: what was begun is finished or taken back by the next manager, and the one job ends once. */
async function killedAt(boundary: Boundary): Promise<void> {
  const [act] = boundary.split('.');
  const stops = act === 'terminate' || act === 'kill';
  // The limit counts from the release: an agent that starts slowly must have been stopped before it.
  await using day = await aDay({ pool: stops ? 'timeout: 10s, stop_grace: 1s' : 'stop_grace: 2s' });
  const { bench, here } = day;
  const { buildkite } = bench;
  const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
  await doomed.says(/onejob is up/);
  const stubborn = act === 'kill' ? frozen : 'trap "" TERM; echo began one; while :; do sleep 0.1; done';
  const early = act === 'prepare' ? null : stops ? buildkite.queueJob({ command: stubborn }) : bench.hold('one');
  if (act === 'settle' || act === 'clear') {
    await untilRunning(bench, early ?? '');
    bench.go('one');
  }
  expect((await doomed.ended).signal, boundary).toBe('SIGKILL');
  const daemon = await here.up();
  const id = early ?? bench.hold('one');
  bench.go('one');
  const job = await buildkite.jobEnded(id);
  expect(job.assignments, boundary).toBe(1);
  if (stops) {
    expect(job.exit, boundary).not.toBe(0);
    expect(job.log, boundary).toMatch(/^onejob ended this job: pool ci lets a job run for 10s at most\.$/m);
    expect(job.log.match(/^began one$/gm), boundary).toHaveLength(1);
  } else expectOnce(job, 'one');
  await works(bench);
  await endOf(day, daemon);
}

/** A job of `n` lines, a hundred per second at most, that ends with `n` modulo 100. */
const lines = (n: number): string => `for i in $(seq 1 ${n}); do echo "line $i"; sleep 0.01; done; exit ${n % 100}`;

/** No line is lost or doubled, and the result is the job's own. */
function expectLines(job: JobView, n: number): void {
  const found = [...job.log.matchAll(/^line (\d+)$/gm)].map(([, i]) => Number(i));
  expect({ exit: job.exit, missing: job.logMissing, failed: job.chunksFailed }).toEqual({ exit: n % 100, missing: 0, failed: 0 });
  expect(found).toEqual(Array.from({ length: n }, (_, i) => i + 1));
}

/** Kills the broker each time the service tells of `event`, in the middle of whatever follows; four jobs, two at a time. */
async function brokerKilledOn(event: 'jobAssigned' | 'jobAccepted' | 'jobStarted' | 'jobEnded'): Promise<void> {
  await using day = await aDay({ agents: 2 }, { lostMs: 30_000 });
  const { bench, here } = day;
  const { buildkite } = bench;
  const daemon = await here.up();
  await untilIdle(bench, 2);
  const kills: number[] = [];
  const off = buildkite.on(({ kind }) => {
    const pid = kind === event ? brokerPid(here) : null;
    if (pid === null || kills.length >= 3) return;
    kills.push(Date.now());
    process.kill(pid, 'SIGKILL');
  });
  const ids = Array.from({ length: 4 }, (_, n) =>
    buildkite.queueJob({ command: `echo began ${n}; echo ended ${n}; exit ${n}`, chunksIntervalS: onlyAtTheEnd }),
  );
  const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
  off();
  expect(kills.length, event).toBeGreaterThan(0);
  for (const [n, job] of jobs.entries()) {
    // Killed in the very moment of accepting, the job's token can be lost with the answer; then the service is told. Both agents
    // may be accepting at that moment.
    const { accepted = 0 } = job.times;
    const isLost =
      job.exit === -1 && ['agent_stop', 'agent_disconnected'].includes(job.signalReason ?? '') && !/^began/m.test(job.log);
    if (!isLost || !kills.some((at) => Math.abs(at - accepted) < 1_000))
      expect({ event, exit: job.exit, log: job.log.match(/^(began|ended) \d$/gm) }).toEqual({
        ...{ event, exit: n, log: [`began ${n}`, `ended ${n}`] },
      });
  }
  await works(bench);
  await endOf(day, daemon, kills.length);
}

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('Buildkite', () => {
  // The three of one action at a time, each with a service and a home of its own: mostly they wait.
  test.each(acts)('its manager is killed before, while and after it does: %s', async (act) => {
    await Promise.all((['intent', 'effect', 'record'] as const).map((point) => killedAt(`${act}.${point}`)));
  });

  test('its manager dies ten times under 18 jobs, and is then away: all go on, and end with their own results meanwhile', async () => {
    await using day = await aDay({ agents: 18, pool: 'standby: false' }, { lostMs: 8_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    let daemon = await here.up();
    await untilIdle(bench, 18, 60_000);
    const command = (n: number) => `echo began ${n}; until [ -e /go/all ]; do sleep 1; done; echo ended ${n}; exit ${n}`;
    const ids = Array.from({ length: 18 }, (_, n) => buildkite.queueJob({ command: command(n), chunksIntervalS: onlyAtTheEnd }));
    await Promise.all(ids.map((id) => untilRunning(bench, id, 90_000)));
    const broker = brokerPid(here);
    for (let kills = 0; kills < 10; kills++) {
      await daemon.kill();
      daemon = await here.up();
    }
    await daemon.kill();
    // Longer than an agent may be silent, and than idle ones are kept without a manager.
    await sleep(12_000);
    expect(ids.map((id) => buildkite.job(id).state)).toEqual(ids.map(() => 'running'));
    bench.go('all');
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    for (const [n, job] of jobs.entries()) {
      expect({ exit: job.exit, log: job.log.match(/^(began|ended) \d+$/gm), assigned: job.assignments }).toEqual({
        ...{ exit: n, log: [`began ${n}`, `ended ${n}`], assigned: 1 },
      });
    }
    expect(brokerPid(here)).toBe(broker);
    daemon = await here.up();
    await works(bench);
    await endOf(day, daemon);
  });

  test('its broker is killed as a job is given, taken, begun and ended', async () => {
    await Promise.all((['jobAssigned', 'jobAccepted', 'jobStarted', 'jobEnded'] as const).map(brokerKilledOn));
  });

  test('its broker is killed again and again while jobs write: no line is lost or doubled', async () => {
    await using day = await aDay({ agents: 2 }, { lostMs: 30_000 });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench, 2);
    const ids = [600, 601].map((n) => buildkite.queueJob({ command: lines(n) }));
    await untilSays(bench, ids[0] ?? '', /^line 1$/m);
    for (let kills = 0; kills < 3; kills++) {
      const pid = brokerPid(here);
      await killBroker(here);
      expect(await nextBroker(here, pid)).toBeLessThan(5_000);
      await sleep(1_500);
    }
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    expectLines(jobs[0] as JobView, 600);
    expectLines(jobs[1] as JobView, 601);
    await works(bench);
    await endOf(day, daemon);
  });

  test.each([
    { how: 'as one', partBytes: null, size: 1 << 30 },
    { how: 'in parts', partBytes: 64 << 20, size: 256 << 20 },
  ])('its broker is killed in the middle of a large artifact, sent $how: it arrives whole', async ({ partBytes, size }) => {
    await using day = await aDay({}, { lostMs: 30_000, ...(partBytes !== null && { partBytes }) });
    const { bench, here } = day;
    const { buildkite } = bench;
    const daemon = await here.up();
    await untilIdle(bench);
    const firstPart = buildkite.next('answered', ({ request }) => request.route === 'artifact-host/parts/:id/:part');
    // A form is read only later, so that it is on its way for long enough.
    const upload = 'artifact-host/upload';
    buildkite.faults.add({ kind: 'delay', ms: 5_000 }, { route: upload, times: 1 });
    const id = buildkite.queueJob({ command: `truncate -s ${size} big; echo made`, artifactPaths: 'big' });
    if (partBytes === null) await expect.poll(() => buildkite.requests.some(({ route }) => route === upload)).toBe(true);
    else await firstPart;
    const pid = brokerPid(here);
    await killBroker(here);
    expect(buildkite.job(id).artifacts).toMatchObject([{ path: 'big', received: null }]);
    await nextBroker(here, pid);
    const job = await buildkite.jobEnded(id);
    expect(job).toMatchObject({ exit: 0, artifacts: [{ path: 'big', state: 'finished', size, received: { size } }] });
    const [artifact] = job.artifacts;
    if (partBytes === null) expect(artifact?.received?.sha1).toBe(artifact?.sha1);
    await works(bench);
    await endOf(day, daemon);
  });

  test('both are killed at once, again and again for 30 s under a stream of jobs', async () => {
    await using day = await aDay({ agents: 2 }, { lostMs: 20_000 });
    let daemon: Daemon = await day.here.up();
    const { bench, here } = day;
    const { buildkite } = bench;
    await untilIdle(bench, 2);
    const ids: string[] = [];
    let kills = 0;
    const random = dice();
    for (const until = Date.now() + 30_000; Date.now() < until; ) {
      const open = ids.filter((id) => buildkite.job(id).exit === null).length;
      const n = ids.length;
      if (open < 4)
        ids.push(
          buildkite.queueJob({
            command: `echo began ${n}; sleep ${(random() * 0.5).toFixed(2)}; echo ended ${n}`,
            chunksIntervalS: onlyAtTheEnd,
          }),
        );
      await sleep(random() * 3_000);
      const which = random();
      const [, isKilled] = await Promise.all([which < 0.7 ? daemon.kill() : null, which > 0.3 ? killBroker(here) : false]);
      if (isKilled) kills += 1;
      if (which < 0.7) daemon = await here.up();
    }
    const jobs = await Promise.all(ids.map((id) => buildkite.jobEnded(id)));
    expectRanOnce(jobs);
    await works(bench);
    await endOf(day, daemon, kills);
  });
});

/** Each ended well, or was lost between its accept and the word of it; then nothing of it ran, and its log says so. */
function expectRanOnce(jobs: readonly JobView[]): void {
  for (const [n, job] of jobs.entries()) {
    const ran = job.log.match(/^(began|ended) \d+$/gm);
    if (job.exit === 0) expect(ran).toEqual([`began ${n}`, `ended ${n}`]);
    else expect({ exit: job.exit, ran, log: job.log }).toEqual({ exit: -1, ran: null, log: expect.anything() });
  }
  expect(jobs.filter(({ exit }) => exit !== 0).length).toBeLessThanOrEqual(Math.ceil(jobs.length / 5));
}
