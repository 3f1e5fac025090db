/**
 * Holding failed jobs on real runtimes: a manager that is killed at every boundary neither loses nor leaks one (S4), and what is held
 * has nothing of the job's secrets (S8).
 */
import { describe, expect, test } from 'vitest';
import { call, ensureImages, images } from '../support/images.ts';
import { members } from '../support/kills.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const keeping = ['settle.intent', 'hold.intent', 'settle.effect', 'settle.record', 'clear.intent', 'hold.effect', 'clear.effect'];
const ending = ['unhold.intent', 'unhold.effect'];

const homeOf = (pool: string): Promise<Home> => onejob({ config: `pools: { default: { agents: 1, ${pool}, hold_failed: 30m } }` });
const failing = (here: Home) =>
  here.run('--no-workspace', '--env', 'SECRET=hunter2', '--', 'sh', '-c', 'echo data >out; echo x >/tmp/x; exit 3');
const jobOf = async (here: Home) => (await here.api.jobs({ all: true, pool: null })).at(-1)?.id ?? '';
const shell = (here: Home, job: string, ...command: string[]) => here.cli(['shell', job, '--', ...command]).ended;

describe.each(members)('on $name', ({ missing, pool }) => {
  test.skipIf(missing).each(keeping)('a manager that is killed at %s loses no hold', async (boundary) => {
    await using here = await homeOf(pool);
    const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
    await doomed.says(/onejob is up/);
    const run = failing(here);
    expect((await doomed.ended).signal).toBe('SIGKILL');
    const daemon = await here.up();
    expect((await run.ended).code).toBe(3);
    const job = await jobOf(here);
    await expect.poll(async () => (await shell(here, job, 'cat', 'out', '/tmp/x')).stdout).toBe('data\nx\n');
    await daemon.stop();
    expect((await here.census()).left).toEqual([]);
  });

  test.skipIf(missing).each(ending)('a manager that is killed at %s leaks none', async (boundary) => {
    await using here = await homeOf(pool);
    const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
    await doomed.says(/onejob is up/);
    await failing(here).ended;
    const job = await jobOf(here);
    expect((await shell(here, job, 'cat', 'out')).stdout).toBe('data\n');
    await here.cli(['unhold', job]).ended;
    expect((await doomed.ended).signal).toBe('SIGKILL');
    await here.up();
    expect((await here.api.job(job)).held).toBeUndefined();
    // The standby is all that is there.
    await expect.poll(async () => (await here.api.status()).pools[0]?.slots[0]?.standby.state).toBe('standby');
    await expect.poll(async () => (await shell(here, job, 'true')).code).toBe(125);
    await here.cli(['down']).ended;
    expect((await here.census()).left).toEqual([]);
  });

  test.skipIf(missing)('a manager that is killed with a shell open ends it when it is back', async () => {
    await using here = await homeOf(pool);
    const daemon = await here.up();
    await failing(here).ended;
    const job = await jobOf(here);
    const open = here.cli(['shell', job, '--', 'sh', '-c', 'echo up; sleep 600']);
    await open.says(/up/);
    await daemon.kill();
    expect((await open.ended).code).toBe(125);
    await here.up();
    expect((await shell(here, job, 'cat', 'out')).stdout).toBe('data\n');
    await here.cli(['down']).ended;
    expect((await here.census()).left).toEqual([]);
  });
});

describe.skipIf(lacks('docker'))('a held container', () => {
  const socket = '/var/run/docker.sock';
  const ask = async (path: string) => JSON.parse((await call(socket, 'GET', path)).body);
  const filter = (label: string) => encodeURIComponent(JSON.stringify({ label: [label] }));

  test('and its shells have no secret and no device, and do not pass for an image that onejob has built', async () => {
    await ensureImages();
    const labelled = 'onejob-test/labelled:1';
    const query = new URLSearchParams({
      fromSrc: '-',
      repo: 'onejob-test/labelled',
      tag: '1',
      changes: 'LABEL io.onejob.image.recipe=abc',
    });
    const root = await exported(socket, images.base);
    await call(socket, 'POST', `/images/create?${query}`, root);
    await using here = await homeOf(`runtime: docker, image: "${labelled}", pull: never`);
    await here.up();
    const { owner } = await here.api.status();
    await failing(here).ended;
    const job = await jobOf(here);
    const open = here.cli(['shell', job, '--', 'sh', '-c', 'echo up; sleep 600']);
    await open.says(/up/);
    const containers: { Id: string; State: string }[] = await ask(
      `/containers/json?all=1&filters=${filter(`onejob.owner=${owner}`)}`,
    );
    for (const { Id } of containers) {
      const text = JSON.stringify(await ask(`/containers/${Id}/json`));
      expect(text).not.toContain('hunter2');
      if (!text.includes('sleep 600')) continue;
      const { HostConfig, Config } = JSON.parse(text);
      expect(HostConfig).toMatchObject({ Privileged: false });
      expect([HostConfig.Devices ?? [], HostConfig.DeviceRequests ?? []]).toEqual([[], []]);
      expect(Config.Env).toContain('NVIDIA_VISIBLE_DEVICES=void');
    }
    const held: { Id: string }[] = await ask(`/images/json?filters=${filter(`onejob.owner=${owner}`)}`);
    expect(held).toHaveLength(1);
    expect(JSON.stringify([await ask(`/images/${held[0]?.Id}/json`), await ask(`/images/${held[0]?.Id}/history`)])).not.toContain(
      'hunter2',
    );
    const recipes: { RepoTags: string[] }[] = await ask(`/images/json?filters=${filter('io.onejob.image.recipe=abc')}`);
    expect(recipes.flatMap(({ RepoTags }) => RepoTags)).toEqual([labelled]);
    expect((await open.kill()).signal).toBe('SIGKILL');
    await here.cli(['down']).ended;
    expect(await ask(`/images/json?filters=${filter(`onejob.owner=${owner}`)}`)).toEqual([]);
    expect((await here.census()).left).toEqual([]);
    await call(socket, 'DELETE', `/images/${labelled}`);
  });

  /** The root of an image, as a tar. */
  async function exported(at: string, image: string): Promise<Buffer> {
    const made = JSON.parse(
      (await call(at, 'POST', '/containers/create', Buffer.from(JSON.stringify({ Image: image, Cmd: ['true'] })))).body,
    );
    const { request } = await import('node:http');
    const { buffer } = await import('node:stream/consumers');
    const root = await new Promise<Buffer>((resolve, reject) => {
      request({ socketPath: at, path: `/containers/${made.Id}/export`, agent: false }, (answer) =>
        buffer(answer).then(resolve, reject),
      )
        .on('error', reject)
        .end();
    });
    await call(at, 'DELETE', `/containers/${made.Id}?force=1`);
    return root;
  }
});
