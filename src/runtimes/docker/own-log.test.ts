/** A log that conmon writes, and its reader. */
import { appendFileSync, mkdirSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { advance, type LogChunk, type LogPosition, start } from '../../ports/runtime.ts';
import { followOwnLog, makeOwnLog } from './own-log.ts';

const now = Date.parse('2026-11-29T22:00:00Z');
const at = (nanoseconds: string, rest: string, day = '2026-11-29T21:55:19') => `${day}.${nanoseconds}+00:00 ${rest}\n`;
const ns = (text: string) => BigInt(Date.parse(`${text.slice(0, 19)}Z`)) * 1_000_000n + BigInt(text.slice(20));

async function logOf(written = '') {
  const dir = scratch();
  onTestFinished(() => dir[Symbol.dispose]());
  const folder = join(dir.path, 'a1');
  mkdirSync(folder);
  await makeOwnLog(folder);
  const write = (text: string) => appendFileSync(join(folder, 'log'), text);
  write(written);
  const over = new AbortController();
  const read = (from: LogPosition = start, signal = new AbortController().signal) =>
    followOwnLog({ ...handClock(), wall: () => now }, folder, from, over.signal, signal);
  return { folder, over, read, write };
}

async function all(chunks: AsyncIterable<LogChunk[]>) {
  const out: LogChunk[] = [];
  for await (const some of chunks) out.push(...some);
  const text = (stream: string) => Buffer.concat(out.filter((one) => one.stream === stream).map(({ bytes }) => bytes)).toString();
  return { chunks: out, stdout: text('stdout'), stderr: text('stderr') };
}

test('lines are joined as the job wrote them, also the last one without an end', async () => {
  const { over, read } = await logOf(
    at('1'.padStart(9, '0'), 'stdout P no newline') +
      at('000000002', 'stdout F  end') +
      at('000000002', 'stdout F ') +
      at('000000003', 'stderr P x') +
      at('000000003', 'stdout P last'),
  );
  over.abort();
  const { chunks, stdout, stderr } = await all(read());
  expect([stdout, stderr]).toEqual(['no newline end\n\nlast', 'x']);
  expect(chunks.map(({ stream, time }) => [stream, time - ns('2026-11-29T21:55:19.000000000')])).toEqual([
    ['stdout', 2n],
    ['stderr', 3n],
    ['stdout', 3n],
  ]);
});

test('output is seen when it is written, and all that was written before the end', async () => {
  const { over, read, write } = await logOf();
  const reading = read();
  const first = reading.next();
  write(at('000000001', 'stdout F one'));
  expect((await first).value?.map(({ bytes }) => Buffer.from(bytes).toString())).toEqual(['one\n']);
  const rest = all(reading);
  write(at('000000002', 'stdout F two'));
  over.abort();
  expect((await rest).stdout).toBe('two\n');
});

test('it continues from any position without a gap or a repeat', async () => {
  const { over, read } = await logOf(
    at('000000001', 'stdout F first') + at('000000001', 'stderr F second') + at('000000002', 'stdout F third'),
  );
  over.abort();
  const { chunks } = await all(read());
  let position = start;
  for (const [n, chunk] of chunks.entries()) {
    position = advance(position, chunk);
    expect((await all(read(position))).chunks).toEqual(chunks.slice(n + 1));
  }
  const { stdout } = await all(read({ ...start, stdout: 3 }));
  expect(stdout).toBe('st\nthird\n');
});

test.each([
  ['no line of conmon', 'hello\n'],
  ['a stream that does not exist', at('000000001', 'stdin F x')],
  ['more than a line has', `${'x'.repeat(300_000)}\n`],
  ['no time', at('000000001', 'stdout F x', '2026-99-99T99:99:99')],
  ['a time to come', at('000000001', 'stdout F x', '9999-01-01T00:00:00')],
])('%s in it changes nothing but what the job itself is seen to say', async (_, line) => {
  const { over, read } = await logOf(at('000000001', 'stdout F one') + line + at('000000002', 'stdout F two'));
  over.abort();
  const { chunks, stdout } = await all(read());
  expect(stdout.replace('x\n', '')).toBe('one\ntwo\n');
  expect(chunks.at(-1)?.time).toBe(ns('2026-11-29T21:55:19.000000002'));
});

test('a job that cuts its own log off ends nothing', async () => {
  const { folder, over, read, write } = await logOf(at('000000001', 'stdout F one'));
  const reading = read();
  await reading.next();
  truncateSync(join(folder, 'log'), 0);
  write(at('000000002', 'stdout F 2'));
  over.abort();
  expect((await all(reading)).stdout).toBe('');
});

/** Somewhat more than is kept. */
const longOutput = at('000000001', `stdout F ${'x'.repeat(8_000)}`).repeat(8_400);

test('a long file is emptied once it was read, and the output continues without a gap or a repeat, also for the next reader', async () => {
  const { folder, over, read, write } = await logOf(longOutput);
  const path = join(folder, 'log');
  const reading = read();
  let position = start;
  const until = async (bytes: number) => {
    while (position.stdout < bytes) for (const chunk of (await reading.next()).value ?? []) position = advance(position, chunk);
  };
  await until(8_400 * 8_001);
  const next = reading.next();
  await expect.poll(() => statSync(path).size, { timeout: 10_000 }).toBe(0);
  write(at('000000002', 'stdout F two'));
  expect((await next).value?.map(({ bytes, gap }) => [Buffer.from(bytes).toString(), gap])).toEqual([['two\n', undefined]]);
  over.abort();
  expect((await all(read(position))).stdout).toBe('two\n');
  position = { ...position, stdout: position.stdout + 2 };
  expect((await all(read(position))).stdout).toBe('o\n');
  // Of a reader that knows less, something is missing.
  expect((await all(read())).chunks).toMatchObject([{ gap: true }]);
});

test('a manager that was killed before it emptied the file has lost nothing', async () => {
  const { folder, over, read } = await logOf(longOutput + at('000000002', 'stdout F two'));
  const { size } = statSync(join(folder, 'log'));
  writeFileSync(join(folder, 'log.emptied'), JSON.stringify({ stdout: 8_400 * 8_001, stderr: 0, size }));
  over.abort();
  expect((await all(read({ ...start, stdout: 8_400 * 8_001 }))).stdout).toBe('two\n');
});

test('a job that makes its log huge keeps nobody busy with it', async () => {
  const { folder, over, read, write } = await logOf(at('000000001', 'stdout F one'));
  const path = join(folder, 'log');
  const reading = read();
  await reading.next();
  truncateSync(path, 2 ** 40);
  const next = reading.next();
  await expect.poll(() => statSync(path).size, { timeout: 10_000 }).toBe(0);
  write(at('000000002', 'stdout F two'));
  expect((await next).value).toMatchObject([{ gap: true }]);
  over.abort();
  expect((await all(reading)).stdout).toBe('');
});

test('a sandbox that is gone has no output', async () => {
  const { folder, read } = await logOf();
  rmSync(join(folder, 'log'));
  expect((await all(read())).chunks).toEqual([]);
});
