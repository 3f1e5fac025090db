/** The files of the Engine's driver `local`, written by hand: cases that the contract suite cannot produce with an Engine. */

import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { advance, type LogChunk, type LogPosition, start } from '../../ports/runtime.ts';
import { systemClock } from '../../system/system-clock.ts';
import { EntryReader, endLine, followFiles } from './log-files.ts';

let dir: Scratch;
let folder: string;
let time = 1_700_000_000_000_000_000n;
beforeEach(() => {
  dir = scratch();
  folder = join(dir.path, 'local-logs');
  mkdirSync(folder);
});
afterEach(() => dir[Symbol.dispose]());

function varint(value: bigint): number[] {
  return value < 128n ? [Number(value)] : [Number(value & 127n) | 128, ...varint(value >> 7n)];
}
const field = (tag: number, bytes: Uint8Array | string) => {
  const body = Buffer.from(bytes as string);
  return Buffer.concat([Buffer.from([tag, ...varint(BigInt(body.length))]), body]);
};
function entry(line: string, { stream = 'stdout', partial }: { stream?: string; partial?: 'continues' | 'last' } = {}): Buffer {
  time += 1n;
  const metadata =
    partial === 'last' ? field(0x2a, Buffer.concat([Buffer.from([8, 1]), field(0x12, 'id')])) : field(0x2a, field(0x12, 'id'));
  const body = Buffer.concat([
    field(0x0a, stream),
    Buffer.from([0x10, ...varint(time)]),
    field(0x1a, line),
    ...(partial === undefined ? [] : [Buffer.from([0x20, 1]), metadata]),
  ]);
  const size = Buffer.alloc(4);
  size.writeUInt32BE(body.length);
  return Buffer.concat([size, body, size]);
}

const log = () => join(folder, 'container.log');
const write = (...lines: string[]): void => appendFileSync(log(), Buffer.concat(lines.map((line) => entry(line))));
/** As the driver does: of `files` files the oldest goes. */
function rotate(files: number): void {
  rmSync(`${log()}.${files - 1}`, { force: true });
  for (let number = files - 1; number > 0; number -= 1) {
    try {
      renameSync(number === 1 ? log() : `${log()}.${number - 1}`, `${log()}.${number}`);
    } catch {
      // Not so many yet.
    }
  }
  writeFileSync(log(), '');
}
const follow = (from: LogPosition = start, ended = Promise.resolve()) =>
  followFiles(systemClock, folder, from, ended, new AbortController().signal);
const said = (chunks: readonly LogChunk[]): string =>
  chunks.map(({ bytes, gap }) => `${gap ? '[gap]' : ''}${Buffer.from(bytes)}`).join('');
async function all(from?: LogPosition): Promise<LogChunk[]> {
  const chunks: LogChunk[] = [];
  for await (const some of follow(from)) chunks.push(...some);
  return chunks;
}

test('entries are read wherever they are cut: streams, times, long lines and their newline', () => {
  time = 1_700_000_000_000_000_000n;
  const bytes = Buffer.concat([
    entry('one'),
    entry('oops', { stream: 'stderr' }),
    entry('', {}),
    entry('long ', { partial: 'continues' }),
    entry('line', { partial: 'last' }),
    entry('no end', { partial: 'continues' }),
  ]);
  for (let size = 1; size <= bytes.length; size += 1) {
    const reader = new EntryReader();
    const frames = [];
    for (let at = 0; at < bytes.length; at += size) frames.push(...reader.push(Buffer.from(bytes.subarray(at, at + size))));
    expect(frames.map(({ stream, time, bytes }) => [stream, Number(time - 1_700_000_000_000_000_000n), bytes.toString()])).toEqual([
      ['stdout', 1, 'one\n'],
      ['stderr', 2, 'oops\n'],
      ['stdout', 3, '\n'],
      ['stdout', 4, 'long '],
      ['stdout', 5, 'line\n'],
      ['stdout', 6, 'no end'],
    ]);
  }
});

test('a line gets its newline in place, and the bytes before and after it stay', () => {
  const buffer = Buffer.from('...line|...');
  const line = endLine(buffer, 3, 7);
  expect(line.toString()).toBe('line\n');
  expect(line.buffer).toBe(buffer.buffer);
  expect(buffer.toString()).toBe('...line\n...');
});

test('newlines reach no other entry: what was read stays as it was while more of the same block is read', () => {
  const line = fc.record({
    text: fc.string({ maxLength: 40 }),
    partial: fc.constantFrom(undefined, 'continues', 'last'),
  });
  fc.assert(
    fc.property(fc.array(line, { minLength: 1, maxLength: 6 }), fc.integer({ min: 1, max: 200 }), (lines, cut) => {
      const bytes = Buffer.concat(lines.map(({ text, partial }) => entry(text, { ...(partial !== undefined && { partial }) })));
      const reader = new EntryReader();
      const frames = [...reader.push(bytes.subarray(0, cut)), ...reader.push(bytes.subarray(cut))];
      const whole = lines.map(({ text, partial }) => (partial === 'continues' ? text : `${text}\n`));
      expect(frames.map((frame) => frame.bytes.toString())).toEqual(whole);
    }),
  );
});

test.each([
  ['an invalid length', Buffer.from('onejob: not a log at all')],
  ['an entry whose end does not fit', Buffer.concat([entry('x').subarray(0, -1), Buffer.from([9, 9, 9, 9, 9])])],
])('%s is refused', (_, bytes) => {
  expect(() => new EntryReader().push(bytes)).toThrow();
});

test('it is read across all files, from any position, without a gap', async () => {
  for (let file = 0; file < 4; file += 1) {
    if (file > 0) rotate(4);
    write(`${file}a`, `${file}b`, `${file}c`);
  }
  const chunks = await all();
  const whole = '0a\n0b\n0c\n1a\n1b\n1c\n2a\n2b\n2c\n3a\n3b\n3c\n';
  expect(said(chunks)).toBe(whole);
  let position = start;
  for (let kept = 0; kept <= chunks.length; kept += 1) {
    expect(said([...chunks.slice(0, kept), ...(await all(position))])).toBe(whole);
    const next = chunks[kept];
    if (next !== undefined) position = advance(position, next);
  }
});

test('a reader that looks once per file loses nothing, whatever is deleted behind it', async () => {
  const ended = Promise.withResolvers<void>();
  write('0');
  const reader = follow(start, ended.promise);
  let text = '';
  for (let file = 1; file <= 8; file += 1) {
    const { value } = await reader.next();
    text += said(value ?? []);
    rotate(2);
    write(String(file));
  }
  ended.resolve();
  for await (const some of reader) text += said(some);
  expect(text).toBe('0\n1\n2\n3\n4\n5\n6\n7\n8\n');
});

test('a late reader reports the gap, and continues with what is left', async () => {
  const ended = Promise.withResolvers<void>();
  write('0');
  const reader = follow(start, ended.promise);
  let text = said((await reader.next()).value ?? []);
  for (let file = 1; file <= 5; file += 1) {
    rotate(2);
    write(String(file));
  }
  ended.resolve();
  for await (const some of reader) text += said(some);
  expect(text).toBe('0\n[gap]4\n5\n');
});

test('everything before the end is read, including a file that was begun since the last look', async () => {
  const ended = Promise.withResolvers<void>();
  write('0');
  const reader = follow(start, ended.promise);
  let text = said((await reader.next()).value ?? []);
  const rest = reader.next();
  write('1');
  rotate(4);
  write('2');
  ended.resolve();
  text += said((await rest).value ?? []);
  for await (const some of reader) text += said(some);
  expect(text).toBe('0\n1\n2\n');
});

const deletedOpen = (): number =>
  readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).startsWith(folder) && readlinkSync(`/proc/self/fd/${fd}`).endsWith('(deleted)');
    } catch {
      return false;
    }
  }).length;

test('a reader that is slower than its job keeps few deleted files, and counts what it leaves out to the byte', async () => {
  const ended = Promise.withResolvers<void>();
  const long = (file: number) => Array.from({ length: 4_000 }, (_, line) => `${file} ${line} ${'x'.repeat(300)}`);
  const sizeOf = (file: number): number => long(file).join('\n').length + 1;
  write(...long(0));
  let total = sizeOf(0);
  const three = 3 * statSync(log()).size;
  const reader = followFiles(systemClock, folder, start, ended.promise, new AbortController().signal, three);
  const chunks: LogChunk[] = [];
  let most = 0;
  for (let file = 1; file <= 24; file += 1) {
    chunks.push(...((await reader.next()).value ?? []));
    rotate(2);
    write(...long(file));
    total += sizeOf(file);
    most = Math.max(most, deletedOpen());
  }
  ended.resolve();
  for await (const some of reader) chunks.push(...some);
  // The one that is read, three that wait, and what is only counted since the last look.
  expect(most).toBeLessThanOrEqual(6);
  expect(chunks.some(({ missing = 0 }) => missing > 0)).toBe(true);
  expect(chunks.reduce(advance, start)).toMatchObject({ stdout: total, holes: 0 });
  expect(said(chunks).endsWith(`${long(24).join('\n')}\n`)).toBe(true);
});

/** One rotation of `files` files as the driver does it (moby, daemon/logger/loggerutils/logfile.go), a step at a time. */
function rotationSteps(files: number): (() => void)[] {
  const from = (number: number) => (number === 0 ? log() : `${log()}.${number}`);
  const move = (number: number) => () => {
    if (existsSync(from(number))) renameSync(from(number), from(number + 1));
  };
  const moves = Array.from({ length: files - 1 }, (_, at) => move(files - 2 - at));
  return [() => rmSync(from(files - 1), { force: true }), ...moves, () => writeFileSync(log(), '')];
}

test.each([2, 3, 4, 5])(
  'a reader that looks in the middle of a rotation of %i files loses nothing that is there',
  async (files) => {
    for (let stop = 0; stop <= files + 1; stop += 1) {
      rmSync(folder, { recursive: true });
      mkdirSync(folder);
      const ended = Promise.withResolvers<void>();
      write('0');
      const reader = follow(start, ended.promise);
      const chunks = [...((await reader.next()).value ?? [])];
      // The reader sees nothing until all files but the one that it has open are new to it.
      for (let file = 1; file < files; file += 1) {
        rotate(files);
        write(String(file));
      }
      const steps = rotationSteps(files);
      for (const step of steps.slice(0, stop)) step();
      // Without a newest file a reader waits.
      if (existsSync(log())) chunks.push(...((await reader.next()).value ?? []));
      for (const step of steps.slice(stop)) step();
      write('last');
      ended.resolve();
      for await (const some of reader) chunks.push(...some);
      const whole = Array.from({ length: files }, (_, file) => `${file}\n`).join('');
      expect([stop, said(chunks).replace('[gap]', '')]).toEqual([stop, `${whole}last\n`]);
    }
  },
);

test('kept and counted bytes add up to what was written, whatever is rotated while the reader rests', async () => {
  const action = fc.constantFrom('write', 'write', 'step', 'step', 'step', 'read', 'read');
  await fc.assert(
    fc.asyncProperty(fc.array(action, { maxLength: 80 }), fc.integer({ min: 2, max: 4 }), async (actions, files) => {
      rmSync(folder, { recursive: true });
      mkdirSync(folder);
      const ended = Promise.withResolvers<void>();
      let [total, line] = [0, 0];
      const add = (): void => {
        line += 1;
        const text = `${line} ${'x'.repeat(line % 50)}`;
        write(text);
        total += text.length + 1;
      };
      add();
      const reader = followFiles(systemClock, folder, start, ended.promise, new AbortController().signal, 200);
      const chunks: LogChunk[] = [...((await reader.next()).value ?? [])];
      let asked: ReturnType<typeof reader.next> | null = null;
      let steps: (() => void)[] = [];
      const finish = (): void => {
        for (const step of steps.splice(0)) step();
      };
      for (const one of actions) {
        // The driver writes only between rotations, and rotates only what was written to.
        if (one === 'write' && steps.length === 0) add();
        else if (one === 'step') {
          if (steps.length === 0) steps = rotationSteps(files);
          steps.shift()?.();
        } else if (one === 'read') {
          asked ??= reader.next();
          const answer = await Promise.race([asked, new Promise<null>((resolve) => setImmediate(resolve, null))]);
          if (answer !== null) {
            asked = null;
            chunks.push(...(answer.value ?? []));
          }
        }
      }
      finish();
      add();
      ended.resolve();
      if (asked !== null) chunks.push(...((await asked).value ?? []));
      for await (const some of reader) chunks.push(...some);
      const { stdout, holes } = chunks.reduce(advance, start);
      if (holes === 0) expect(stdout).toBe(total);
      else expect(stdout).toBeLessThanOrEqual(total);
    }),
    // Two rotations while one look opens the files.
    { numRuns: 60, examples: [[['step', 'step', 'step', 'step', 'read', 'step', 'step', 'write', 'step'], 2]] },
  );
});
