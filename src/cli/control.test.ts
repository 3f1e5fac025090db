/** What `resume` says and ends with, over a manager in memory. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { scratch } from '../../test/support/scratch.ts';
import { startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import type { ResumeView } from '../contract/schema.ts';
import { startOf } from '../store/lead.ts';
import { untilEnded } from './control.ts';
import { readVersion } from './session.ts';

const resume = (held: ResumeView['held'], ...args: readonly string[]) => answered({ changed: true, held }, ...args);

async function answered({ changed, held }: ResumeView, ...args: readonly string[]) {
  using dir = scratch();
  const socket = join(dir.path, 'onejob.sock');
  const manager = createFakeManager();
  manager.held = held;
  manager.resumed = changed;
  const server = await startApi({ manager, socket: { path: socket, access: 'owner' }, version: readVersion() });
  try {
    const { context, stdout } = testContext(['resume', ...args], dir.path);
    const code = await runCli(context);
    return { code, stdout: stdout(), calls: manager.calls };
  } finally {
    await server.close();
  }
}

test('nothing holds them any more', async () => {
  expect(await resume([])).toEqual({ code: 0, stdout: 'Resumed all pools.\n', calls: ['resume null hand'] });
});

test('somebody else still holds one: who, how to end that, and 1', async () => {
  const { code, stdout } = await resume([{ pool: 'lab', by: ['maintenance', "bob's"], because: [] }]);
  expect(stdout).toBe(
    'Pool lab is still paused by maintenance: type "onejob resume lab --reason maintenance".\n' +
      `Pool lab is still paused by bob's: type "onejob resume lab --reason 'bob'\\''s'".\n`,
  );
  expect(code).toBe(1);
});

test('a resume reports, but does not end, what onejob itself holds', async () => {
  expect(await resume([{ pool: 'lab', by: [], because: ['/data is full.'] }], 'lab')).toMatchObject({
    code: 0,
    stdout: 'Resumed pool lab.\nPool lab still starts nothing: /data is full.\n',
  });
});

test('nothing was paused for that reason', async () => {
  const { stdout } = await answered({ changed: false, held: [] }, 'lab');
  expect(stdout).toBe('Pool lab was not paused.\n');
  expect((await answered({ changed: false, held: [] })).stdout).toBe('No pool was paused.\n');
  const other = await answered({ changed: false, held: [{ pool: 'lab', by: ['maintenance'], because: [] }] }, 'lab');
  expect(other.stdout).toBe('Pool lab is still paused by maintenance: type "onejob resume lab --reason maintenance".\n');
  const own = await answered({ changed: false, held: [{ pool: 'lab', by: [], because: ['/data is full.'] }] }, 'lab');
  expect(own.stdout).toBe('Pool lab was not paused.\nPool lab still starts nothing: /data is full.\n');
});

test('a daemon that does not end is not called ended', async () => {
  const daemon = spawn('sleep', ['1000']);
  try {
    await once(daemon, 'spawn');
    const pid = daemon.pid ?? 0;
    const started = startOf(pid);
    expect(await untilEnded({ pid, started }, 30)).toBe(false);
    expect(await untilEnded({ pid, started: 'of an earlier process with this pid' }, 30)).toBe(true);
    const ended = untilEnded({ pid, started }, 60_000);
    daemon.kill('SIGKILL');
    expect(await ended).toBe(true);
  } finally {
    daemon.kill('SIGKILL');
  }
});
