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

/** What a command says of a hosts file with this host and one that is away. */
async function said(...args: string[]) {
  using dir = scratch();
  mkdirSync(join(dir.path, 'onejob'));
  writeFileSync(join(dir.path, 'onejob', 'hosts.yml'), 'hosts: { here: local, gone: "ssh://nowhere.invalid" }');
  const socket = { path: join(dir.path, 'onejob.sock'), access: 'owner' } as const;
  const server = await startApi({ manager: createFakeManager(), socket, version: '0' });
  const variables = { HOME: dir.path, XDG_CONFIG_HOME: dir.path, ONEJOB_STATE_DIR: dir.path, PATH: dir.path };
  const { context, stdout } = testContext(args, dir.path, { variables, environment: readEnvironment(variables) });
  const code = await runCli(context);
  await server.close();
  return { code, text: stdout() };
}

test('doctor of all hosts says which one did not answer, and exits with 1', async () => {
  const { code, text } = await said('doctor', '--all');
  expect(text).toMatch(/^HOST +STATE\nhere +(ok|\d+ error)/);
  expect(text).toMatch(/\ngone +unreachable\n/);
  expect(text).toMatch(/^! gone: /m);
  expect(code).toBe(1);
  const lines = (await said('doctor', '--all', '--json')).text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(lines).toMatchObject([
    { host: 'here', findings: expect.any(Array), error: null },
    { host: 'gone', findings: null, error: { code: expect.stringMatching(/^E_/) } },
  ]);
});

test('jobs of all hosts name their host', async () => {
  const { code, text } = await said('jobs', '--all-hosts');
  expect(text).toContain('! gone: ');
  expect(code).toBe(1);
  const [first] = (await said('jobs', '--all-hosts', '--json')).text.split('\n');
  expect(JSON.parse(first ?? '')).toMatchObject({ host: 'here', jobs: expect.any(Array) });
  expect((await said('jobs', 'abcd', '--all-hosts')).code).toBe(2);
});

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
