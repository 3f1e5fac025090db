/** What a job may not ask for is refused when it is handed in, with the reason (S8). */
import { mkdirSync, readdirSync, rmSync, statSync, symlinkSync, watch, writeFileSync } from 'node:fs';
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
    const watchers = ['workspaces', 'sent'].map((folder) => watch(join(stateDir, folder), (_, name) => sent.push(name)));
    const run = await here.run('--workspace', dir.path, ...bad, '--', 'true').ended;
    for (const watcher of watchers) watcher.close();
    expect(run).toMatchObject({ code, stderr: expect.stringMatching(why) });
    expect(sent).toEqual([]);
  }
  expect((await here.run('--workspace', dir.path, '--', 'cat', 'a').ended).stdout).toBe('a');
});

test('a second job gets what has changed, and only that is sent', async () => {
  using dir = scratch();
  const [a, b] = [join(dir.path, 'a'), join(dir.path, 'b')];
  writeFileSync(a, 'as it was');
  writeFileSync(b, Buffer.alloc(1_000_000));
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
  await here.up();
  const { stateDir } = await here.api.status();
  const bytes = () =>
    readdirSync(join(stateDir, 'sent')).reduce((sum, name) => sum + statSync(join(stateDir, 'sent', name)).size, 0);
  const run = async () =>
    (await here.run('--workspace', dir.path, '--', 'sh', '-c', 'cat a; wc -c <b; echo spoiled >a').ended).stdout;
  expect(await run()).toBe('as it was1000000\n');
  // Files that were just written may be written again without another time: they are sent until they have rested.
  const runsWithoutSending = async () => {
    const before = bytes();
    // What a job does to its files changes nothing of what was sent.
    expect(await run()).toBe('as it was1000000\n');
    return bytes() - before;
  };
  await expect.poll(runsWithoutSending, { timeout: 30_000 }).toBe(0);
  const before = bytes();
  writeFileSync(a, 'as it is');
  expect(await run()).toBe('as it is1000000\n');
  expect(bytes()).toBe(before + 2_048);
  // One that somebody removed is sent again.
  for (const name of readdirSync(join(stateDir, 'sent'))) rmSync(join(stateDir, 'sent', name));
  expect(await run()).toBe('as it is1000000\n');
  const pruned = await here.cli(['jobs', 'prune', '--older-than', '0s']).ended;
  expect(pruned).toMatchObject({ code: 0 });
  expect(bytes()).toBe(0);
});
