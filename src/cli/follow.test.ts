/** A daemon that comes and goes under a running `onejob run`. */
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { OnejobError } from '../base/errors.ts';
import { runCli } from '../cli.ts';
import { gapPiece } from '../contract/gap.ts';
import { jobRequest } from '../contract/job.ts';
import { createOutput } from './output.ts';
import { runJob } from './run.ts';
import { findPlace } from './session.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;

const listen = () => startApi({ manager, socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' }, version: '0' });

beforeEach(async () => {
  dir = scratch();
  manager = createFakeManager();
  server = await listen();
});

afterEach(async () => {
  await manager.end();
  await server.close();
  dir[Symbol.dispose]();
});

const script = (text: string) => ['run', '--no-workspace', '--', 'sh', '-c', text];

test('the output continues without a gap or a repeat, and the exit code is the job’s', async () => {
  const cli = testContext(script('seq 1 5; while ! [ -e go ]; do sleep 0.02; done; seq 6 10; exit 5'), dir.path);
  const cwd = process.cwd();
  process.chdir(dir.path);
  const run = runCli(cli.context);
  await cli.says(/^5$/m);
  process.chdir(cwd);
  for (let times = 1; times <= 3; times += 1) {
    await server.close();
    await cli.says(new RegExp(`(keeps running[^]*){${times}}`));
    server = await listen();
    await cli.says(new RegExp(`(connected again[^]*){${times}}`));
  }
  writeFileSync(join(dir.path, 'go'), '');
  expect(await run).toBe(5);
  expect(cli.stdout()).toBe('1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n');
  expect(cli.stderr()).toContain('connected again');
});

test('a daemon that reads a new config is one line, and no death', async () => {
  const cli = testContext(script('echo one; while ! [ -e go ]; do sleep 0.02; done; echo two; exit 5'), dir.path);
  const cwd = process.cwd();
  process.chdir(dir.path);
  const run = runCli(cli.context);
  await cli.says(/^one$/m);
  process.chdir(cwd);
  for (let times = 1; times <= 2; times += 1) {
    await server.close({ reloads: true });
    await cli.says(new RegExp(`(reads a new config[^]*){${times}}`));
    server = await listen();
    await expect.poll(() => manager.holds()).toBe(1);
  }
  writeFileSync(join(dir.path, 'go'), '');
  expect(await run).toBe(5);
  expect(cli.stdout()).toBe('one\ntwo\n');
  expect(cli.stderr().match(/^onejob: .*daemon.*$/gm)).toEqual(Array(2).fill('onejob: the daemon reads a new config'));
  expect(cli.stderr()).not.toMatch(/gone|stopping|connected again/);
});

test('a command that only follows a job starts no daemon when a temporary one is lost', async () => {
  await server.close();
  manager = createFakeManager({ temporary: true });
  server = await listen();
  const { id } = manager.submit(jobRequest.parse({ command: ['sh', '-c', 'echo here; exec sleep 60'] }));
  const cli = testContext(['logs', '-f', id], dir.path);
  const logs = runCli(cli.context);
  await cli.says(/here/);
  for (let times = 1; times <= 2; times += 1) {
    await server.close();
    await cli.says(new RegExp(`(waiting for up to 10m[^]*){${times}}`));
    server = await listen();
    await cli.says(new RegExp(`(connected again[^]*){${times}}`));
  }
  manager.cancel(id);
  expect(await logs).toBe(0);
  expect(cli.stderr()).not.toContain('starting');
});

test('a job that ended while the daemon was away is found ended', async () => {
  const cli = testContext(script('echo before; sleep 0.3; echo after; exit 6'), dir.path);
  const run = runCli(cli.context);
  await cli.says(/before/);
  await server.close();
  await manager.settled('j1', new AbortController().signal);
  server = await listen();
  expect(await run).toBe(6);
  expect(cli.stdout()).toBe('before\nafter\n');
});

test('a Ctrl-C while the daemon is away reaches it once it is back', async () => {
  const cli = testContext(script('echo started; exec sleep 60'), dir.path);
  const run = runCli(cli.context);
  await cli.says(/started/);
  await server.close();
  await cli.says(/keeps running/);
  cli.signal();
  server = await listen();
  expect(await run).toBe(130);
});

test('a second Ctrl-C while the daemon is away ends the waiting', async () => {
  const cli = testContext(script('echo started; exec sleep 60'), dir.path);
  const run = runCli(cli.context);
  await cli.says(/started/);
  await server.close();
  await cli.says(/keeps running/);
  cli.signal();
  cli.signal();
  await run;
  expect(cli.stderr()).toContain('left to the daemon');
  expect(cli.stderr()).toContain('exit 130');
});

test('a daemon that restarts while the workspace is sent gets it again, and the job runs once', async () => {
  const cwd = join(dir.path, 'files');
  mkdirSync(cwd);
  writeFileSync(join(cwd, 'a.txt'), 'one');
  const { putWorkspace } = manager;
  let begun = 0;
  const sent = Promise.withResolvers<void>();
  manager.putWorkspace = async (files, signal) => {
    begun += 1;
    if (begun > 1) return putWorkspace(files, signal);
    sent.resolve();
    await once(signal, 'abort');
    throw signal.reason;
  };
  const cli = testContext(['run', '--workspace', cwd, '--', 'echo', 'ran'], dir.path);
  const run = runCli(cli.context);
  await sent.promise;
  await server.close();
  await cli.says(/is submitted again/);
  server = await listen();
  expect(await run, cli.stderr()).toBe(0);
  expect([cli.stdout(), begun, manager.workspaces.size]).toEqual(['ran\n', 2, 1]);
  expect(manager.jobs({ all: true, pool: null }).jobs).toHaveLength(1);
});

test('gives up waiting for a daemon after a time, and says that the job was not submitted', async () => {
  const cli = testContext([], dir.path);
  const output = createOutput(cli.context, false);
  const flags = {};
  const place = () => findPlace(flags, cli.context.environment, dir.path);
  manager.status = () => {
    void server.close();
    throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.');
  };
  const request = jobRequest.parse({ command: ['true'] });
  const run = runJob(
    { context: cli.context, output, version: '0', flags, remote: null, place },
    { request, workspace: null, detach: true, array: null, needs: [], patience: 30 },
  );
  await expect(run).rejects.toMatchObject({
    code: 'E_DAEMON_ABSENT',
    message: expect.stringMatching(/^Gave up after .*: no daemon has come back.* Job [0-9a-f]{12} was not submitted\.$/),
  });
});

test('output for a terminal is made plain, and continues where it was after the daemon was away', async () => {
  const bytes = (text: string) => ({ stream: 'stdout', bytes: Buffer.from(text), forTerminal: true }) as const;
  const before = [
    bytes('\u001b[90m$\u001b[0m ma'),
    gapPiece({ missing: { stdout: 1_000, stderr: 0 }, after: { stdout: 13, stderr: 0 } }),
  ];
  const job = manager.submit(jobRequest.parse({ command: ['true'] }));
  let times = 0;
  manager.logs = async function* (_source, _how, signal) {
    yield* before;
    // Cut in the middle of an escape.
    yield bytes('ke\r\n\u001b[');
    if (times++ === 0) await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
    else yield bytes('1mdone\u001b[0m\r\n');
  };
  const cli = testContext(['logs', '-f', job.id], dir.path);
  const logs = runCli(cli.context);
  await cli.says(/ke\n/);
  await server.close();
  await cli.says(/keeps running/);
  server = await listen();
  expect(await logs).toBe(0);
  expect(cli.stdout()).toBe('$ make\ndone\n');
  expect(cli.stderr().match(/not kept here: 1,000 bytes of stdout after its first 13 bytes/g)).toHaveLength(1);
});
