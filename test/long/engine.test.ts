/**
 * A Docker that is not there, not for us, or meddled with: without a word in the config a job runs all the same and one
 * line says why it runs as a process; what somebody else removed is replaced, and its job ends once.
 */
import { chmodSync, chownSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { leaderOf } from '../../src/store/lead.ts';
import { startChild, untilGone } from '../support/child.ts';
import { privateEngine } from '../support/dockerd.ts';
import { engineAt, machineSocket } from '../support/engine-http.ts';
import { images } from '../support/images.ts';
import { poolOf, standbyOf } from '../support/look.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

describe('no Docker for us', () => {
  test('no socket: jobs run as processes, and one line says why', async () => {
    await using here = await onejob({ env: { DOCKER_HOST: 'unix:///nonexistent/docker.sock' } });
    const ended = await here.run('--no-workspace', '--', 'echo', 'ran').ended;
    expect(ended).toMatchObject({ code: 0, stdout: 'ran\n' });
    const why = ended.stderr.split('\n').filter((line) => line.includes('the socket does not exist'));
    expect(why).toHaveLength(1);
    expect(why[0]).toMatch(/^onejob: runtime process \(Docker: .*unix:\/\/\/nonexistent\/docker\.sock.*DOCKER_HOST/);
  });

  test.skipIf(lacks('docker', 'busybox'))(
    'a pool that insists on docker waits, says what is wrong, and continues by itself',
    async () => {
      await using here = await onejob({
        config: `pools: { default: { runtime: docker, image: "${images.base}" }, other: { runtime: process } }`,
      });
      const socket = join(here.dir, 'docker.sock');
      here.env.DOCKER_HOST = `unix://${socket}`;
      await here.up();
      const run = here.run('--no-workspace', '--pool', 'default', '--', 'echo', 'at last');
      await run.says(/is waiting in pool default.*the socket does not exist/);
      expect((await here.run('--no-workspace', '--pool', 'other', '--', 'echo', 'fine').ended).stdout).toBe('fine\n');
      expect((await here.cli(['status']).ended).stdout).toMatch(/^! .*the socket does not exist/m);
      expect((await here.cli(['jobs']).ended).stdout).toMatch(/the socket does not exist/);
      const doctor = await here.cli(['doctor']).ended;
      expect(doctor.stdout).toMatch(/the socket does not exist[\s\S]*systemctl start docker/);
      expect(doctor.code).not.toBe(0);
      symlinkSync(machineSocket, socket);
      expect(await run.ended).toMatchObject({ code: 0, stdout: 'at last\n' });
      expect((await here.api.status()).problems).toEqual([]);
    },
  );

  test.skipIf(lacks('root', 'docker', 'busybox'))('a socket without permission: what to do is said, and helps', async () => {
    await using here = await onejob();
    using socket = await groupsSocket(here);
    here.env.DOCKER_HOST = `unix://${socket.path}`;
    const ended = await asSomebody(here, 'run', '--no-workspace', '--', 'echo', 'ran').ended;
    expect(ended, ended.stderr).toMatchObject({ code: 0, stdout: 'ran\n' });
    expect(ended.stderr).toMatch(
      /^onejob: runtime process \(Docker: .*you do not have permission to open that socket.*usermod -aG docker/m,
    );
    // Its temporary daemon leads until it has ended, and that is after the one it ran for.
    const temporary = leaderOf(here.stateDir)?.pid ?? null;
    if (temporary !== null) await untilGone(temporary);

    const config = join(here.dir, 'config.yml');
    writeFileSync(config, `pools: { default: { runtime: docker, image: "${images.base}" } }`);
    const up = asSomebody(here, 'up', '--config', config);
    await up.says(/onejob is up/);
    const doctor = await asSomebody(here, 'doctor').ended;
    expect(doctor.stdout + doctor.stderr).toMatch(/do not have permission to open that socket[\s\S]*usermod -aG docker/);
    const run = asSomebody(here, 'run', '--no-workspace', '--', 'echo', 'let in');
    await run.says(/is waiting in pool default.*do not have permission to open that socket.*usermod -aG docker/);
    // Groups are taken on at login; a socket open to everybody is the same to anyone who tries.
    chmodSync(socket.path, 0o666);
    expect(await run.ended).toMatchObject({ code: 0, stdout: 'let in\n' });
    up.signal('SIGTERM');
    expect((await up.ended).code).toBe(0);
  });

  test.skipIf(lacks('dockerd'))('an Engine that cannot get the image: processes, and it says so', { timeout: 60_000 }, async () => {
    await using engine = await privateEngine();
    await using here = await onejob({ env: { DOCKER_HOST: engine.url }, engine: engine.socket });
    const ended = await here.run('--no-workspace', '--', 'echo', 'ran').ended;
    expect(ended).toMatchObject({ code: 0, stdout: 'ran\n' });
    expect(ended.stderr).toMatch(/^onejob: runtime process \(Docker: .*"debian:stable-slim"/m);
  });
});

describe.skipIf(lacks('docker', 'busybox'))('an Engine that others use too', () => {
  test('what somebody removes is replaced, and the job of a removed agent ends once, as lost', async () => {
    await using here = await onejob({ config: `pools: { default: { agents: 1, runtime: docker, image: "${images.base}" } }` });
    mkdirSync(join(here.dir, 'runs'), { mode: 0o777 });
    await here.up();
    await expect.poll(() => standbyOf(here)).not.toBeNull();
    const standby = await standbyOf(here);
    await removeContainer(standby);
    await expect.poll(() => standbyOf(here)).not.toBe(standby);

    const mount = ['--volume', `${join(here.dir, 'runs')}:/runs:rw`];
    const run = here.run('--no-workspace', ...mount, '--', 'sh', '-c', 'mktemp -p /runs XXXXXX >/dev/null; echo begun; sleep 600');
    await run.says(/begun/);
    await removeContainer((await poolOf(here)).slots[0]?.agent.agent ?? null);
    const ended = await run.ended;
    expect(ended).toMatchObject({ code: 125, stdout: 'begun\n', stderr: expect.stringMatching(/was lost/) });
    expect(await here.run('--no-workspace', '--', 'echo', 'next').ended).toMatchObject({ code: 0, stdout: 'next\n' });
    expect(readdirSync(join(here.dir, 'runs'))).toHaveLength(1);
    const [job] = await here.api.jobs({ all: true, pool: null });
    expect(job?.attempt).toBe(1);
    expect((await poolOf(here)).backoff).toBeNull();
  });

  test('a disk with too little room releases nothing, and says so', async () => {
    await using here = await onejob({
      config: `disk: { min_free: 100% }\npools: { default: { agents: 1, runtime: docker, image: "${images.base}" } }`,
    });
    await here.up();
    const run = here.run('--no-workspace', '--', 'echo', 'ran');
    const reason = /below disk\.min_free of 100 %/;
    await run.says(new RegExp(`is waiting in pool default.*nothing new starts: .*${reason.source}`));
    expect((await here.cli(['status']).ended).stdout).toMatch(reason);
    expect((await here.cli(['jobs']).ended).stdout).toMatch(reason);
    expect(run.stdout).toBe('');
    expect((await here.cli(['cancel', (await here.api.jobs({ all: false, pool: null }))[0]?.id ?? '']).ended).code).toBe(0);
    expect((await run.ended).code).toBe(130);
  });
});

/** The machine's Engine behind a socket that only root may open, as Docker's is to anyone who is not in its group. */
async function groupsSocket(here: Home): Promise<{ readonly path: string } & Disposable> {
  const path = join(here.dir, 'docker.sock');
  const open = new Set<Socket>();
  const { promise, resolve } = Promise.withResolvers<void>();
  const server = createServer({ allowHalfOpen: true }, (from) => {
    const to = connect({ path: machineSocket, allowHalfOpen: true });
    for (const socket of [from, to]) {
      open.add(socket);
      socket.on('error', () => {});
      socket.once('close', () => open.delete(socket));
    }
    from.once('close', () => to.destroy());
    to.once('close', () => from.destroy());
    from.pipe(to);
    to.pipe(from);
  }).listen(path, resolve);
  await promise;
  chmodSync(path, 0o600);
  return {
    path,
    [Symbol.dispose]() {
      server.close();
      for (const socket of open) socket.destroy();
    },
  };
}

/** A command as a person who is in no group of root's, with this home as theirs. */
function asSomebody(here: Home, ...args: string[]) {
  const uid = 54_321;
  for (const path of [here.dir, here.cwd, here.env.HOME ?? here.dir]) chownSync(path, uid, uid);
  const words = ['--reuid', `${uid}`, '--regid', `${uid}`, '--clear-groups', program, ...args];
  return startChild('setpriv', words, { cwd: here.cwd, env: here.env });
}

async function removeContainer(agent: string | null): Promise<void> {
  using engine = engineAt();
  const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.agent=${agent}`] }));
  const found = (await engine.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { Id: string }[];
  expect(found).toHaveLength(1);
  await engine.ok('DELETE', `/containers/${found[0]?.Id}?force=1&v=1`);
}
