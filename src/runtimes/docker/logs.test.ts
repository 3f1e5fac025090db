/** Following a log while its Engine stops and starts, and while its clock changes. */
import { expect, test } from 'vitest';
import { anOwner } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine, logMessage } from '../../../test/kit/fake-engine.ts';
import { follow } from '../../../test/kit/runtime-contract/contract.ts';
import { engineAway, OnejobError } from '../../base/errors.ts';
import { start } from '../../ports/runtime.ts';
import { Engine } from '../engine/engine.ts';
import { followLogs } from './logs.ts';

const state = (isRunning: boolean) =>
  JSON.stringify({
    Id: 'id',
    Name: '/x',
    Image: 'i',
    State: { Status: isRunning ? 'running' : 'exited', Running: isRunning, ExitCode: 0 },
    Config: {},
  });

test('a follower that starts while the Engine is away waits for it', async () => {
  const Labels: Record<string, string> = { 'onejob.agent': 'a1' };
  await using fake = fakeEngine('away', (path, _, answer) => {
    if (path === '/containers/json') answer.end(JSON.stringify([{ Id: 'id', State: 'exited', Labels }]));
    else if (path.endsWith('/logs')) answer.end(logMessage('stdout', '2026-01-01T00:00:00.000000001Z', 'there\n'));
    else answer.end(state(false));
  });
  const { owner, make } = anOwner(fake.socket);
  Labels['onejob.owner'] = owner;
  const runtime = await make();
  const log = follow(runtime, 'a1');
  // It has failed at least once by the time this one has.
  await expect(runtime.list(new AbortController().signal)).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' });
  await fake.start();
  await log.ended;
  expect(log.text()).toBe('there\n');
  runtime.close();
});

test('it ends if the Engine has no such sandbox, and on request', async () => {
  await using fake = fakeEngine('none', (_path, _request, answer) => answer.end('[]'));
  const runtime = await anOwner(fake.socket).make();
  const stopped = follow(runtime, 'a1');
  stopped.stop();
  await stopped.ended;
  await fake.start();
  const log = follow(runtime, 'a1');
  await log.ended;
  expect(log.chunks).toEqual([]);
  runtime.close();
});

test('it gives up on errors that do not pass', async () => {
  await using fake = fakeEngine('bad', (_path, _request, answer) => answer.writeHead(400).end('{"message":"bad parameter"}'));
  await fake.start();
  const runtime = await anOwner(fake.socket).make();
  await expect(follow(runtime, 'a1').ended).rejects.toMatchObject({ code: 'E_ENGINE_FAILED', retry: false });
  runtime.close();
});

test.each([...engineAway])('it waits while the Engine is away: %s', async (code) => {
  const denied = new OnejobError(code, 'Cannot list containers.');
  const answers = [() => Promise.reject(denied), () => Promise.reject(denied), () => Promise.resolve(null)];
  const engine = new Engine({ kind: 'unix', path: '/nowhere', from: 'test' });
  const find = () => answers.shift()?.() ?? Promise.resolve(null);
  for await (const _ of followLogs(engine, { find }, start, new AbortController().signal)) throw new Error('there was no log');
  expect(answers).toEqual([]);
});

test('a new follower requests all of the log, because the clock may have been set back since', async () => {
  const since: (string | null)[] = [];
  await using fake = fakeEngine('since', (path, request, answer) => {
    if (path.endsWith('/logs')) since.push(new URL(request.url ?? '', 'http://engine').searchParams.get('since'));
    if (path.endsWith('/logs')) {
      answer.write(logMessage('stdout', '2026-01-01T02:00:00.000000001Z', 'kept\n'));
      answer.end(logMessage('stdout', '2026-01-01T01:00:00.000000001Z', 'an hour earlier\n'));
    } else answer.end(state(since.length === 0));
  });
  const engine = await fake.connect();
  const kept = BigInt(Date.parse('2026-01-01T02:00:00Z')) * 1_000_000n + 1n;
  const position = { ...start, time: kept, atTime: 1, stdout: 5 };
  const find = async () => 'id';
  let text = '';
  for await (const chunks of followLogs(engine, { find }, position, new AbortController().signal)) {
    for (const { bytes } of chunks) text += Buffer.from(bytes).toString();
  }
  expect(text).toBe('an hour earlier\n');
  // The first look of a follower, and the last one, which comes after the clock was seen to go back.
  expect(since.map(Number)).toEqual([0, 0]);
});

test('an Engine whose clock was not set back is asked only for new output', async () => {
  const since: (string | null)[] = [];
  await using fake = fakeEngine('forward', (path, request, answer) => {
    if (path.endsWith('/logs')) {
      since.push(new URL(request.url ?? '', 'http://engine').searchParams.get('since'));
      answer.end(logMessage('stdout', '2026-01-01T02:00:00.000000001Z', 'once\n'));
    } else answer.end(state(since.length === 0));
  });
  const engine = await fake.connect();
  let text = '';
  for await (const chunks of followLogs(engine, { find: async () => 'id' }, start, new AbortController().signal)) {
    for (const { bytes } of chunks) text += Buffer.from(bytes).toString();
  }
  expect(text).toBe('once\n');
  expect(since.map(Number)).toEqual([0, Date.parse('2026-01-01T01:59:50Z') / 1000]);
});

test('a log is requested once after the end', async () => {
  let asked = 0;
  await using fake = fakeEngine('ended', (path, _request, answer) => {
    if (path.endsWith('/logs')) {
      asked += 1;
      answer.end(logMessage('stdout', '2026-01-01T02:00:00.000000001Z', 'once\n'));
    } else answer.end(state(false));
  });
  const engine = await fake.connect();
  let text = '';
  for await (const chunks of followLogs(engine, { find: async () => 'id' }, start, new AbortController().signal)) {
    for (const { bytes } of chunks) text += Buffer.from(bytes).toString();
  }
  expect([text, asked]).toEqual(['once\n', 1]);
});

test('a follower sends a new request long before one of the Engine’s files can end, without loss or repeats', async () => {
  const lines = Array.from({ length: 40 }, (_, i) => `line ${i}\n`);
  const stamp = (i: number) => `2026-01-01T02:00:00.${String(i + 1).padStart(9, '0')}Z`;
  let asked = 0;
  await using fake = fakeEngine('anew', (path, _request, answer) => {
    if (!path.endsWith('/logs')) {
      answer.end(state(asked < 4));
      return;
    }
    asked += 1;
    const write = (i: number): void => {
      const line = lines[i];
      if (line === undefined || answer.destroyed) return void answer.end();
      answer.write(logMessage('stdout', stamp(i), line), () => setImmediate(write, i + 1));
    };
    write(0);
  });
  const engine = await fake.connect();
  let text = '';
  const source = { find: async () => 'id', fileSize: 1_000 };
  for await (const chunks of followLogs(engine, source, start, new AbortController().signal)) {
    for (const { bytes } of chunks) text += Buffer.from(bytes).toString();
  }
  expect(text).toBe(lines.join(''));
  expect(asked).toBeGreaterThan(2);
});
