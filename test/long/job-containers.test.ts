/** Jobs that run containers, each with an engine of its own, on an Engine of the test's. */
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import type { Boundary } from '../../src/manager/actions/action-runner.ts';
import { engineUsers, inEngine } from '../../src/runtimes/docker/engine-program.ts';
import type { Engine } from '../support/engine-http.ts';
import { heldEngine } from '../support/held-engine.ts';
import { boxes, makeImage, withImage } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';

/** Runs a script in the container of an engine, as the sandbox's user 1000 is known there, and does not wait for it. */
async function inEngineOf(api: Engine, id: string, script: string): Promise<void> {
  const { Config } = (await api.ok('GET', `/containers/${id}/json`)) as {
    readonly Config: { readonly Labels: Readonly<Record<string, string>> };
  };
  const User = String(Number(Config.Labels['onejob.ids']) + 1000);
  const { Id } = (await api.ok('POST', `/containers/${id}/exec`, { User, Cmd: ['sh', '-c', script] })) as { readonly Id: string };
  await api.ok('POST', `/exec/${Id}/start`, { Detach: true });
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('a pool with containers', () => {
  const box = boxes('user: "1000:1000", memory: 2GiB');

  test('a job that prints a lot fills no disk, and its last words are kept', async () => {
    const printed = 'head -c 70000000 /dev/zero | tr "\\0" x | fold -w 1000; echo; echo all';
    const running = box.home.run(
      '--pool',
      'box',
      '--no-workspace',
      '--',
      'sh',
      '-c',
      `${printed}; mkfifo in; read -r _ <in; echo last`,
    );
    await running.says(/^all$/m);
    const [agent = ''] = readdirSync(join(box.home.stateDir, 'engines'));
    await expect
      .poll(() => statSync(join(box.home.stateDir, 'engines', agent, inEngine.log)).size, { timeout: 30_000 })
      .toBeLessThan(1e7);
    const agents = (await box.engine.api.ok('GET', '/containers/json')) as readonly { readonly Id: string }[];
    for (const { Id } of agents) await inEngineOf(box.engine.api, Id, '[ ! -p /workspace/in ] || echo >/workspace/in');
    const { code, stdout } = await running.ended;
    expect([code, stdout.slice(-9)]).toEqual([0, 'all\nlast\n']);
    // Of more than `log_limit`, the beginning and the end are kept.
    expect(stdout.length).toBeGreaterThan(50_000_000);
  }, 240_000);

  test('a container with all rights has no rights over the host', async () => {
    const said = await box.job(
      makeImage,
      'docker run --rm --privileged --pid host --network host -v /:/h box:1 sh -c "',
      'mknod /tmp/disk b 1 0 2>/dev/null && echo node',
      'echo 1 2>/dev/null >/proc/sys/kernel/sysrq && echo kernel',
      'ls /h/run/docker.sock.host /h/proc/1/root 2>/dev/null && echo host',
      'rm -f /h/run/onejob/api.sock /h/run/docker.sock 2>/dev/null && echo sockets',
      // With the right to write, it would be "No such device or address".
      '( : >/h/run/onejob/api.sock ) 2>&1 | grep -q Permission && echo closed',
      'echo end"',
    );
    expect(said).toBe('closed\nend\n');
  }, 120_000);

  test('a job that ends its engine is one that was lost, and nothing of it stays', async () => {
    const { code } = await box.home.run(
      ...['--pool', 'box', '--retries', '0', '--', 'sh', '-ec'],
      `${makeImage}; docker run --rm --privileged --pid host box:1 sh -c 'kill -9 $(pidof podman)'; sleep 60`,
    ).ended;
    expect(code).not.toBe(0);
    const jobs = await box.home.api.jobs({ all: true, pool: null });
    const ended = jobs.find(({ command }) => command.join(' ').includes('pidof'));
    expect(ended?.result).toEqual({ kind: 'lost', reason: expect.stringMatching(/^the engine of its containers ended/) });
    expect(await box.job('echo next')).toBe('next\n');
  }, 120_000);

  test('a daemon that is killed takes over the job of an engine, and hears how it ends', async () => {
    const script = `${makeImage}; docker run -d --name box box:1 sleep 300 >/dev/null; echo begun; read -r line <in; echo "$line"; exit 7`;
    const running = box.home.run('--pool', 'box', '--no-workspace', '--', 'sh', '-c', `mkfifo in; ${script}`);
    await running.says(/begun/);
    await box.daemon.kill();
    box.daemon = await box.home.up();
    const agents = (await box.engine.api.ok('GET', '/containers/json')) as readonly { readonly Id: string }[];
    for (const { Id } of agents) await inEngineOf(box.engine.api, Id, '[ ! -p /workspace/in ] || echo heard >/workspace/in');
    expect(await running.ended).toMatchObject({ code: 7, stdout: 'begun\nheard\n' });
  }, 120_000);

  test('what a job and its containers write into a named cache, or into a folder that is open to them, stays', async () => {
    const results = mkdtempSync(join(tmpdir(), 'ojr-'));
    onTestFinished(() => rmSync(results, { recursive: true }));
    chmodSync(results, 0o777);
    await using here = await box.another(`caches: ["pip:/cache"], volumes: ["${results}:/out:rw"], agents: 1`);
    await here.up();
    const run = (...lines: readonly string[]) =>
      here.run('--pool', 'box', '--no-workspace', '--', 'sh', '-ec', lines.join('\n')).ended;
    expect(
      await run(
        makeImage,
        'docker run --rm -v /cache:/c -v /out:/o box:1 sh -c "echo container | tee /c/a >/o/a"',
        'echo job >/cache/b',
      ),
    ).toMatchObject({ code: 0 });
    expect(await run('cat /cache/a /cache/b; echo more >>/cache/a')).toMatchObject({ code: 0, stdout: 'container\njob\n' });
    expect(readFileSync(join(results, 'a'), 'utf8')).toBe('container\n');
    expect(statSync(join(results, 'a')).uid).toBe(engineUsers.trusted.first);
  }, 180_000);

  test('a job over the memory of its pool is told so', async () => {
    await using here = await box.another('memory: 64MiB');
    await here.up();
    const script = `x=$(head -c 600m /dev/zero | tr "\\0" x)`;
    const { code } = await here.run('--pool', 'box', '--no-workspace', '--', 'sh', '-c', script).ended;
    expect(code).not.toBe(0);
    const [ended] = await here.api.jobs({ all: true, pool: null });
    expect(ended).toMatchObject({ result: { kind: 'oom' }, verdict: { kind: 'code' } });
  }, 180_000);

  test('the limits of the pool hold for the containers of a job, too', async () => {
    await using here = await box.another('memory: 64MiB, pids: 100');
    await here.up();
    const script = [
      makeImage,
      `docker run --rm box:1 sh -c 'x=$(head -c 600m /dev/zero | tr "\\0" x)' || echo "memory $?"`,
      `docker run --rm box:1 sh -c 'for n in $(seq 700); do sleep 20 & done' 2>&1 | grep -c "can.t fork"`,
      'docker run --rm box:1 echo alive',
    ];
    const { code, stdout, stderr } = await here.run('--pool', 'box', '--no-workspace', '--', 'sh', '-c', script.join('\n')).ended;
    expect([code, stdout], stderr).toEqual([0, expect.stringMatching(/^memory 137\n[1-9]\d*\nalive\n$/)]);
  }, 180_000);

  const boundaries = [
    'prepare.intent',
    'prepare.effect',
    'release.effect',
    'settle.intent',
    'clear.intent',
    'clear.effect',
  ] as const;
  test.each(boundaries satisfies readonly Boundary[])(
    'a daemon that is killed at %s leaves one run, and nothing else',
    async (at) => {
      await using here = await box.another('agents: 1');
      const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: at } });
      await doomed.says(/onejob is up/);
      const submit = () => here.run('--pool', 'box', '--no-workspace', '--', 'sh', '-c', 'docker version >/dev/null && echo done');
      const early = at.startsWith('prepare') ? null : submit();
      expect((await doomed.ended).signal).toBe('SIGKILL');
      const next = await here.up();
      expect(await (early ?? submit()).ended).toMatchObject({ code: 0, stdout: 'done\n' });
      expect(await here.api.jobs({ all: true, pool: null })).toHaveLength(1);
      await next.stop();
      expect((await here.census()).left).toEqual([]);
      expect(readdirSync(join(here.stateDir, 'engines'))).toEqual([]);
    },
    180_000,
  );

  test.each<readonly [string, readonly [RegExp, RegExp?]]>([
    ['makes the container that brings an image to the engines', [/^POST \S*\/containers\/create\?name=onejob-\w+-images/]],
    ['starts it', [/^POST \S*\/start/]],
    ['reads the image', [/^GET \S*\/images\/\S+\/get/]],
    ['removes it again', [/^GET \S*\/images\/\S+\/get/, /^DELETE \S*\/containers/]],
    ['makes the container of an engine', [/^POST \S*\/containers\/create\?name=onejob-box/]],
    ['starts that', [/^POST \S*\/containers\/create\?name=onejob-box/, /^POST \S*\/start/]],
  ])(
    'a daemon that was killed while it %s leaves nothing, also when that takes effect late',
    async (_, calls) => {
      using held = await heldEngine(box.engine.socket);
      await using here = await withImage(await box.another('name: "box-{n}"', { DOCKER_HOST: held.url }));
      const [first, second] = calls;
      const holding = held.hold(first);
      const doomed = await here.up();
      let one = await holding;
      if (second !== undefined) {
        const then = held.hold(second);
        await one.letGo();
        one = await then;
      }
      await doomed.kill();
      const next = await here.up();
      const run = here.run('--no-workspace', '--pool', 'box', '--', 'sh', '-c', 'docker version >/dev/null && echo done');
      expect(await run.ended).toMatchObject({ code: 0, stdout: 'done\n' });
      await one.letGo();
      await next.stop();
      expect((await here.census()).left).toEqual([]);
      expect(readdirSync(join(here.stateDir, 'engines'))).toEqual([]);
    },
    180_000,
  );
});
