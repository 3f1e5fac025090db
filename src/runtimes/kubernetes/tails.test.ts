/** Logs on bad days: answers that end or are cut, output that is gone, and an API that does not answer. */
import { expect, test } from 'vitest';
import { fakeKubernetes, podOf, toldClock } from '../../../test/kit/fake-kubernetes.ts';
import type { Exit } from '../../core/slot.ts';
import { advance, type LogPosition, start } from '../../ports/runtime.ts';
import { KubeClient } from './client.ts';
import { followLog } from './logs.ts';

const agent = 'a1b2c3';
const name = `oj-${agent}`;
const stamp = (n: number): string => new Date(Date.UTC(2026, 10, 29, 10) + n * 300).toISOString().replace('Z', '000000Z');
const end = `\u001eonejob exited ${agent} 7\n`;

async function following(from: LogPosition = start) {
  const api = await fakeKubernetes();
  api.put(podOf(agent));
  const clock = toldClock();
  const client = new KubeClient(api.access, clock);
  const stop = new AbortController();
  const it: { hasEnded: boolean | null; exit: Exit | null; gaps: number; text: string; position: LogPosition } = {
    hasEnded: false,
    exit: null,
    gaps: 0,
    text: '',
    position: from,
  };
  const ended = (exit: Exit): void => {
    it.exit = exit;
  };
  const change = () => ({ next: () => new Promise<void>(() => {}), [Symbol.dispose]: () => {} });
  const source = { client, clock, agent, hasEnded: () => it.hasEnded, ended, isReleased: () => true, change };
  const read = async (): Promise<void> => {
    for await (const chunks of followLog(source, from, stop.signal))
      for (const chunk of chunks) {
        it.text += Buffer.from(chunk.bytes).toString();
        it.gaps += chunk.gap === true ? 1 : 0;
        it.position = advance(it.position, chunk);
      }
  };
  return {
    api,
    clock,
    it,
    /** Resolves at its end. */
    read,
    reads: (text: string) => expect.poll(() => it.text, { interval: 1 }).toBe(text),
    async [Symbol.asyncDispose]() {
      stop.abort();
      client.close();
      await api[Symbol.asyncDispose]();
    },
  };
}

test('an answer that ends although the job runs: what comes again is not told again', async () => {
  await using here = await following();
  const ended = here.read();
  await here.api.called('follow');
  for (let n = 0; n < 9; n += 1) here.api.write(name, stamp(n), `line ${n}\n`);
  const first = Array.from({ length: 9 }, (_, n) => `line ${n}\n`).join('');
  await here.reads(first);
  here.api.endLogs(name);
  await here.clock.pass(50);
  const { url } = await here.api.called('follow', 2);
  expect(url.searchParams.get('sinceTime')).toMatch(/\.000Z$/);
  here.api.write(name, stamp(9), `line 9\n`);
  here.api.write(name, stamp(10), end);
  await ended;
  expect(here.it).toMatchObject({ text: `${first}line 9\n`, gaps: 0, exit: { kind: 'code', code: 7 } });
});

test('an answer that is cut in the middle of a line', async () => {
  await using here = await following();
  const ended = here.read();
  await here.api.called('follow');
  here.api.write(name, stamp(1), 'whole\n');
  await here.reads('whole\n');
  here.api.cutLogs(name, `${stamp(2)} ha`);
  await here.clock.pass(50);
  await here.api.called('follow', 2);
  here.api.write(name, stamp(2), 'half\n');
  here.api.write(name, stamp(3), end);
  await ended;
  expect(here.it).toMatchObject({ text: 'whole\nhalf\n', gaps: 0 });
});

test('output that its node threw away before it was read is a gap', async () => {
  await using here = await following();
  const ended = here.read();
  await here.api.called('follow');
  here.api.write(name, stamp(1), 'before\n');
  await here.reads('before\n');
  here.api.endLogs(name);
  here.api.rotate(name);
  here.api.write(name, stamp(60), 'after\n');
  here.api.write(name, stamp(61), end);
  await here.clock.pass(50);
  await ended;
  expect(here.it).toMatchObject({ text: 'before\nafter\n', gaps: 1 });
});

test('a new reader continues where another was, among lines of the same time', async () => {
  await using here = await following({ ...start, time: BigInt(Date.parse(stamp(1))) * 1_000_000n, atTime: 2 });
  for (const text of ['one\n', 'two\n', 'three\n']) here.api.write(name, stamp(1), text);
  here.api.write(name, stamp(2), end);
  await here.read();
  expect(here.it).toMatchObject({ text: 'three\n', gaps: 0 });
});

test('no log before the container runs, and none after its pod is gone', async () => {
  await using here = await following();
  here.api.put(podOf(agent, 'pending'));
  const ended = here.read();
  await here.clock.pass(50);
  await here.api.called('follow', 2);
  here.api.put(podOf(agent));
  here.api.write(name, stamp(1), 'begun\n');
  await here.clock.pass(100);
  await here.reads('begun\n');
  here.it.hasEnded = true;
  here.api.remove(name);
  here.api.endLogs(name);
  await ended;
  expect(here.it).toMatchObject({ text: 'begun\n', exit: null });
});

test('a last line without an end, of a job that was killed', async () => {
  await using here = await following();
  here.api.write(name, stamp(1), 'one\n');
  here.api.write(name, stamp(2), 'tw');
  here.api.put(podOf(agent, { terminated: { exitCode: 137 } }));
  here.it.hasEnded = true;
  await here.read();
  expect(here.it).toMatchObject({ text: 'one\ntw', exit: null });
});

test.each(['cut', { status: 500, message: 'dial tcp 10.0.0.7:10250: connect: connection refused' }] as const)(
  'the last words of a job are not lost because one call fails: %j',
  async (way) => {
    await using here = await following();
    const ended = here.read();
    await here.api.called('follow');
    here.api.write(name, stamp(1), 'one\n');
    await here.reads('one\n');
    here.it.hasEnded = true;
    here.api.answer('follow', way);
    here.api.put(podOf(agent, { terminated: { exitCode: 137 } }));
    here.api.endLogs(name);
    here.api.write(name, stamp(2), 'last words\n');
    await here.api.called('follow', 2);
    await here.clock.pass(50);
    await ended;
    expect(here.it.text).toBe('one\nlast words\n');
  },
);

test('an API that does not answer, and one that refuses for a while', async () => {
  await using here = await following();
  here.api.answer('follow', 'silent', { status: 401, message: 'Unauthorized' }, { status: 403, message: 'no' }, { status: 429 });
  here.api.write(name, stamp(1), 'one\n');
  here.api.write(name, stamp(2), end);
  const ended = here.read();
  await here.api.called('follow');
  await here.clock.pass(30_000);
  for (const pause of [50, 100, 200, 400]) await here.clock.pass(pause);
  await ended;
  expect(here.it.text).toBe('one\n');
});

test('a log that can never be had is an error', async () => {
  await using here = await following();
  here.api.answer('follow', { status: 405, message: 'the server does not allow this method' });
  await expect(here.read()).rejects.toThrow(
    `Cannot read the log of agent ${agent}: the Kubernetes API at ${here.api.access.server.origin} (from test) answered 405: the server does not allow this method.`,
  );
});
