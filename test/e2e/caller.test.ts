/** What the shell that starts `onejob run` hands over: ignored signals, and files that cannot be written. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { startChild } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const config = 'pools: { default: { agents: 1, runtime: process } }';
const program = join(import.meta.dirname, '../../bin/onejob');

/** `onejob run` as a shell starts it: `"$@"` is the command. */
function inShell(here: Home, script: string, ...args: string[]) {
  return startChild('sh', ['-c', script, 'sh', program, 'run', '--no-workspace', ...args], { env: here.env, cwd: here.cwd });
}

test('a signal that the caller ignores ends neither the command nor the job, and artifacts come back', async () => {
  await using here = await onejob({ config });
  await here.up();
  const wait = 'echo begun; while ! [ -e /gate/open ]; do sleep 0.05; done; echo made >r; exit 3';
  const volume = `${here.cwd}:/gate`;
  const child = inShell(here, 'trap "" HUP INT; exec "$@"', '--artifact', 'r', '--volume', volume, '--', 'sh', '-c', wait);
  await child.says(/begun/);
  child.signal('SIGHUP');
  child.signal('SIGINT');
  writeFileSync(join(here.cwd, 'open'), '');
  const end = await child.ended;
  expect(end).toMatchObject({ code: 3, stderr: expect.stringContaining('brought back 1 file') });
  expect(end.stderr).not.toContain('cancelling');
  expect(readFileSync(join(here.cwd, 'r'), 'utf8')).toBe('made\n');
});

test('a full disk under the output is named; the job ends as it would, and its log is whole', async () => {
  await using here = await onejob({ config });
  await here.up();
  const script = 'echo out; echo err >&2; head -c 300000 /dev/zero; echo made >r; exit "$CODE"';
  for (const [code, exit] of [
    [0, 1],
    [7, 7],
  ]) {
    const child = inShell(here, 'exec "$@" >/dev/full', '--artifact', 'r', '-e', `CODE=${code}`, '--', 'sh', '-c', script);
    const { code: own, stderr } = await child.ended;
    expect(own).toBe(exit);
    expect(stderr).toContain('Cannot write to standard output: no space is left on its disk (ENOSPC).');
    expect(stderr).toMatch(/^err$/m);
    expect(stderr).toContain('brought back 1 file');
    const [, id = ''] = /job (\w+) continues; "onejob logs/.exec(stderr) ?? [];
    expect((await here.cli(['logs', id]).ended).stdout.length).toBe('out\n'.length + 300_000);
  }
  expect(existsSync(join(here.cwd, 'r'))).toBe(true);
  const status = startChild('sh', ['-c', 'exec "$0" status >/dev/full', program], { env: here.env, cwd: here.cwd });
  expect(await status.ended).toMatchObject({ code: 1, stderr: expect.stringContaining('(ENOSPC)') });
});

test.skipIf(lacks('mount'))('a full disk keeps the exit code of the job, and its artifacts can be fetched later', async () => {
  await using here = await onejob({ config });
  await here.up();
  const make = 'mkdir -p out/empty; head -c 6000000 /dev/zero >out/big; echo small >out/small; exit 7';
  const script = 'mkdir here && mount -t tmpfs -o size=4m none here && cd here && "$@"; code=$?; ls out; exit $code';
  const run = ['run', '--no-workspace', '--artifact', 'out', '--', 'sh', '-c', make];
  const child = startChild('unshare', ['-m', 'sh', '-c', script, 'sh', program, ...run], { env: here.env, cwd: here.cwd });
  const { code, stdout, stderr } = await child.ended;
  expect([code, stdout]).toEqual([7, 'empty\nsmall\n']);
  expect(stderr).toContain('could not bring back out/big: no space left on the disk');
  const [, id = ''] = /"onejob artifacts (\w+)"/.exec(stderr) ?? [];
  expect(await here.cli(['artifacts', id]).ended).toMatchObject({ code: 0, stderr: 'onejob: brought back 2 files\n' });
  expect(readdirSync(join(here.cwd, 'out')).sort()).toEqual(['big', 'empty', 'small']);
  const none = await here.cli(['artifacts', 'abcdef']).ended;
  expect(none).toMatchObject({ code: 1, stderr: expect.stringContaining('There is no job abcdef.') });
});
