/**
 * S6 through the whole product: the Engine goes away under a busy job and a standby, and comes back. What ended with it
 * was ended by the infrastructure; what continued is taken up where it was; nothing is begun twice; and nobody has to help.
 */
import { chmodSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type PrivateEngine, type PrivateEngineOptions, privateEngine } from '../support/dockerd.ts';
import { ensureImages, images } from '../support/images.ts';
import { poolOf, standbyOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

interface World extends AsyncDisposable {
  readonly engine: PrivateEngine;
  readonly here: Home;
  /** How many scripts have begun: each leaves a file. */
  begun(): number;
  /** Lets go those that wait by `untilGo`. */
  go(): void;
}

/** What every job here does first. */
const mark = 'mktemp -p /runs XXXXXX >/dev/null';
const untilGo = 'until [ -e /runs/go ]';

async function world(agents: number, options: PrivateEngineOptions = {}): Promise<World> {
  await using parts = new AsyncDisposableStack();
  const engine = parts.use(await privateEngine(options));
  await ensureImages(engine.socket);
  const here = parts.use(await onejob({ env: { DOCKER_HOST: engine.url }, engine: engine.socket }));
  const folder = join(here.dir, 'runs');
  mkdirSync(folder);
  chmodSync(folder, 0o777);
  const pool = `agents: ${agents}, runtime: docker, image: "${images.base}", stop_grace: 1s, volumes: ["${folder}:/runs:rw"]`;
  here.configure(`pools: { default: { ${pool} } }`);
  here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
  const all = parts.move();
  return {
    engine,
    here,
    begun: () => readdirSync(folder).filter((name) => name !== 'go').length,
    go: () => writeFileSync(join(folder, 'go'), ''),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

const shell = (here: Home, script: string) => here.run('--no-workspace', '--', 'sh', '-c', `${mark}; ${script}`);
const patient = { timeout: 60_000, interval: 100 };

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('the Engine goes away', { timeout: 180_000 }, () => {
  test.each(['stop', 'kill'] as const)('without live-restore (%s): jobs are lost, the pool recovers', async (how) => {
    await using it = await world(2);
    const { engine, here } = it;
    await here.up();
    const plain = shell(here, 'echo begun; exec sleep 600');
    const polite = shell(here, 'trap "echo bye; exit 0" TERM; echo begun; while :; do sleep 0.05; done');
    await Promise.all([plain.says(/begun/), polite.says(/begun/)]);
    const standbys = () => Promise.all([standbyOf(here, 'default/1'), standbyOf(here, 'default/2')]);
    await expect.poll(standbys, patient).not.toContain(null);
    const before = await standbys();
    await engine[how]();
    const problems = async () => (await here.api.status()).problems.join();
    await expect.poll(problems, patient).toMatch(/closed the connection|the socket does not exist|nothing listens there/);
    await engine.start();
    for (const run of [plain, polite]) {
      const ended = await run.ended;
      expect(ended.code, ended.stderr).toBe(125);
      expect(ended.stderr).toMatch(/was lost: .*Engine/);
    }
    expect(await shell(here, 'echo again').ended).toMatchObject({ code: 0, stdout: 'again\n' });
    expect(it.begun()).toBe(3);
    await expect.poll(standbys, patient).not.toContain(null);
    const after = await standbys();
    for (const agent of before) expect(after).not.toContain(agent);
    const jobs = await here.api.jobs({ all: true, pool: null });
    expect(jobs.map(({ attempt, result }) => [attempt, result?.kind])).toEqual([
      [1, 'lost'],
      [1, 'lost'],
      [1, 'code'],
    ]);
    expect((await here.api.status()).problems).toEqual([]);
    expect((await poolOf(here)).backoff).toBeNull();
  });

  test.each(['stop', 'kill'] as const)('with live-restore (%s): the job continues, and so does the standby', async (how) => {
    await using it = await world(1, { liveRestore: true });
    const { engine, here } = it;
    await here.up();
    // What is written while the Engine is away is lost if the job also ends before its return, so it must not.
    const run = shell(here, `i=0; ${untilGo}; do echo "line $i"; i=$((i+1)); sleep 0.01; done; echo "lines: $i"; exit 7`);
    await run.says(/line 20\n/);
    await expect.poll(() => standbyOf(here), patient).not.toBeNull();
    const standby = await standbyOf(here);
    await engine[how]();
    await expect.poll(async () => (await here.api.status()).problems.length, patient).toBe(1);
    await engine.start();
    await expect.poll(async () => (await here.api.status()).problems, patient).toEqual([]);
    it.go();
    const ended = await run.ended;
    expect(ended.code, ended.stderr).toBe(7);
    const length = Number(/^lines: (\d+)$/m.exec(ended.stdout)?.[1]);
    expect(ended.stdout).toBe(`${Array.from({ length }, (_, i) => `line ${i}\n`).join('')}lines: ${length}\n`);
    expect(await standbyOf(here)).toBe(standby);
    expect(await shell(here, 'echo "in $ONEJOB_SLOT"').ended).toMatchObject({ code: 0, stdout: 'in default/1\n' });
    const [, second] = await here.api.jobs({ all: true, pool: null });
    expect(second?.agent).toBe(standby);
    expect(it.begun()).toBe(2);
  });

  test('a frozen Engine: a job handed in meanwhile begins once, afterwards', async () => {
    await using it = await world(1);
    const { engine, here } = it;
    await here.up();
    await expect.poll(() => standbyOf(here), patient).not.toBeNull();
    engine.freeze();
    const run = shell(here, 'echo ran');
    await expect.poll(async () => (await here.api.jobs({ all: false, pool: null })).length, patient).toBe(1);
    // Over the time in which a gate must have taken its script.
    await new Promise((resolve) => setTimeout(resolve, 20_000));
    engine.thaw();
    expect(await run.ended).toMatchObject({ code: 0, stdout: 'ran\n' });
    expect(it.begun()).toBe(1);
    expect(await shell(here, 'echo next').ended).toMatchObject({ code: 0, stdout: 'next\n' });
  });

  test('the manager can be stopped meanwhile; the next one clears up what the Engine still has', async () => {
    await using it = await world(1, { liveRestore: true });
    const { engine, here } = it;
    const first = await here.up();
    const run = shell(here, 'echo begun; exec sleep 600');
    await run.says(/begun/);
    await expect.poll(() => standbyOf(here), patient).not.toBeNull();
    await engine.stop();
    await expect.poll(async () => (await here.api.status()).problems.length, patient).toBe(1);
    const ended = await first.stop();
    expect(ended.code).toBe(0);
    expect(ended.stdout + ended.stderr).toMatch(/leaving agents that cannot be reached/);
    await engine.start();
    const second = await here.up();
    const { code, stderr } = await run.ended;
    expect(code).toBe(125);
    expect(stderr).toMatch(/onejob was stopped while the job ran/);
    expect(await shell(here, 'echo next').ended).toMatchObject({ code: 0, stdout: 'next\n' });
    expect(it.begun()).toBe(2);
    await second.stop();
    expect((await here.census()).left).toEqual([]);
  });

  test('again and again: no connection is left open, and the reason is not said twice', async () => {
    await using it = await world(2, { liveRestore: true });
    const { engine, here } = it;
    const daemon = await here.up();
    const open = () => readdirSync(`/proc/${daemon.pid}/fd`).length;
    const isBack = () => expect.poll(async () => (await here.api.status()).problems.length, patient).toBe(0);
    const round = async (): Promise<void> => {
      await engine.stop();
      await expect.poll(async () => (await here.api.status()).problems.length, patient).toBe(1);
      await engine.start();
      await isBack();
      expect((await shell(here, 'true').ended).code).toBe(0);
    };
    await round();
    const before = open();
    for (let i = 0; i < 5; i++) await round();
    await expect.poll(open, patient).toBeLessThan(before + 6);
    expect(it.begun()).toBe(6);
    const said = (daemon.child.stdout + daemon.child.stderr).match(/"event":"runtime unreachable"/g) ?? [];
    // Each way in which it is away may be said once a round: nobody listens, no such socket, hung up, and what was being made.
    expect(said.length).toBeLessThanOrEqual(4 * 6);
  });
});
