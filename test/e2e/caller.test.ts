/** What the shell that starts `onejob run` hands over: ignored signals, and files that cannot be written. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { startChild } from '../support/child.ts';
import { type Home, onejob } from '../support/onejob.ts';

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
