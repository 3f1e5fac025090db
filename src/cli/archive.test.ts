/** Looking at jobs without a daemon: everything is shown, nothing is started, nothing is written. */
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createOwnQueue } from '../ci/own-queue/own-queue.ts';
import type { QueuePool } from '../ci/own-queue/request.ts';
import { runCli } from '../cli.ts';
import { jobRequest } from '../contract/job.ts';
import { emptySlot } from '../core/slot.ts';
import { createLogFolder } from '../logs/log-file.ts';
import { imagesADay } from '../store/outcome-sums.ts';
import { openStore } from '../store/store.ts';

const pool = { name: 'p', timeout: null, recipe: { image: null, mounts: [] }, devices: { count: 0 } } as unknown as QueuePool;

let dir: Scratch;
beforeEach(async () => {
  dir = scratch();
  const store = openStore(state());
  const queue = createOwnQueue({ store, pools: [pool] });
  queue.submit(jobRequest.parse({ id: 'aaaaaaaaaaaa', command: ['./first'] }));
  queue.submit(jobRequest.parse({ id: 'bbbbbbbbbbbb', command: ['./second'] }));
  store.transaction({ durable: false }, () => {
    queue.jobs.record({ change: 'assigned', job: 'aaaaaaaaaaaa', agent: 'a1' });
    queue.jobs.record({ change: 'started', job: 'aaaaaaaaaaaa', agent: 'a1' });
    store.history.made({ agent: 'a1', pool: 'p', slot: 'p/1', name: 'a1', madeAt: 1 });
    store.history.released('a1', 'aaaaaaaaaaaa', 2);
  });
  queue.jobs.committed();
  await queue.close();
  store.close();
});
afterEach(() => dir[Symbol.dispose]());

const state = () => join(dir.path, 'state');

async function onejob(...args: string[]) {
  const { context, stdout, stderr } = testContext([...args, '--state-dir', state()], dir.path);
  const code = await runCli(context);
  return { code, stdout: stdout(), stderr: stderr() };
}

test('jobs lists what waits and what ran, and says that no daemon runs', async () => {
  const before = readdirSync(state());
  const { code, stdout, stderr } = await onejob('jobs');
  expect(code).toBe(0);
  expect(stdout).toMatch(/aaaaaaaaaaaa +p +running.*\.\/first\n.*bbbbbbbbbbbb +p +queued.*\.\/second — No daemon is running/);
  expect(stderr).toBe('onejob: no daemon is running; one job is waiting; one job was left running; start it with "onejob up"\n');
  expect((await onejob('jobs', 'bbbb', '--json')).stdout).toContain('"state":"queued"');
  expect(readdirSync(state())).toEqual(before);
});

test('history compares pools, devices and images, or the days of one image; jobs lists those behind a number', async () => {
  const store = openStore(state());
  const day = 86_400_000;
  const today = Math.floor(Date.now() / day) * day;
  store.transaction({ durable: false }, () => {
    for (const [job, image, kind] of [
      ['aaaaaaaaaaaa', 'registry.example.org/a-team-with-a-long-name/cuda:12', 'infrastructure'],
      ['bbbbbbbbbbbb', 'debian:13', 'passed'],
    ] as const) {
      const ending = { result: null, exit: null, memoryLimited: false, ownRecipe: false, ownImage: false };
      const verdict = { kind, why: 'so', evidence: [] };
      const about = { job, service: 'own', pool: 'p', agent: null, image, devices: [] };
      store.outcomes.save({ ...about, verdict, ending, wait: 1_000, run: 2_000, endedAt: today });
    }
  });
  store.close();
  const { stdout } = await onejob('history');
  expect(stdout).toMatch(
    /^POOL.*\np +2 +50%[\s\S]*\nIMAGE +JOBS.*\nregistry.example.org\/a-team\S+cuda:12 +1 +100%.*\ndebian:13 +1 +0%/,
  );
  expect((await onejob('history', '--image', 'debian:13')).stdout).toMatch(
    new RegExp(`^DAY.*\n${new Date(today).toISOString().slice(0, 10)} +1 +0%.*\n$`),
  );
  expect((await onejob('history', '--by', 'device')).stdout).toBe('No job that ended in this time had a device.\n');
  expect((await onejob('history', '--by', 'device', '--until', '30d', '--since', '60d')).stdout).toContain(
    'No jobs ended in this time',
  );
  expect(await onejob('history', '--by', 'device', '--image', 'debian:13')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('Cannot count jobs by device for one image'),
  });
  const jobs = await onejob('jobs', '--image', 'debian:13', '--json');
  expect(jobs.stdout).toMatch(/^\[?\{"id":"bbbbbbbbbbbb".*\}\]?\n$/);
});

test('history of one image says how many jobs may be missing in it, when their day had too many images', async () => {
  const store = openStore(state());
  // All on one day, also when this runs at midnight.
  const endedAt = Date.now();
  store.transaction({ durable: false }, () => {
    for (let n = 0; n <= imagesADay; n++) {
      const ending = { result: null, exit: null, memoryLimited: false, ownRecipe: false, ownImage: false };
      const about = { job: `j${n}`, service: 'own', pool: 'p', agent: null, image: `built:${n}`, devices: [] };
      const verdict = { kind: 'passed', why: 'so', evidence: [] } as const;
      store.outcomes.save({ ...about, verdict, ending, wait: 1, run: 2, endedAt });
    }
  });
  store.close();
  const late = await onejob('history', '--image', `built:${imagesADay}`);
  expect(late.stdout).toContain('No jobs ended in this time');
  expect(late.stderr).toContain('1 job of days with many images is counted as "other images"');
  expect(late.stderr).toContain(`"onejob jobs --image built:${imagesADay}" lists each`);
  expect((await onejob('history', '--image', 'other images')).stderr).not.toContain('with many images');
});

test('logs shows what was kept; with -f it ends with 1, as more would come', async () => {
  mkdirSync(join(state(), 'logs'), { recursive: true });
  writeFileSync(createLogFolder(join(state(), 'logs')).path('a1'), '');
  for (const [flags, code] of [
    [[], 0],
    [['-f'], 1],
  ] as const) {
    const said = await onejob('logs', 'aaaa', ...flags);
    expect([said.code, said.stderr]).toEqual([
      code,
      expect.stringContaining('output that has not been read yet appears once a daemon runs'),
    ]);
  }
  expect((await onejob('logs', 'bbbb')).stderr).toContain('the job is waiting for one');
  expect(await onejob('logs', 'none')).toMatchObject({ code: 1, stderr: expect.stringContaining('There is no job or agent none') });
});

test('logs -n shows the last lines of what was kept, of a job and of the agent in a slot', async () => {
  mkdirSync(join(state(), 'logs'), { recursive: true });
  const file = createLogFolder(join(state(), 'logs')).open('a1');
  const bytes = Buffer.from('one\ntwo\nthree\n');
  file.append({ stream: 'stdout', time: 1n, bytes }, bytes);
  file.close();
  for (const id of ['aaaa', 'p/1']) expect((await onejob('logs', '-n', '2', id)).stdout).toBe('two\nthree\n');
});

test.each([['cancel', 'aaaaaaaaaaaa'], ['status'], ['plan'], ['pause']])(
  '%s says that no daemon runs and how many jobs wait',
  async (...args) => {
    const { code, stderr } = await onejob(...args);
    expect([code, stderr]).toEqual([1, expect.stringMatching(/No daemon is running.*one job is waiting[\s\S]*"onejob up"/)]);
    expect(readdirSync(state())).not.toContain('daemon.log');
  },
);

test('down exits with 1 when it ended nothing', async () => {
  expect(await onejob('down')).toMatchObject({ code: 1, stdout: 'No daemon runs here, so nothing was ended.\n' });
});

test('down names what the last daemon left, and how to end it', async () => {
  const store = openStore(state());
  const slot = emptySlot({ key: 'p/1', runtime: 'docker', grace: 0 });
  store.slots.save({ ...slot, agent: { kind: 'busy', agent: 'a1', job: 'aaaaaaaaaaaa', since: 0, due: null } });
  store.close();
  expect(await onejob('down', '--now')).toMatchObject({
    code: 1,
    stdout: `No daemon runs here, so nothing was ended.
The last daemon left 1 agent with 1 job (aaaaaaaaaaaa), which may still run: a1.
To end what runs, start a daemon with "onejob up", then type "onejob down --end".
`,
  });
  expect(JSON.parse((await onejob('down', '--json')).stdout)).toMatchObject({ left: { agents: ['a1'], jobs: ['aaaaaaaaaaaa'] } });
});

test('doctor checks what it can without a daemon', async () => {
  writeFileSync(join(dir.path, 'c.yml'), 'pools: { p: { agents: many } }\n');
  const { code, stdout } = await onejob('doctor', '--config', join(dir.path, 'c.yml'));
  expect([code, stdout]).toEqual([1, expect.stringMatching(/warning +daemon: No daemon is running[\s\S]*one job is waiting/)]);
  expect(stdout).toMatch(/error +config: .*agents/);
});

test('a store of an older onejob is left to a daemon, which brings it up to date', async () => {
  const db = new DatabaseSync(join(state(), 'onejob.db'));
  db.exec('PRAGMA user_version = 1');
  db.close();
  expect(await onejob('jobs')).toMatchObject({ code: 1, stderr: expect.stringMatching(/an older onejob[\s\S]*"onejob up"/) });
});

test('without any state there are no jobs, and commands that look create none', async () => {
  dir[Symbol.dispose]();
  mkdirSync(dir.path);
  const { code, stdout } = await onejob('jobs');
  expect([code, stdout]).toEqual([0, 'No jobs wait or run; "onejob jobs --all" shows those that ended.\n']);
  expect(readdirSync(dir.path)).toEqual([]);
});
