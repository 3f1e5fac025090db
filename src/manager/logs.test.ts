/** Logs of jobs at a CI service: who ran them, and what those agents logged themselves. */

import { mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { setImmediate as turn } from 'node:timers/promises';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type HandClock, handClock } from '../../test/kit/core.ts';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { serviceJob } from '../../test/support/service-job.ts';
import type { LogPiece, LogSource } from '../contract/manager.ts';
import { createLogFolder, type LogFile } from '../logs/log-file.ts';
import type { CiCapabilities } from '../ports/ci-service.ts';
import type { ServiceJob } from '../ports/service-job.ts';
import { openStore, type Store } from '../store/store.ts';
import { Logs } from './logs.ts';
import type { Reconciler } from './loop/reconciler.ts';
import { createServiceJobs } from './services/service-jobs.ts';

const dir = eachScratch();
let store: Store;
let clock: HandClock;
let live: ServiceJob[];
/** Agents in slots. */
let placed: Set<string>;
let files: Map<string, LogFile>;
let logs: Logs;
/** Whether the service's agents keep their own log apart from that of their job. */
let jobOnStdout: boolean;
/** What happens once the agent in a slot was looked up, or once an agent's output was read for the first time. */
let [afterLookUp, afterRead] = [() => {}, () => {}];

beforeEach(() => {
  store = openStore(dir.path);
  clock = handClock();
  [live, placed, files, jobOnStdout] = [[], new Set(), new Map(), false];
  [afterLookUp, afterRead] = [() => {}, () => {}];
  const reconciler = {
    pools: [],
    slots: [],
    slot: () => undefined,
    placeOf: (agent: string) => (placed.has(agent) ? 'lab/1' : undefined),
  } as unknown as Reconciler;
  const capabilities = {
    get jobOnStdout() {
      return jobOnStdout;
    },
  } as CiCapabilities;
  const services = [{ name: 'azure', capabilities, serviceJobs: () => live }];
  mkdirSync(join(store.dir, 'logs'));
  const { history } = store;
  logs = new Logs({
    clock,
    reconciler,
    stateDir: store.dir,
    history: {
      get: (agent) => history.get(agent),
      ofJob: (...asked) => history.ofJob(...asked),
      ofSlot(...asked) {
        const found = history.ofSlot(...asked);
        afterLookUp();
        return found;
      },
    },
    output: {
      async *read(agent, options) {
        yield* files.get(agent)?.read(options) ?? createLogFolder(join(store.dir, 'logs')).read(agent);
        afterRead();
      },
    },
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
afterEach(() => store.close());

/** An agent that is at work, and whose output continues until it has ended. */
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

async function textOf(pieces: AsyncIterable<LogPiece>, heard = (_: string): void => {}): Promise<string> {
  let text = '';
  for await (const { bytes } of pieces) {
    text += Buffer.from(bytes).toString();
    heard(text);
  }
  return text;
}
const signal = () => new AbortController().signal;
const read = (source: LogSource, follow = false) => textOf(logs.read(source, { follow }, signal()));
const own = (source: LogSource) => textOf(logs.own(source, {}, signal()));
const lastRead = (source: LogSource, tail: number) => textOf(logs.read(source, { follow: false, tail }, signal()));
const lastOwn = (source: LogSource, tail: number) => textOf(logs.own(source, { tail }, signal()));

/** Follows from the last lines on; resolves once `words` were shown. */
async function followed(source: LogSource, tail: number, words: string): Promise<{ text: Promise<string> }> {
  const heard = Promise.withResolvers<void>();
  const text = textOf(logs.read(source, { follow: true, tail }, signal()), (so) => {
    if (so.includes(words)) heard.resolve();
  });
  await Promise.race([heard.promise, text]);
  return { text };
}

async function kept(agent: string, text = 'Listening for Jobs\n'): Promise<void> {
  const tar = pack();
  tar.entry({ name: './Agent.log' }, text);
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

describe('the last lines', () => {
  test('of a job that has printed nothing yet are the agent’s words, and then comes the whole job', async () => {
    jobOnStdout = true;
    const file = works('a1', 'bk-7');
    live = [serviceJob('bk-7', { agent: 'a1' })];
    say(file, 'one\ntwo\nthree\n', 'stderr');
    const { text } = await followed({ job: 'bk-7' }, 1, 'three');
    say(file, '$ make\n');
    say(file, 'more words\n', 'stderr');
    file.note('some output is missing here');
    say(file, 'made\n');
    ends('a1');
    store.serviceJobs.save(serviceJob('bk-7', { state: 'done', agent: 'a1' }), 5);
    expect(await text).toBe('three\n$ make\nsome output is missing here\nmade\n');
  });

  test('of a job that never begins are the agent’s words, each once', async () => {
    jobOnStdout = true;
    const file = works('a1', 'bk-7');
    live = [serviceJob('bk-7', { agent: 'a1' })];
    file.note('some output is missing here');
    say(file, 'one\ntwo\n', 'stderr');
    expect(await lastRead({ job: 'bk-7' }, 9)).toBe('some output is missing here\none\ntwo\n');
    const { text } = await followed({ job: 'bk-7' }, 1, 'two');
    say(file, 'three\n', 'stderr');
    ends('a1');
    store.serviceJobs.save(serviceJob('bk-7', { state: 'done', agent: 'a1' }), 5);
    expect(await text).toBe('two\nthree\n');
    expect(await read({ job: 'bk-7' }, true)).toBe('some output is missing here\none\ntwo\nthree\n');
  });

  test('of an agent that gets a job while they are looked for', async () => {
    jobOnStdout = true;
    const file = works('a1', null);
    say(file, 'one\ntwo\n', 'stderr');
    afterRead = () => {
      afterRead = () => {};
      store.history.released('a1', 'bk-7', 2);
      live = [serviceJob('bk-7', { agent: 'a1' })];
      say(file, '$ make\n');
      ends('a1');
    };
    expect(await (await followed({ agent: 'a1' }, 1, 'make')).text).toBe('two\n$ make\n');
  });

  test('of the agent in a slot are of one agent, even if it is replaced meanwhile', async () => {
    say(works('a1', null), 'one\ntwo\n');
    ends('a1');
    await kept('a1', 'listening\nstopped\n');
    await kept('a2', 'listening\nworking\nfailed\n');
    const slot = { slot: 'lab/1', previous: false };
    afterLookUp = () => {
      afterLookUp = () => {};
      say(works('a2', null), 'three\nfour\nfive\n');
      ends('a2');
    };
    expect([await lastRead(slot, 1), await lastRead(slot, 1)]).toEqual(['two\n', 'five\n']);
    afterLookUp = () => {
      afterLookUp = () => {};
      works('a3', null);
      ends('a3');
    };
    expect(await lastOwn(slot, 1)).toBe('failed\n');
  });

  test('of an agent’s own words are whole, and are not mixed with its logs that are copied meanwhile', async () => {
    jobOnStdout = true;
    live = [serviceJob('bk-7', { agent: 'a1' })];
    say(works('a1', 'bk-7'), 'one\ntwo\nthree\n', 'stderr');
    expect(await lastOwn({ job: 'bk-7' }, 2)).toBe('two\nthree\n');
    await kept('a2', 'listening\nworking\n');
    afterRead = () => {
      afterRead = () => {};
      renameSync(join(store.dir, 'diag', 'a2.tar'), join(store.dir, 'diag', 'a1.tar'));
    };
    expect(await lastOwn({ job: 'bk-7' }, 2)).toBe('two\nthree\n');
    ends('a1');
  });
});
