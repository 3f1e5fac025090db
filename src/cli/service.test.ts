import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test, vi } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { lacks } from '../../test/support/require.ts';
import { scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';

afterEach(() => vi.unstubAllEnvs());

async function service(...args: string[]) {
  return inFolder('/nowhere', ...args);
}

async function inFolder(folder: string, ...args: string[]) {
  const { context, stdout, stderr } = testContext(['service', ...args], folder);
  return { code: await runCli(context), stdout: stdout(), stderr: stderr() };
}

test.skipIf(lacks('systemdAnalyze')).each([[[]], [['--user']]])('systemd accepts the unit %j', async (flags) => {
  using here = scratch();
  const { code, stdout } = await service('install', '--print', ...flags);
  expect(code).toBe(0);
  expect(stdout).toMatch(/^ExecStart=\/.*\/bin\/onejob up --on-stop leave$/m);
  expect(stdout).toMatch(/^KillMode=process$/m);
  const unit = join(here.path, 'onejob.service');
  writeFileSync(unit, stdout);
  const { status, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', unit], { encoding: 'utf8' });
  // Known from 254 on, and ignored before.
  const isKnown = (line: string) => !/Unknown key .*'DelegateSubgroup'/.test(line);
  expect(stderr.split('\n').filter((line) => line.includes('onejob.service') && isKnown(line))).toEqual([]);
  expect(status).toBe(0);
});

test('agents of a user’s service get groups below it; those of root are elsewhere', async () => {
  expect((await service('install', '--print', '--user')).stdout).toMatch(/^Delegate=cpu memory pids\nDelegateSubgroup=daemon$/m);
  expect((await service('install', '--print')).stdout).not.toContain('Delegate');
});

test('the unit lets only the daemon speak for itself; a user’s cannot, and says why', async () => {
  expect((await service('install', '--print')).stdout).toMatch(/^NotifyAccess=main$/m);
  expect((await service('install', '--print', '--user')).stdout).toMatch(/^# Only root may .*\nNotifyAccess=all$/m);
});

test('systemd keeps the ports for machines and webhooks, too', async () => {
  using here = scratch();
  writeFileSync(
    join(here.path, 'config.yml'),
    `services: { hub: { type: github, token: { file: /keys/pat }, webhook: { listen: "127.0.0.1:8787", secret: { file: /keys/hook } } } }
join: { listen: "127.0.0.1:7718", url: "http://127.0.0.1:7718", package: /srv/onejob.tar.gz }
pools: { a: { service: hub, queue: acme/demo } }
`,
  );
  const { stdout } = await inFolder(here.path, 'install', '--print', '--json', '--config', join(here.path, 'config.yml'));
  const { unit, socket } = JSON.parse(stdout) as { unit: string; socket: string };
  expect(unit).toMatch(/^Wants=onejob\.socket$/m);
  expect(socket.match(/^ListenStream=.*$/gm)).toEqual(['ListenStream=127.0.0.1:7718', 'ListenStream=127.0.0.1:8787']);
});

test.skipIf(lacks('systemdAnalyze'))(
  'systemd keeps the port of the API while the daemon restarts, and starts no daemon that was stopped',
  async () => {
    using here = scratch();
    expect((await service('install', '--print')).stdout).not.toContain('onejob.socket');
    writeFileSync(join(here.path, 'config.yml'), 'pools: { a: { agents: 1 } }\napi: { listen: "127.0.0.1:7717" }\n');
    const { code, stdout } = await inFolder(here.path, 'install', '--print', '--json', '--config', join(here.path, 'config.yml'));
    expect(code).toBe(0);
    const { unit, socket, socketPath } = JSON.parse(stdout) as { unit: string; socket: string; socketPath: string };
    expect(socketPath).toBe('/etc/systemd/system/onejob.socket');
    expect(unit).toMatch(/^Wants=onejob\.socket\nAfter=onejob\.socket$/m);
    expect(socket).toMatch(/^ListenStream=127\.0\.0\.1:7717$/m);
    expect(socket).toMatch(/^StopWhenUnneeded=yes$/m);
    expect(socket).not.toContain('[Install]');
    const files = { service: unit, socket };
    for (const [kind, text] of Object.entries(files)) writeFileSync(join(here.path, `onejob.${kind}`), text);
    const paths = Object.keys(files).map((kind) => join(here.path, `onejob.${kind}`));
    const { status, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', ...paths], { encoding: 'utf8' });
    expect(stderr.split('\n').filter((line) => /onejob\.(service|socket)/.test(line))).toEqual([]);
    expect(status).toBe(0);
  },
);

test('a clone is refused, and so is what needs root or an earlier version', async () => {
  const refused = await service('install');
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining('it is a clone') });
  expect(refused.stderr).toContain('npm run release');
  expect(await service('rollback')).toMatchObject({ code: 1, stderr: expect.stringContaining('no previous version') });
  expect(await service('upgrade', 'x.tar.gz', '--user')).toMatchObject({ code: 1, stderr: expect.stringContaining('install.sh') });
});

test('without systemd an upgrade says what an install says', async () => {
  using here = scratch();
  vi.stubEnv('PATH', here.path);
  const { code, stderr } = await service('upgrade', '--user');
  expect(stderr).toMatch(/systemctl is not installed\.\n.*Without a running systemd, start "onejob up" by hand\./);
  expect(stderr).not.toContain('last messages');
  expect(code).toBe(1);
});
