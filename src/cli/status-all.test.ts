/** `onejob status --all` in this process. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { scratch } from '../../test/support/scratch.ts';
import { startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import { readEnvironment } from '../config/environment.ts';

test('this host is asked itself, whatever host other commands are for', async () => {
  using dir = scratch();
  mkdirSync(join(dir.path, 'onejob'));
  writeFileSync(join(dir.path, 'onejob', 'hosts.yml'), 'hosts: { here: local }');
  const socket = { path: join(dir.path, 'onejob.sock'), access: 'owner' } as const;
  const server = await startApi({ manager: createFakeManager(), socket, version: '0' });
  const variables = { HOME: dir.path, XDG_CONFIG_HOME: dir.path, ONEJOB_STATE_DIR: dir.path, ONEJOB_HOST: 'ssh://nowhere.invalid' };
  const { context, stdout } = testContext(['status', '--all'], dir.path, { variables, environment: readEnvironment(variables) });
  await runCli(context);
  await server.close();
  expect(stdout()).toMatch(/^HOST .*\nhere +ok /);
});
