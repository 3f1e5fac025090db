/** A config that a command names, where a daemon with another one runs already. */
import { symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { readEnvironment } from '../config/environment.ts';
import { readVersion } from './session.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;

beforeEach(async () => {
  dir = scratch();
  manager = createFakeManager();
  server = await startApi({ manager, socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' }, version: readVersion() });
  for (const name of ['a.yml', 'b.yml']) writeFileSync(join(dir.path, name), '');
  symlinkSync('a.yml', join(dir.path, 'link.yml'));
  manager.statusOverride = { config: join(dir.path, 'a.yml') };
});
afterEach(async () => {
  await manager.end();
  await server.close();
  dir[Symbol.dispose]();
});

async function onejob(args: string[], env: Record<string, string> = {}) {
  const environment = readEnvironment({ HOME: dir.path, ONEJOB_STATE_DIR: dir.path, ...env });
  const cli = testContext(args, dir.path, { environment });
  const code = await runCli(cli.context);
  return { code, stdout: cli.stdout(), stderr: cli.stderr() };
}

const run = (...flags: string[]) => ['run', '--no-workspace', ...flags, '--', 'echo', 'ran'];

test.each([
  [run('--config', 'b.yml'), {}, 125],
  [run(), { ONEJOB_CONFIG: 'b.yml' }, 125],
  [['config', 'apply', '--config', 'b.yml'], {}, 1],
  [['doctor', '--config', 'b.yml'], {}, 1],
  [['plan', '--config', 'b.yml'], {}, 1],
])('%j is refused by a daemon with another config, which is named (%j)', async (args, env, code) => {
  const { stdout, stderr, ...refused } = await onejob(args, env);
  expect({ ...refused, stdout }).toEqual({ code, stdout: '' });
  expect(stderr).toContain(`${join(dir.path, 'b.yml')}`);
  expect(stderr).toContain(`with ${join(dir.path, 'a.yml')}`);
  expect(stderr).toMatch(/Cannot use config .*pid \d+.*--state-dir/s);
  expect(await manager.jobs({ all: true, pool: null })).toMatchObject({ jobs: [] });
});

test.each([['a.yml'], ['link.yml'], [null]])('its own config, named as %s, is accepted', async (name) => {
  expect(await onejob(run(...(name === null ? [] : ['--config', name])))).toMatchObject({ code: 0, stdout: 'ran\n' });
});

test('a daemon without a config is another one, too', async () => {
  manager.statusOverride = { config: null };
  expect(await onejob(run('--config', 'a.yml'))).toMatchObject({ code: 125, stderr: expect.stringContaining('no config file') });
});

test('a file that changed meanwhile is refused by a temporary daemon, and noted with one that can apply it', async () => {
  const changed = 'a.yml was changed after the daemon loaded it.';
  manager.statusOverride = { config: join(dir.path, 'a.yml'), configChanged: changed, temporary: true };
  const running = onejob(['run', '--no-workspace', '--', 'sleep', '60']);
  await expect.poll(async () => (await manager.jobs({ all: false, pool: null })).jobs.length).toBe(1);
  expect(await onejob(run('--config', 'a.yml'))).toMatchObject({ code: 125, stderr: expect.stringContaining('Cannot use config') });
  expect(await onejob(run())).toMatchObject({ code: 0, stderr: expect.stringContaining(changed) });
  await manager.end();
  await running;
  manager.statusOverride = { config: join(dir.path, 'a.yml'), configChanged: changed };
  expect(await onejob(run('--config', 'a.yml'))).toMatchObject({ code: 0, stderr: expect.stringContaining(changed) });
});

test.each([
  ['doctor', 0],
  ['plan', 1],
])('%s waits for the end of a temporary daemon with another config that has no job', async (command, code) => {
  manager.statusOverride = { config: join(dir.path, 'a.yml'), temporary: true };
  manager.events.once('idle', () => void server.close());
  const { stderr, stdout, ...ended } = await onejob([command, '--config', 'b.yml', '--json']);
  expect(ended).toEqual({ code });
  expect(stdout + stderr).toContain('No daemon is running');
});
