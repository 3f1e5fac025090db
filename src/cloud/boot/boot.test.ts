/** The script and the text, as programs that others wrote see them. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { newSecret } from '../join/protocol.ts';
import { bootScript, cloudInit } from './cloud-init.ts';

const has = (program: string): boolean => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;
const lacking = (program: string): boolean => {
  if (has(program)) return false;
  console.log(`skipped: ${program} is not installed here, so it cannot check the text that machines boot with`);
  return true;
};

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

it.skipIf(lacking('shellcheck'))('shellcheck finds nothing in the script', () => {
  const path = join(import.meta.dirname, 'boot.sh');
  const { stdout, stderr } = spawnSync('shellcheck', [path], { encoding: 'utf8' });
  expect(stdout + stderr).toBe('');
});

it.skipIf(lacking('cloud-init')).each(['aws', 'gcp', 'azure'] as const)('cloud-init takes the text for %s', (cloud) => {
  const text = cloudInit({
    ...{ run: 'onejob-0123456789abcdef', url: 'https://ci.example.org', token: newSecret(), cloud, guestEnds: cloud === 'aws' },
    ...{ away: 3600, ca: 'a certificate\n', has: 'nothing', gpu: true, lifetime: 3600, opengl: 'glx', setup: 'true' },
    package: { url: 'https://example.org/onejob.tgz', sha256: 'a'.repeat(64) },
  });
  expect(check('cloud-init', ['schema', '--config-file'], 'user-data', text)).toBe('');
});
