/** What a host says that has done nothing yet: the next step. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { nextStep } from './service.ts';

describe('status', () => {
  let dir: Scratch;
  let manager: FakeManager;
  let server: ApiServer;
  beforeEach(async () => {
    dir = scratch();
    manager = createFakeManager();
    server = await startApi({ manager, socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' }, version: '0' });
  });
  afterEach(async () => {
    await manager.end();
    await server.close();
    dir[Symbol.dispose]();
  });
  const status = async (...args: string[]) => {
    const { context, stdout } = testContext(['status', ...args], dir.path);
    await runCli(context);
    return stdout();
  };
  const step = /No job has run here yet[\s\S]*"onejob run -- echo hello"[\s\S]*"onejob init"/;

  it('says what to do where nobody has written a config and no job ever came', async () => {
    expect(await status()).toMatch(step);
    expect(JSON.parse(await status('--json'))).toMatchObject({ config: null });
  });

  it('says nothing of it with a config, to the user of a temporary daemon, and after a job, also if that is forgotten', async () => {
    for (const change of [{ config: '/etc/onejob/config.yml' }, { temporary: true }]) {
      manager.statusOverride = change;
      expect(await status()).not.toMatch(step);
    }
    manager.statusOverride = {};
    const none = {
      jobs: 1,
      passed: 1,
      cancelled: 0,
      code: 0,
      infrastructure: 0,
      configuration: 0,
      unknown: 0,
      waitMs: null,
      runMs: null,
      longestMs: 0,
    };
    manager.history = () => [{ value: 'default', ...none }];
    expect(await status()).not.toMatch(step);
  });
});

describe('onejob without a command', () => {
  const installed = { isRelease: true, hasSystemd: true, hasUnit: false, uid: 0, isOwn: false };

  it.each<[string, Partial<typeof installed>, string | null]>([
    ['a release, for root', {}, 'onejob service install'],
    ['a release of the system, for a user', { uid: 1000 }, 'sudo onejob service install'],
    ['a release in a home', { uid: 1000, isOwn: true }, 'onejob service install --user'],
    ['a host that has the service', { hasUnit: true }, null],
    ['a clone', { isRelease: false }, null],
    ['a host without systemd', { hasSystemd: false }, null],
  ])('%s', (_, differs, step) => expect(nextStep({ ...installed, ...differs })).toBe(step));

  it('in a clone only shows its help', async () => {
    const { context, stderr } = testContext([], '/nowhere');
    expect(await runCli(context)).toBe(2);
    expect(stderr()).toMatch(/^Usage: onejob/);
    expect(stderr()).not.toContain('next:');
  });
});
