/** `logs` on a terminal and in a pipe, and `jobs prune`. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';

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

async function onejob(args: readonly string[], terminal = false) {
  const cli = testContext([...args], dir.path);
  for (const stream of [cli.context.stdout, cli.context.stderr]) Object.assign(stream, { isTTY: terminal, columns: 80 });
  const code = await runCli(cli.context);
  return { code, stdout: cli.stdout(), stderr: cli.stderr() };
}

describe('logs of another user’s job', () => {
  const printed = '\u001b[31mred\u001b[0m\u001b]0;title\u0007\u001b]52;c;ZXZpbA==\u0007\u001b[6n\u001b[2Jend\n';
  beforeEach(() => {
    manager.agentOutput.set('b78a0cfbf7', printed);
  });

  test('a terminal gets text and colours, and no other escape sequences', async () => {
    expect(await onejob(['logs', 'b78a0cfbf7'], true)).toMatchObject({ code: 0, stdout: '\u001b[31mred\u001b[0mend\n' });
  });

  test('--raw, a pipe and JSON have every byte', async () => {
    expect((await onejob(['logs', '--raw', 'b78a0cfbf7'], true)).stdout).toBe(printed);
    expect((await onejob(['logs', 'b78a0cfbf7'])).stdout).toBe(printed);
    expect(JSON.parse((await onejob(['logs', '--json', 'b78a0cfbf7'], true)).stdout)).toMatchObject({ text: printed });
  });

  test('-n has the last lines', async () => {
    manager.agentOutput.set('b78a0cfbf7', '1\n2\n3\n');
    expect((await onejob(['logs', '-n', '2', 'b78a0cfbf7'])).stdout).toBe('2\n3\n');
    expect((await onejob(['logs', '-n', '-2', 'b78a0cfbf7'])).code).toBe(2);
  });
});

describe('jobs prune', () => {
  test('says what it removed, or would remove', async () => {
    expect(await onejob(['jobs', 'prune', '--dry-run'])).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^That would remove 0 jobs and the logs of 0 agents, 3(\.0)? MiB\.\n$/),
    });
    expect((await onejob(['jobs', 'prune', '--older-than', '0'])).stdout).toMatch(/^Removed 0 jobs/);
    expect(JSON.parse((await onejob(['jobs', 'prune', '--json'])).stdout)).toEqual({
      jobs: 0,
      agents: 0,
      bytes: 3 * 2 ** 20,
      dryRun: false,
    });
  });

  test('takes no time without a unit', async () => {
    expect(await onejob(['jobs', 'prune', '--older-than', '7'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('has no unit'),
    });
  });
});
