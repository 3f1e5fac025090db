/** The script and the text, as programs that others wrote see them. */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { lacks } from '../../../test/support/require.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { linesOf } from '../join/line.ts';
import { newSecret } from '../join/protocol.ts';
import { bootScript, cloudInit } from './cloud-init.ts';

const has = (program: string): boolean => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;

function check(program: string, args: readonly string[], name: string, text: string): string {
  using folder = scratch();
  const path = join(folder.path, name);
  writeFileSync(path, text);
  const { status, stdout, stderr } = spawnSync(program, [...args, path], { encoding: 'utf8' });
  return status === 0 ? '' : `${program} ended with ${status}: ${stdout}${stderr}`;
}

it.each(['sh', 'bash', 'dash'].filter((shell) => has(shell)))('the script is one for %s', (shell) => {
  expect(check(shell, ['-n'], 'boot.sh', bootScript())).toBe('');
});

it.each(['sh', 'bash', 'dash'].filter((shell) => has(shell)))('without an address, %s tells a stage on the console', (shell) => {
  using folder = scratch();
  const run = 'onejob-0123456789abcdef';
  const [path, console] = [join(folder.path, 'tell.sh'), join(folder.path, 'console')];
  const parts = ['say', 'tell'].map((name) =>
    new RegExp(`^${name}\\(\\)[\\s\\S]*?^}$`, 'm').exec(bootScript())?.[0].replace('/dev/console', console),
  );
  writeFileSync(path, `run=${run} url=''\n${parts.join('\n')}\nprintf 'one\\ntwo\\033' | tell failed\n`);
  const { status, stderr } = spawnSync(shell, ['-eu', path], { encoding: 'utf8' });
  expect([status, stderr]).toEqual([0, '']);
  expect(linesOf(readFileSync(console, 'utf8'), run)).toMatchObject([{ word: 'failed', text: 'one\ntwo ' }]);
});

it.skipIf(lacks('shellcheck'))('shellcheck finds nothing in the script', () => {
  const path = join(import.meta.dirname, 'boot.sh');
  const { stdout, stderr } = spawnSync('shellcheck', [path], { encoding: 'utf8' });
  expect(stdout + stderr).toBe('');
});

it.skipIf(lacks('cloudInit')).each(['aws', 'gcp', 'azure'] as const)('cloud-init takes the text for %s', (cloud) => {
  const text = cloudInit({
    run: 'onejob-0123456789abcdef',
    url: 'https://ci.example.org',
    token: newSecret(),
    cloud,
    guestEnds: cloud === 'aws',
    away: 3600,
    ca: 'a certificate\n',
    has: 'nothing',
    gpu: true,
    sandbox: true,
    lifetime: 3600,
    opengl: 'glx',
    setup: 'true',
    package: { url: 'https://example.org/onejob.tgz', sha256: 'a'.repeat(64) },
  });
  expect(check('cloud-init', ['schema', '--config-file'], 'user-data', text)).toBe('');
});
