/** Logs of jobs at a CI service: who ran them, and what those agents logged themselves. */

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { setImmediate as turn } from 'node:timers/promises';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type HandClock, handClock } from '../../test/kit/core.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { serviceJob } from '../../test/support/service-job.ts';
import type { LogPiece, LogSource } from '../api/manager.ts';
import type { CiCapabilities } from '../ci/ci-service.ts';
import { createLogFolder, type LogFile } from '../logs/log-file.ts';
import type { ServiceJob } from '../store/service-jobs.ts';
import { openStore, type Store } from '../store/store.ts';
import { createLogs } from './logs.ts';
import type { Reconciler } from './loop/reconciler.ts';
import { createServiceJobs } from './services/service-jobs.ts';

let dir: Scratch;
let store: Store;
let clock: HandClock;
let live: ServiceJob[];
/** Agents in slots. */
let placed: Set<string>;
let files: Map<string, LogFile>;
let logs: ReturnType<typeof createLogs>;
/** Whether the service's agents keep their own log apart from that of their job. */
let jobOnStdout: boolean;

beforeEach(() => {
  dir = scratch();
  store = openStore(dir.path);
  clock = handClock();
  [live, placed, files, jobOnStdout] = [[], new Set(), new Map(), false];
  const reconciler = {
    ...{ pools: [], slots: [], slot: () => undefined },
    placeOf: (agent: string) => (placed.has(agent) ? 'lab/1' : undefined),
  } as unknown as Reconciler;
  const capabilities = {
    get jobOnStdout() {
      return jobOnStdout;
    },
  } as CiCapabilities;
  const services = [{ name: 'azure', capabilities, serviceJobs: () => live }];
  mkdirSync(join(store.dir, 'logs'));
  logs = createLogs({
    ...{ clock, reconciler, history: store.history, stateDir: store.dir },
    output: { read: (agent, options) => files.get(agent)?.read(options) ?? createLogFolder(join(store.dir, 'logs')).read(agent) },
    queue: { job: () => null, onChange: () => () => {} },
    services,
    serviceJobs: createServiceJobs({
      services,
      table: store.serviceJobs,
      outcomes: { get: () => null },
      reconciler,
      reasonFor: () => null,
      clock,
    }),
  });
});
afterEach(() => {
  store.close();
  dir[Symbol.dispose]();
});

/** An agent that is at work, and whose output goes on until it has ended. */
function works(agent: string, job: string | null): LogFile {
  placed.add(agent);
  store.history.made({ agent, pool: 'lab', slot: 'lab/1', name: 'lab-1', madeAt: 1 });
  if (job !== null) store.history.released(agent, job, 2);
  const file = createLogFolder(join(store.dir, 'logs')).open(agent);
  files.set(agent, file);
  return file;
}
function ends(agent: string): void {
  files.get(agent)?.close();
  files.delete(agent);
  placed.delete(agent);
}
function say(file: LogFile, text: string, stream: 'stdout' | 'stderr' = 'stdout'): void {
  const bytes = Buffer.from(text);
  file.append({ stream, time: 1n, bytes }, bytes);
}

async function textOf(pieces: AsyncIterable<LogPiece>): Promise<string> {
  let text = '';
  for await (const { bytes } of pieces) text += Buffer.from(bytes).toString();
  return text;
}
const signal = () => new AbortController().signal;
const read = (source: LogSource, follow = false) => textOf(logs.read(source, { follow }, signal()));
const own = (source: LogSource) => textOf(logs.own(source, signal()));

async function kept(agent: string): Promise<void> {
  const tar = pack();
  tar.entry({ name: './Agent.log' }, 'Listening for Jobs\n');
  tar.finalize();
  mkdirSync(join(store.dir, 'diag'), { recursive: true });
  writeFileSync(join(store.dir, 'diag', `${agent}.tar`), await buffer(tar));
}

test('a job is followed from its waiting to the end of its agent', async () => {
  live = [serviceJob('azure-7', { state: 'waiting' })];
  const followed = read({ job: 'azure-7' }, true);
  await turn();
  const file = works('a1', 'azure-7');
  live = [serviceJob('azure-7', { agent: 'a1' })];
  clock.advance(1_000);
  say(file, 'Running job: build\n');
  await turn();
  // The service has not heard of the end yet, and nobody waits for that.
  ends('a1');
  expect(await followed).toBe('Running job: build\n');
});

test('a waiting job has no output, and following it ends when it disappears', async () => {
  live = [serviceJob('azure-7', { state: 'waiting' })];
  expect(await read({ job: 'azure-7' })).toBe('');
  const followed = read({ job: 'azure-7' }, true);
  await turn();
  live = [];
  clock.advance(1_000);
  expect(await followed).toBe('');
  await expect(read({ job: 'azure-7' })).rejects.toMatchObject({ code: 'E_JOB_UNKNOWN' });
});

test('the agent that the service names is shown even if history has no job for it', async () => {
  say(works('a1', null), 'Running job: build\n');
  ends('a1');
  store.serviceJobs.save(serviceJob('azure-7', { state: 'done', agent: 'a1', result: 'succeeded' }), 5);
  expect(await read({ job: 'azure-7' })).toBe('Running job: build\n');
});

test('an agent’s own logs, by its job and by itself', async () => {
  works('a1', 'azure-7');
  ends('a1');
  store.serviceJobs.save(serviceJob('azure-7', { state: 'done', agent: 'a1' }), 5);
  await kept('a1');
  expect(await own({ job: 'azure-7' })).toBe('==> Agent.log <==\nListening for Jobs\n');
  expect(await own({ agent: 'a1' })).toBe('==> Agent.log <==\nListening for Jobs\n');
});

test('a running agent’s logs are announced; an ended one without logs is reported', async () => {
  works('a1', 'azure-7');
  await expect(own({ agent: 'a1' })).rejects.toMatchObject({
    code: 'E_LOG_UNKNOWN',
    retry: true,
    message: expect.stringContaining('copied when it ends'),
  });
  ends('a1');
  await expect(own({ agent: 'a1' })).rejects.toMatchObject({ code: 'E_LOG_UNKNOWN', retry: false });
});

test('a job without an agent, and ids that were never given out', async () => {
  live = [serviceJob('azure-7', { state: 'waiting' })];
  await expect(own({ job: 'azure-7' })).rejects.toMatchObject({ code: 'E_LOG_UNKNOWN' });
  await kept('stranger');
  for (const agent of ['stranger', '../diag/stranger', '../../etc/passwd'])
    await expect(own({ agent })).rejects.toMatchObject({ code: 'E_AGENT_UNKNOWN' });
});

test('a job whose agent logs separately is shown alone', async () => {
  jobOnStdout = true;
  const file = works('a1', 'bk-7');
  live = [serviceJob('bk-7', { agent: 'a1' })];
  say(file, '\u001b[38;5;48mINFO \u001b[0mConnecting\r\n', 'stderr');
  const followed = read({ job: 'bk-7' }, true);
  await turn();
  say(file, '\u001b[90m$\u001b[');
  say(file, '0m make\r\n');
  await turn();
  ends('a1');
  store.serviceJobs.save(serviceJob('bk-7', { state: 'done', agent: 'a1' }), 5);
  live = [];
  clock.advance(1_000);
  expect(await followed).toBe('\u001b[90m$\u001b[0m make\r\n');
  expect(await read({ agent: 'a1' })).toBe('\u001b[90m$\u001b[0m make\r\n');
  expect(await own({ job: 'bk-7' })).toBe('INFO Connecting\n');
});

test('the agent’s own words are all there is of a job that never began, and of an agent without one', async () => {
  jobOnStdout = true;
  live = [serviceJob('bk-7', { agent: 'a1' })];
  say(works('a1', 'bk-7'), 'fatal: no route to host\r\n', 'stderr');
  ends('a1');
  expect(await read({ job: 'bk-7' })).toBe('fatal: no route to host\r\n');
  const idle = works('a2', null);
  say(idle, 'Waiting for work\n', 'stderr');
  expect(await read({ agent: 'a2' })).toBe('Waiting for work\n');
  ends('a2');
});

test('gaps of such a job are passed on, and its output is marked as written for a terminal', async () => {
  jobOnStdout = true;
  const file = works('a1', 'bk-7');
  live = [serviceJob('bk-7', { agent: 'a1' })];
  say(file, 'begin\r\n');
  const bytes = Buffer.from('end\r\n');
  file.append({ stream: 'stdout', time: 2n, bytes, missing: 1_000 }, bytes);
  ends('a1');
  const pieces: LogPiece[] = [];
  for await (const piece of logs.read({ job: 'bk-7' }, { follow: false }, signal())) pieces.push(piece);
  expect(pieces.map(({ stream, forTerminal, gap }) => ({ stream, forTerminal, gap }))).toEqual([
    { stream: 'stdout', forTerminal: true, gap: undefined },
    { stream: 'note', forTerminal: undefined, gap: { missing: { stdout: 1_000, stderr: 0 }, after: { stdout: 7, stderr: 0 } } },
    { stream: 'stdout', forTerminal: true, gap: undefined },
  ]);
  store.serviceJobs.save(serviceJob('bk-7', { state: 'done', agent: 'a1' }), 5);
});
