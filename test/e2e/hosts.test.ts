/** Another host's daemon through SSH: with a program that stands for ssh, and with the real client and server where they are. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { allPids, readOr, withDescendants } from '../../src/system/process-identity.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { startSshd } from '../support/sshd.ts';

const config = 'pools: { default: { agents: 2, runtime: process } }';
const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

/** Puts an `ssh` first on the path of the home's commands. By default it runs what it is asked to, here. */
function standIn(here: Home, script = 'for last; do :; done; echo Welcome; exec sh -c "$last"'): Record<string, string> {
  const bin = join(here.dir, 'bin');
  mkdirSync(bin, { recursive: true });
  writeFileSync(join(bin, 'ssh'), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  writeFileSync(join(bin, 'onejob'), `#!/bin/sh\nexec "${program}" "$@"\n`, { mode: 0o755 });
  // Nothing on this side leads to the daemon.
  return { PATH: `${bin}:${process.env.PATH}`, ONEJOB_STATE_DIR: join(here.dir, 'elsewhere'), ONEJOB_SOCKET: '' };
}

test.skipIf(lacks('bubblewrap'))('commands work on another host as on this one', async () => {
  await using here = await onejob({ config });
  await here.up();
  const env = standIn(here);
  const host = `ssh://gpuci${here.socket}`;
  const on = (...args: string[]) => here.cli(args, { env: { ...env, ONEJOB_HOST: host } });
  writeFileSync(join(here.cwd, 'file'), 'hello from here\n');
  expect(await on('run', '--', 'sh', '-c', 'cat file; exit 3').ended).toMatchObject({ code: 3, stdout: 'hello from here\n' });
  const status = await here.cli(['--host', host, 'status', '--json'], { env }).ended;
  expect(JSON.parse(status.stdout)).toMatchObject({ pid: (await here.api.status()).pid });
  const jobs = await here.cli(['jobs', '--all', '--json', '--host', host], { env }).ended;
  const [job] = JSON.parse(jobs.stdout);
  expect((await on('logs', job.id).ended).stdout).toBe('hello from here\n');
  expect((await on('pause', '--reason', 'tea').ended).code).toBe(0);
  expect((await on('resume', '--reason', 'tea').ended).code).toBe(0);
  expect((await on('doctor').ended).stdout).toContain('checked.');
  here.configure(config.replace('2', '3'));
  expect(await on('config', 'apply').ended).toMatchObject({ code: 0, stdout: expect.stringContaining('3 slots instead of 2') });
  // A follower survives a daemon that is killed and started again.
  const follower = on('run', '--no-workspace', '--', 'sh', '-c', 'echo begun; sleep 2; echo over');
  await follower.says(/begun/);
  expect((await on('down', '--leave').ended).stdout).toContain('The daemon has ended.');
  await here.up();
  expect(await follower.ended).toMatchObject({ code: 0, stdout: 'begun\nover\n' });
});

test('what is wrong with the other host is said, and nothing of this host is used instead', async () => {
  await using here = await onejob({ config });
  const env = standIn(here);
  const ask = async (host: string, more: Record<string, string> = {}, ...args: string[]) =>
    await here.cli(['--host', host, ...(args.length === 0 ? ['status'] : args)], { env: { ...env, ...more } }).ended;
  expect(await ask(`ssh://gpuci${here.socket}`)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(
      /^onejob: On ssh:\/\/gpuci\S+: No daemon is running: nothing listens on \S+s\.sock\.\s+There: Start it/,
    ),
  });
  // With neither daemon nor a store of another host, jobs would be read from this host's.
  expect((await ask(`ssh://gpuci${here.socket}`, {}, 'jobs')).stderr).toMatch(/On ssh:\/\/gpuci/);
  expect((await ask(`ssh://gpuci${here.socket}`, {}, 'run', '--', 'true')).code).toBe(125);
  expect(await ask('ssh://gpuci', {}, 'up')).toMatchObject({ code: 2, stderr: expect.stringContaining('leave out --host') });
  expect(await ask('-oProxyCommand=x')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('it does not begin with ssh://'),
  });
  standIn(here, 'echo "ci@gpuci: Permission denied (publickey)." >&2; exit 255');
  expect(await ask('ssh://ci@gpuci')).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/it refused the login\..*"ssh ci@gpuci true"/s),
  });
  rmSync(join(here.dir, 'bin', 'onejob'));
  standIn(here, 'exit 127');
  expect((await ask('ssh://gpuci')).stderr).toContain('there is no onejob there');
});

test('all hosts of a file: each in a line, and one that is away is an error', async () => {
  await using here = await onejob({ config });
  const daemon = await here.up();
  const env = standIn(
    here,
    `case "$*" in *away*) echo "ssh: connect to host away port 22: Connection refused" >&2; exit 255;; esac; for last; do :; done; exec sh -c "$last"`,
  );
  const folder = join(here.dir, 'home', '.config', 'onejob');
  mkdirSync(folder, { recursive: true });
  const file = (text: string): void => writeFileSync(join(folder, 'hosts.yml'), text);
  file(`hosts: { gpuci: "ssh://gpuci${here.socket}", away: ssh://away }`);
  const all = await here.cli(['status', '--all'], { env }).ended;
  expect(all.code).toBe(1);
  expect(all.stdout).toMatch(
    /^HOST +STATE +BUSY +WAITING +VERSION\ngpuci +ok +0\/2 +0 +0\.\d+\.\d+\naway +unreachable +- +- +-\n\n! away: Cannot reach ssh:\/\/away: nothing listens on its SSH port\. Check the port/,
  );
  const json = await here.cli(['status', '--all', '--json'], { env }).ended;
  expect(
    json.stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line)),
  ).toMatchObject([
    { host: 'gpuci', error: null, status: { pid: daemon.pid } },
    { host: 'away', place: 'ssh://away', status: null, error: { code: 'E_HOST', retry: true } },
  ]);
  file(`hosts: { gpuci: "ssh://gpuci${here.socket}" }`);
  expect((await here.cli(['status', '--all'], { env }).ended).code).toBe(0);
  expect((await here.cli(['--host', 'gpuci', 'status'], { env }).ended).stdout).toContain(`pid ${daemon.pid}`);
  expect((await here.cli(['--host', 'gpucj', 'status'], { env }).ended).stderr).toContain('did you mean "gpuci"?');
});

test.skipIf(lacks('sshd', 'bubblewrap'))('through a real sshd, without forwarding', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'oj-sshd-'));
  try {
    await using sshd = await startSshd(dir, program);
    await using here = await onejob({ config });
    await here.up();
    const env = { PATH: `${sshd.path}:${process.env.PATH}`, ONEJOB_STATE_DIR: join(here.dir, 'elsewhere'), ONEJOB_SOCKET: '' };
    const on = (...args: string[]) => here.cli(['--host', `ssh://root@127.0.0.1:${sshd.port}${here.socket}`, ...args], { env });
    writeFileSync(join(here.cwd, 'file'), Buffer.alloc(8 << 20, 'x'));
    expect(await on('run', '--', 'sh', '-c', 'wc -c <file; exit 3').ended).toMatchObject({ code: 3, stdout: `${8 << 20}\n` });
    // A terminal sends its INT to the whole group: the connection outlives it, so that the job is cancelled.
    const job = on('run', '--no-workspace', '--', 'sh', '-c', 'echo begun; sleep 300');
    await job.says(/begun/);
    for (const pid of withDescendants([job.pid])) process.kill(pid, 'SIGINT');
    expect(await job.ended).toMatchObject({ code: 130, stderr: expect.stringMatching(/was cancelled/) });
    // A client that is killed takes its ssh with it.
    const killed = on('status', '--watch');
    const ours = () => allPids().filter((pid) => `${readOr(`/proc/${pid}/cmdline`, '')}`.includes(`relay --socket ${here.socket}`));
    await expect.poll(() => ours().length).toBeGreaterThan(0);
    await killed.kill();
    await expect.poll(() => ours().length).toBe(0);
    const { stderr } = await here.cli(['--host', 'ssh://root@127.0.0.1:1', 'status'], { env }).ended;
    expect(stderr).toMatch(/nothing listens on its SSH port/);
    sshd.revoke();
    expect((await on('status').ended).stderr).toMatch(/it refused the login/);
    writeFileSync(join(dir, 'known'), '');
    expect((await on('status').ended).stderr).toMatch(/its host key is not known/);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
