/** What a job may not ask for is refused when it is handed in, with the reason (S8). */
import { mkdirSync, symlinkSync, watch, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';
import { scratch } from '../support/scratch.ts';

test('a job cannot have onejob’s state, its socket or the Engine’s as a volume, by whatever way', async () => {
  using dir = scratch();
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
  await here.up();
  const { stateDir } = await here.api.status();
  const link = join(dir.path, 'link');
  symlinkSync(stateDir, link);
  mkdirSync(join(dir.path, 'data'));
  const ask = (host: string, more: object = {}) =>
    here.api.submit({
      command: ['true'],
      volumes: [{ host, container: '/in', readOnly: true, variable: null, cache: null, ...more }],
    });
  for (const [host, why] of [
    [stateDir, /state of onejob/],
    [link, /state of onejob/],
    [`${dir.path}/data/../link`, /must not contain/],
    ['/', /state of onejob/],
    [here.api.socket, /onejob/],
    ['/var/run/docker.sock', /all rights over this host/],
    // It holds onejob's shared sockets and the Engine's.
    ['/run', /talk to onejob|all rights over this host/],
  ] as const) {
    await expect(ask(host), host).rejects.toMatchObject({ code: 'E_JOB_REQUEST', message: expect.stringMatching(why) });
  }
  const data = join(dir.path, 'data');
  await expect(ask(data, { container: '/workspace' })).rejects.toMatchObject({ code: 'E_JOB_REQUEST' });
  await expect(ask(data, { variable: 'A=B' })).rejects.toMatchObject({ code: 'E_JOB_REQUEST' });
  const run = await here.run('--no-workspace', '--volume', `${link}:/state:rw`, '--', 'true').ended;
  expect(run).toMatchObject({ code: 125, stderr: expect.stringContaining('state of onejob') });
  expect(await here.api.jobs({ all: true, pool: null })).toEqual([]);
});

test('a bad request is refused before its workspace is sent', async () => {
  using dir = scratch();
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
  await here.up();
  const { stateDir } = await here.api.status();
  writeFileSync(join(dir.path, 'a'), 'a');
  for (const [bad, why, code] of [
    [['--pool', 'nope'], /no pool of the own queue is called "nope"/, 125],
    [['--artifact', '../x'], /\.\.\/x/, 2],
    [['--volume', `${stateDir}:/state`], /state of onejob/, 125],
  ] as const) {
    // The folder is watched: a workspace that was sent and deleted again would be seen.
    const sent: unknown[] = [];
    const watcher = watch(join(stateDir, 'workspaces'), (_, name) => sent.push(name));
    const run = await here.run('--workspace', dir.path, ...bad, '--', 'true').ended;
    watcher.close();
    expect(run).toMatchObject({ code, stderr: expect.stringMatching(why) });
    expect(sent).toEqual([]);
  }
  expect((await here.run('--workspace', dir.path, '--', 'cat', 'a').ended).stdout).toBe('a');
});
