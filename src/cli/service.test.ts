import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';

async function service(...args: string[]) {
  const { context, stdout, stderr } = testContext(['service', ...args], '/nowhere');
  return { code: await runCli(context), stdout: stdout(), stderr: stderr() };
}

const hasAnalyze = spawnSync('systemd-analyze', ['--version']).status === 0;

test.skipIf(!hasAnalyze).each([[[]], [['--user']]])('systemd accepts the unit %j', async (flags) => {
  using here = scratch();
  const { code, stdout } = await service('install', '--print', ...flags);
  expect(code).toBe(0);
  expect(stdout).toMatch(/^ExecStart=\/.*\/bin\/onejob up --on-stop leave$/m);
  expect(stdout).toMatch(/^KillMode=process$/m);
  const unit = join(here.path, 'onejob.service');
  writeFileSync(unit, stdout);
  const { status, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', unit], { encoding: 'utf8' });
  expect(stderr.split('\n').filter((line) => line.includes('onejob.service'))).toEqual([]);
  expect(status).toBe(0);
});

test('a clone is refused, and so is what needs root or an earlier version', async () => {
  const refused = await service('install');
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining('it is a clone') });
  expect(refused.stderr).toContain('npm run release');
  expect(await service('rollback')).toMatchObject({ code: 1, stderr: expect.stringContaining('no previous version') });
  expect(await service('upgrade', 'x.tar.gz', '--user')).toMatchObject({ code: 1, stderr: expect.stringContaining('install.sh') });
});
