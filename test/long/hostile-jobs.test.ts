/**
 * Jobs that do not behave, through the real command line: what ignores TERM, forks daemons, writes bytes that no terminal
 * would like, looks where it should not. Nothing of them survives, and nothing of their output is lost or changed.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startChild } from '../support/child.ts';
import { images } from '../support/images.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const members = [
  { name: 'docker', missing: lacks('docker'), pool: `runtime: docker, image: "${images.base}"` },
  { name: 'bubblewrap', missing: lacks('bubblewrap'), pool: 'runtime: process' },
];

/**
 * Children of every kind that outlive their parent elsewhere: another session, a daemon of a daemon, deaf to signals. Each
 * leaves a file once it has got away.
 */
const daemons = (mark: string): string =>
  [
    'trap "" TERM HUP INT',
    `setsid sh -c 'trap "" TERM HUP; : >one; sleep ${mark}; :' >/dev/null 2>&1 &`,
    `(setsid sh -c '(: >two; sleep ${mark}; :) &' &)`,
    `(: >three; exec sleep ${mark}) >/dev/null 2>&1 &`,
    'until [ -e one ] && [ -e two ] && [ -e three ]; do sleep 0.02; done; echo forked',
  ].join('\n');

/** Processes of the whole host, containers' too, that run `sleep MARK`. */
function sleepers(mark: string): string[] {
  return readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'latin1') === `sleep\0${mark}\0`;
    } catch {
      return false;
    }
  });
}

let marks = 0;
const newMark = (): string => `${10_000_000 + process.pid}.${++marks}`;

describe.each(members)('on $name', ({ missing, pool }) => {
  const it = test.skipIf(missing);
  let here: Home;

  beforeAll(async () => {
    if (missing) return;
    here = await onejob({ config: `pools: { default: { agents: 2, ${pool}, stop_grace: 200ms } }` });
    await here.up();
  });

  afterAll(() => (missing ? undefined : here.close()));

  it('what a job leaves running ends with it, and does not hold up its end', async () => {
    const mark = newMark();
    const ended = await here.run('--no-workspace', '--', 'sh', '-c', `${daemons(mark)}; exit 6`).ended;
    expect(ended).toMatchObject({ code: 6, stdout: 'forked\n' });
    await expect.poll(() => sleepers(mark)).toEqual([]);
  });

  it('a job that ignores TERM and forks daemons is cancelled, and nothing of it survives', async () => {
    const mark = newMark();
    const run = here.run('--no-workspace', '--', 'sh', '-c', `${daemons(mark)}; while :; do sleep ${mark}; done`);
    await run.says(/forked/);
    await expect.poll(() => sleepers(mark).length).toBe(4);
    run.signal('SIGINT');
    expect((await run.ended).code).toBe(130);
    await expect.poll(() => sleepers(mark)).toEqual([]);
  });

  it('bytes of any kind and very long lines arrive as they were, on both streams, also without a last newline', async () => {
    const folder = join(here.dir, 'bytes');
    mkdirSync(folder, { recursive: true });
    const every = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const long = Buffer.alloc(1_200_000, 'a line of more than a megabyte ');
    const odd = Buffer.from([0xff, 0xfe, 0x0d, 0x00, 0x1b, 0x5b, 0x32, 0x4a, 0xc3]);
    const out = Buffer.concat([every, long, Buffer.from('\n'), odd, Buffer.from('\n\n\nno newline')]);
    const err = Buffer.concat([odd, long, Buffer.from('\r\n'), every, Buffer.from('\nneither')]);
    writeFileSync(join(folder, 'out'), out);
    writeFileSync(join(folder, 'err'), err);
    const run = startChild('sh', ['-c', 'exec "$0" "$@" 2>../err', program, 'run', '--', 'sh', '-c', 'cat out; cat err >&2'], {
      cwd: folder,
      env: here.env,
    });
    expect((await run.ended).code).toBe(0);
    expect(run.stdoutBytes.equals(out)).toBe(true);
    // Beside the job's own bytes there are only lines of onejob's.
    const said = readFileSync(join(here.dir, 'err'));
    const at = said.indexOf(err);
    expect(at).toBeGreaterThanOrEqual(0);
    const rest = Buffer.concat([said.subarray(0, at), said.subarray(at + err.length)]).toString();
    expect(rest.replaceAll(/^onejob: .*\n/gm, '')).toBe('');
    const [job] = (await here.api.jobs({ all: true, pool: null })).slice(-1);
    const logs = here.cli(['logs', job?.id ?? '']);
    await logs.ended;
    expect(logs.stdoutBytes.equals(out)).toBe(true);
  });
});

test.skipIf(lacks('bubblewrap', 'root'))('plain processes: what a job leaves running ends with it, whatever it tried', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process, stop_grace: 200ms } }' });
  // A bubblewrap that fails, for this daemon alone, makes it choose plain processes.
  const script = 'mount --bind /bin/false "$(command -v bwrap)" && exec "$0" up';
  const daemon = startChild('unshare', ['-m', 'sh', '-c', script, program], { cwd: here.cwd, env: here.env });
  try {
    await daemon.says(/onejob is up/);
    const mark = newMark();
    const ended = await here.run('--no-workspace', '--', 'sh', '-c', `${daemons(mark)}; exit 6`).ended;
    expect(ended).toMatchObject({ code: 6, stdout: 'forked\n' });
    expect(ended.stderr).toContain('can see everything that any user of this host can read');
    await expect.poll(() => sleepers(mark)).toEqual([]);
    const run = here.run('--no-workspace', '--', 'sh', '-c', `${daemons(mark)}; while :; do sleep ${mark}; done`);
    await run.says(/forked/);
    run.signal('SIGINT');
    expect((await run.ended).code).toBe(130);
    await expect.poll(() => sleepers(mark)).toEqual([]);
  } finally {
    daemon.signal('SIGTERM');
    await daemon.ended;
  }
});

test.skipIf(lacks('bubblewrap', 'root'))('a job under bubblewrap cannot read what is not its own', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 2, runtime: process } }' });
  using outside = scratch();
  const token = join(outside.path, 'token');
  writeFileSync(token, 'hush', { mode: 0o600 });
  chmodSync(outside.path, 0o755);
  await here.up();
  const other = here.run('--no-workspace', '--env', 'SECRET=hush', '--', 'sh', '-c', 'echo hush >mine; echo there; sleep 600');
  await other.says(/there/);
  const targets = ['/etc/shadow', token, here.stateDir, join(here.stateDir, 'onejob.db'), join(here.stateDir, 'agents')];
  const script = [
    'umask 0',
    'for path; do cat "$path" 2>/dev/null; ls "$path" 2>/dev/null; done',
    'for socket in /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock; do test -e $socket && echo $socket; done',
    'grep -a -l hush /proc/[0-9]*/environ 2>/dev/null | grep -v self',
    'touch /etc/x /usr/x /x 2>/dev/null && echo wrote',
    'mount -t tmpfs none /mnt 2>/dev/null && echo mounted',
    'chroot / true 2>/dev/null && echo chrooted',
    `kill -0 ${process.pid} ${other.pid} 2>/dev/null && echo signalled`,
    'echo looked',
  ].join('\n');
  const ended = await here.run('--no-workspace', '--', 'sh', '-c', script, 'sh', ...targets).ended;
  expect(ended.stdout).toBe('looked\n');
  other.signal('SIGINT');
  expect((await other.ended).code).toBe(130);
  expect(execFileSync('cat', [token], { encoding: 'utf8' })).toBe('hush');
});

test.skipIf(lacks('bubblewrap'))('SIGTERM with eight busy agents gives each its last words; a second signal hurries', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 8, runtime: process, stop_grace: 10m } }' });
  const daemon = await here.up();
  const polite = 'trap "echo bye; exit 0" TERM; echo begun; while :; do sleep 0.05; done';
  const deaf = 'trap "" TERM; echo begun; while :; do sleep 0.05; done';
  const runs = Array.from({ length: 8 }, (_, i) => here.run('--no-workspace', '--', 'sh', '-c', i < 6 ? polite : deaf));
  await Promise.all(runs.map((run) => run.says(/begun/)));
  daemon.child.signal('SIGTERM');
  for (const run of runs.slice(0, 6)) {
    await run.says(/bye/);
    expect(await run.ended).toMatchObject({ code: 125, stdout: 'begun\nbye\n' });
  }
  expect(daemon.child.running).toBe(true);
  daemon.child.signal('SIGTERM');
  expect((await daemon.child.ended).code).toBe(0);
  for (const run of runs.slice(6)) expect(await run.ended).toMatchObject({ code: 125, stdout: 'begun\n' });
  expect((await here.census()).left).toEqual([]);
});
