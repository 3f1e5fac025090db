/** Output in several files, the oldest of which are deleted (`supervisor.ts`). */

import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { type LogChunk, type LogPosition, start } from '../../ports/runtime.ts';
import { systemClock } from '../../system/system-clock.ts';
import { followLog } from './logs.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
  for (const name of ['stdout', 'stderr', 'stdout.end', 'stderr.end']) put(name, '');
});
afterEach(() => dir[Symbol.dispose]());

const put = (name: string, text: string): void => writeFileSync(join(dir.path, name), text);
async function read(from: LogPosition = start): Promise<LogChunk[]> {
  const chunks: LogChunk[] = [];
  for await (const some of followLog(systemClock, dir.path, from, () => true, new AbortController().signal)) chunks.push(...some);
  return chunks;
}
const told = (chunks: readonly LogChunk[]) =>
  chunks.map(({ stream, bytes, missing = 0 }) => [stream, missing, Buffer.from(bytes).toString()]);

test('output is read from file to file, from any position', async () => {
  put('stdout', 'one ');
  put('stdout.4', 'two ');
  put('stdout.8', 'three');
  put('stderr', 'oops');
  const whole = 'one two three';
  for (let at = 0; at <= whole.length; at += 1) {
    const chunks = await read({ ...start, stdout: at, stderr: 4 });
    expect(chunks.map(({ bytes }) => Buffer.from(bytes).toString()).join('')).toBe(whole.slice(at));
    expect(chunks.every(({ missing }) => missing === undefined)).toBe(true);
  }
});

test('missing files are counted, and reading continues after them', async () => {
  rmSync(join(dir.path, 'stdout'));
  put('stdout.1000', 'the ');
  put('stdout.1004', 'end');
  expect(told(await read())).toEqual([
    ['stdout', 1_000, 'the '],
    ['stdout', 0, 'end'],
  ]);
  expect(told(await read({ ...start, stdout: 900 }))[0]).toEqual(['stdout', 100, 'the ']);
  expect(told(await read({ ...start, stdout: 1_002 }))[0]).toEqual(['stdout', 0, 'e ']);
});

test('a file that is deleted during the read is read to its end, then the next one', async () => {
  put('stdout', 'a'.repeat(200_000));
  put('stdout.200000', 'b');
  let text = '';
  for await (const some of followLog(systemClock, dir.path, start, () => true, new AbortController().signal)) {
    if (text === '') rmSync(join(dir.path, 'stdout'));
    for (const { bytes, missing } of some) {
      expect(missing).toBe(undefined);
      text += Buffer.from(bytes).toString();
    }
  }
  expect(text).toBe(`${'a'.repeat(200_000)}b`);
});
