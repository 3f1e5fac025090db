/** `onejob caches` and `caches clear`: what they say, and what they refuse. */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
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

async function onejob(...args: string[]) {
  const cli = testContext(args, dir.path);
  const code = await runCli(cli.context);
  return { code, stdout: cli.stdout(), stderr: cli.stderr() };
}

test('all are listed with whose they are', async () => {
  const { code, stdout } = await onejob('caches');
  expect(code).toBe(0);
  const rows = stdout
    .trimEnd()
    .split('\n')
    .map((line) => line.trim().split(/ {2,}/));
  expect(rows).toEqual([
    ['OF', 'CACHE', 'SLOT', 'PROJECT', 'TRUST', 'SIZE', 'USED'],
    ['gpu', 'depot', 'gpu.1', '-', 'trusted', expect.stringMatching(/^2(\.0)? MiB$/), 'now'],
    ['lab', 'npm', '-', 'acme/app', 'untrusted', expect.stringMatching(/^1(\.0)? MiB$/), '2h 00m ago'],
  ]);
  const json = (await onejob('caches', '--json')).stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(json).toMatchObject([
    { kind: 'named', inUse: true },
    { kind: 'service', trusted: false },
  ]);
});

test('clearing says what it did, and fails when a job still has one', async () => {
  expect(await onejob('caches', 'clear', 'npm')).toMatchObject({ code: 0, stdout: expect.stringMatching(/^Cleared 1 cache, 1/) });
  expect(await onejob('caches', 'clear', 'depot', '--dry-run')).toMatchObject({
    code: 1,
    stdout: expect.stringMatching(/^That would clear 1 cache, .*\nJobs use 1 other, which stays\.\n$/),
  });
  expect(JSON.parse((await onejob('caches', '--json', 'clear', '--all')).stdout)).toEqual({
    caches: 1,
    bytes: 2 ** 20,
    inUse: 0,
    dryRun: false,
  });
});

test.each([
  [['clear'], 'does not say which'],
  [['clear', 'npm', '--all'], 'cannot be restricted'],
])('%j is wrong usage', async (args, why) => {
  expect(await onejob('caches', ...args)).toMatchObject({ code: 2, stderr: expect.stringContaining(why) });
});
