/** The last lines of logs as they are, and as they should not be. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { LogPiece } from '../api/manager.ts';
import { gapPiece, none, plus, sizeOf } from './gap.ts';
import { lastLines } from './select.ts';

const total = 8 << 20;

async function tailOf(piece: () => LogPiece, lines: number) {
  async function* read() {
    for (let size = 0; size < total; ) {
      const one = piece();
      size += one.bytes.length;
      yield one;
    }
  }
  let pieces = 0;
  let [size, gap, last] = [0, none, ''];
  for await (const one of lastLines(read, lines, false)) {
    pieces += 1;
    if (one.gap !== undefined) gap = plus(gap, sizeOf(one));
    else [size, last] = [size + one.bytes.length, Buffer.from(one.bytes).toString().slice(-10)];
  }
  return { pieces, size, missing: gap.stdout, last };
}

test('output without newlines is not kept whole', async () => {
  const bytes = Buffer.from('99 %\r'.repeat(10_000));
  const { size, missing, last } = await tailOf(() => ({ stream: 'stdout', bytes }), 100);
  expect(size).toBeGreaterThan(3 << 20);
  expect(size).toBeLessThanOrEqual(4 << 20);
  expect(size + missing).toBeGreaterThanOrEqual(total);
  expect(last).toBe('99 %\r99 %\r');
});

test('many tiny pieces are not kept either', async () => {
  let at = 0;
  const bytes = Buffer.alloc(2_000, 'x');
  const { pieces } = await tailOf(
    () => ({ stream: 'stdout', bytes: at++ % 20 === 0 ? bytes.subarray() : bytes.subarray(0, 1) }),
    100,
  );
  expect(pieces).toBeLessThan(16_500);
});

async function partsOf(read: (follow: boolean) => AsyncIterable<LogPiece>, lines: number, follow = false) {
  const shown: string[] = [];
  let missing = none;
  for await (const piece of lastLines(read, lines, follow)) {
    if (piece.gap?.asked) missing = plus(missing, piece.gap.missing);
    else shown.push(`${piece.stream[3]}${Buffer.from(piece.bytes)}`);
  }
  return { shown, missing };
}

const output = (stream: 'stdout' | 'stderr', text: string): LogPiece => ({ stream, bytes: Buffer.from(text) });

test('they are the last lines of both streams, and what is before them is counted', async () => {
  const pieces = fc.array(
    fc.tuple(fc.constantFrom('stdout', 'stderr'), fc.string({ unit: fc.constantFrom('a', 'b', '\n'), minLength: 1 })),
  );
  await fc.assert(
    fc.asyncProperty(pieces, fc.integer({ min: 0, max: 8 }), async (all, lines) => {
      async function* read() {
        for (const [stream, text] of all) yield output(stream, text);
      }
      const { shown, missing } = await partsOf(read, lines);
      const whole = all.map(([, text]) => text).join('');
      const ends = whole.split('\n').map((line, at, { length }) => (at < length - 1 ? `${line}\n` : line));
      const wanted = ends.filter((line) => line !== '').slice(lines === 0 ? ends.length : -lines);
      expect(shown.map((text) => text.slice(1)).join('')).toBe(wanted.join(''));
      const sizes = (stream: string) => all.reduce((sum, [of, text]) => sum + (of === stream ? text.length : 0), 0);
      for (const stream of ['stdout', 'stderr'] as const) {
        const came = shown.filter((text) => text[0] === stream[3]).reduce((sum, text) => sum + text.length - 1, 0);
        expect(came + missing[stream]).toBe(sizes(stream));
      }
    }),
  );
});

test('what came, or was lost, while they were looked for is passed on', async () => {
  async function* read(follow: boolean) {
    if (!follow) yield* [output('stdout', '1\n2\n3\n'), output('stdout', '4\n')];
    else yield* [output('stdout', '1\n2\n3\n4\n5\n'), { stream: 'note', bytes: Buffer.from('note\n') } as const];
  }
  expect(await partsOf(read, 2, true)).toEqual({ shown: ['o3\n4\n5\n', 'enote\n'], missing: { stdout: 4, stderr: 0 } });

  async function* readLess(follow: boolean) {
    if (!follow) yield* [output('stdout', '1\n'), output('stdout', '2\n3\n')];
    else yield* [gapPiece({ missing: { stdout: 6, stderr: 0 }, after: none }), output('stdout', '4\n')];
  }
  const { shown, missing } = await partsOf(readLess, 1, true);
  expect(missing).toEqual({ stdout: 2, stderr: 0 });
  expect(shown).toEqual(['eoutput is not kept here: 4 bytes of stdout after its first 2 bytes\n', 'o4\n']);
});
