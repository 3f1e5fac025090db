/** Real programs, good and bad: what they get, and how their end is told. */
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { commandConfig } from '../../../test/kit/command-cloud.ts';
import { handClock } from '../../../test/kit/core.ts';
import { isAlive } from '../../../test/support/child.ts';
import { systemClock as clock } from '../../system/system-clock.ts';
import { openCommand } from './cloud.ts';
import { runProgram } from './program.ts';

const folder = mkdtempSync(join(tmpdir(), 'onejob-program-'));
afterAll(() => rmSync(folder, { recursive: true }));
const signal = new AbortController().signal;

let count = 0;
function script(text: string): string {
  const path = join(folder, `p${count}`);
  count += 1;
  writeFileSync(path, `#!/bin/sh\n${text}\n`);
  chmodSync(path, 0o755);
  return path;
}

const variables = {
  PATH: process.env.PATH,
  HOME: folder,
  HTTPS_PROXY: 'http://proxy:1',
  GITHUB_TOKEN: 'secret-1',
  OS_PASSWORD: 'secret-2',
};
const run = (text: string, { input = '{}', ending = signal, time = clock } = {}) =>
  runProgram([script(text), 'list'], input, { timeout: 20_000, clock: time, variables }, ending);

test('the verb is its only argument, the request its input, and its environment has what finds programs and files', async () => {
  const { stdout, code } = await run('echo "$# $1"; cat; echo; env', { input: '{"a":1}' });
  const [args, input, ...env] = stdout.trim().split('\n');
  expect([code, args, input]).toEqual([0, '1 list', '{"a":1}']);
  const names = env.map((line) => line.split('=')[0]).filter((name) => !['PWD', 'SHLVL', '_', 'OLDPWD'].includes(name ?? ''));
  expect(names.toSorted()).toEqual(['HOME', 'HTTPS_PROXY', 'PATH']);
});

test('its exit code and what it said are told', async () => {
  expect(await run('echo no >&2; exit 69')).toEqual({
    code: 69,
    why: 'it exited with 69',
    isUnstarted: false,
    stdout: '',
    stderr: 'no\n',
  });
  expect(await run('kill -9 $$')).toMatchObject({ code: null, why: 'it was ended by SIGKILL' });
});

test('it may end without reading a large input', async () => {
  expect(await run('echo "{}"', { input: 'x'.repeat(2 ** 20) })).toMatchObject({ code: 0, stdout: '{}\n' });
});

test('one that hangs ends with all that it started', async () => {
  const pids = join(folder, 'pids');
  const time = handClock();
  const running = run(`sleep 1000 & one=$!; setsid sleep 1000 & echo $one $! > ${pids}.new; mv ${pids}.new ${pids}; sleep 1000`, {
    time,
  });
  await expect.poll(() => existsSync(pids)).toBe(true);
  time.advance(20_000);
  expect(await running).toMatchObject({ code: null, why: 'it took longer than 20s and was killed' });
  const started = readFileSync(pids, 'utf8').trim().split(' ').map(Number);
  await expect.poll(() => started.filter((pid) => isAlive(pid))).toEqual([]);
  expect(started).toHaveLength(2);
});

test('what it leaves in the background does not keep its answer back', async () => {
  const [pid, time] = [join(folder, 'left'), handClock()];
  const running = run(`sleep 1000 & echo $! > ${pid}; echo "{}"`, { time });
  let isOver = false;
  running.then(() => {
    isOver = true;
  });
  const passes = (): boolean => {
    time.advance(10);
    return isOver;
  };
  await expect.poll(passes, { timeout: 60_000, interval: 20 }).toBe(true);
  expect(time.now()).toBeLessThan(20_000);
  expect(await running).toMatchObject({ code: 0, stdout: '{}\n' });
  await expect.poll(() => isAlive(Number(readFileSync(pid, 'utf8')))).toBe(false);
});

test('one that prints without end is ended', async () => {
  expect(await run('while :; do echo 0123456789012345678901234567890123456789; done')).toMatchObject({
    code: null,
    why: 'it printed too much',
  });
});

test('an interruption ends it', async () => {
  const stop = new AbortController();
  const running = run('sleep 1000', { ending: stop.signal });
  stop.abort();
  expect(await running).toMatchObject({ code: null });
});

test('one that is not there, or may not be run, made nothing', async () => {
  for (const [path, mode] of [
    ['/nowhere/provider', 0],
    [script('echo'), 0o644],
  ] as const) {
    if (mode !== 0) chmodSync(path, mode);
    const parts = { clock, fetch, log: { error() {}, warn() {}, info() {} }, variables, version: '1' };
    const cloud = openCommand({ ...commandConfig, program: path }, parts);
    await expect(cloud.console({ id: 'a', place: 'lab' }, signal)).rejects.toMatchObject({
      code: 'E_CLOUD_REQUEST',
      isAmbiguous: false,
      message: expect.stringMatching(/cannot be started: spawn .*(ENOENT|EACCES)/),
    });
  }
});
