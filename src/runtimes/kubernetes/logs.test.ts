import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Exit } from '../../core/slot.ts';
import { LineReader } from './logs.ts';

const agent = 'a1b2c3';
const stamp = (n: number): string => `2026-11-29T10:00:0${n}.00000000${n}Z`;
const at = (n: number): bigint => BigInt(Date.parse(`2026-11-29T10:00:0${n}Z`)) * 1_000_000n + BigInt(n);
const end = (rest: string): string => `\u001eonejob exited ${agent} ${rest}\n`;

/** What is read of an answer that comes in pieces of this many bytes. */
function read(text: string, size = Number.POSITIVE_INFINITY) {
  const reader = new LineReader(agent);
  const bytes = Buffer.from(text, 'latin1');
  const frames: { readonly time: bigint; readonly text: string }[] = [];
  for (let from = 0; from < bytes.length; from += size)
    for (const frame of reader.push(bytes.subarray(from, from + size)))
      frames.push({ time: frame.time, text: frame.bytes.toString('latin1') });
  return { frames, exit: reader.exit, rest: reader.rest().map(({ bytes: left }) => left.toString('latin1')) };
}

test('each line has its time', () => {
  const { frames, exit } = read(`${stamp(1)} one\n${stamp(2)} \n${stamp(3)} three \n`);
  expect(frames).toEqual([
    { time: at(1), text: 'one\n' },
    { time: at(2), text: '\n' },
    { time: at(3), text: 'three \n' },
  ]);
  expect(exit).toBe(null);
});

test.each<[string, string, string[], Exit]>([
  ['on a line of its own', end('7'), [], { kind: 'code', code: 7 }],
  ['behind a last line of the job without an end', `last words${end('0')}`, ['last words'], { kind: 'code', code: 0 }],
  ['out of memory', end('137 oom'), [], { kind: 'oom' }],
])('the end of the job, %s', (_, line, texts, exit) => {
  const said = read(`${stamp(1)} ${line}${stamp(2)} after\n`);
  expect(said.frames.map(({ text }) => text)).toEqual(texts);
  expect(said.exit).toEqual(exit);
});

test.each([`\u001eonejob exited a9 0\n`, `\u001eonejob exited ${agent} x\n`, `onejob exited ${agent} 0\n`])(
  'what is not the end: %j',
  (line) => {
    const said = read(`${stamp(1)} ${line}`);
    expect(said.frames.map(({ text }) => text)).toEqual([line]);
    expect(said.exit).toBe(null);
  },
);

test('a long line is several frames of one time', () => {
  const { frames } = read(`${stamp(1)} ${'x'.repeat(40_000)}\n${stamp(2)} y\n`);
  expect(frames.map(({ time, text }) => [time, text.length])).toEqual([
    [at(1), 16_384],
    [at(1), 16_384],
    [at(1), 7_233],
    [at(2), 2],
  ]);
});

test('a line that was cut off is kept back', () => {
  const said = read(`${stamp(1)} one\n${stamp(2)} tw`);
  expect([said.frames.map(({ text }) => text), said.rest]).toEqual([['one\n'], ['tw']]);
});

test('where an answer was cut makes no difference', () => {
  const line = fc.oneof(
    fc.string({ unit: fc.constantFrom('a', ' ', '\u001e', '\0') }),
    fc.nat(40_000).map((length) => 'z'.repeat(length)),
    fc.nat(300).map((more) => `${'w'.repeat(16_200 + more)}${end('3').slice(0, -1)}`),
  );
  fc.assert(
    fc.property(fc.array(line, { maxLength: 6 }), fc.integer({ min: 100, max: 50_000 }), (lines, size) => {
      const text = lines.map((one, index) => `${stamp(index)} ${one}\n`).join('');
      expect(read(text, size)).toEqual(read(text));
    }),
    { numRuns: 40 },
  );
});
