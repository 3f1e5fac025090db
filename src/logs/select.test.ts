/** The last lines of logs as they are, and as they should not be. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { gapPiece, gapSize, none, plus } from '../contract/gap.ts';
import type { LogPiece } from '../contract/manager.ts';
import { lastLines, skip } from './select.ts';

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
    if (one.gap !== undefined) gap = plus(gap, gapSize(one));
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
  const shown: LogPiece[] = [];
  let missing = none;
  for await (const piece of lastLines(read, lines, follow)) {
    if (piece.gap?.asked) missing = plus(missing, piece.gap.missing);
    else shown.push(piece);
  }
  return { shown, missing };
}

const wordsOf = ({ stream, bytes }: LogPiece): string => `${stream[3]}${Buffer.from(bytes)}`;

const output = (stream: 'stdout' | 'stderr', text: string): LogPiece => ({ stream, bytes: Buffer.from(text) });

const note = (text: string): LogPiece => ({ stream: 'note', bytes: Buffer.from(text) });

/** As a later read finds them: what was written since has joined neighbours of one stream. */
function joined(pieces: readonly LogPiece[]): LogPiece[] {
  const all: LogPiece[] = [];
  for (const piece of pieces) {
    const before = all.at(-1);
    if (before === undefined || before.stream !== piece.stream || piece.stream === 'note') all.push(piece);
    else all.splice(-1, 1, { ...piece, bytes: Buffer.concat([before.bytes, piece.bytes]) });
  }
  return all;
}

test('they are the last lines of both streams and of the notes, and what is before them is counted', async () => {
  const text = fc.string({ unit: fc.constantFrom('a', 'b', '\n') });
  const pieces = fc.array(
    fc.oneof(
      fc.tuple(fc.constantFrom('stdout', 'stderr'), text).map(([stream, said]) => output(stream, said)),
      fc.constant(note('n\n')),
      fc.record({ stdout: fc.integer({ min: 1, max: 3 }), stderr: fc.nat(3) }).map((missing) => gapPiece({ missing, after: none })),
    ),
  );
  await fc.assert(
    fc.asyncProperty(pieces, fc.integer({ min: 0, max: 8 }), async (all, lines) => {
      let reads = 0;
      async function* read() {
        yield* reads++ === 0 ? all : joined(all);
      }
      const { shown, missing } = await partsOf(read, lines);
      const whole = all.map(({ bytes }) => Buffer.from(bytes).toString()).join('');
      const ends = whole.split('\n').map((line, at, { length }) => (at < length - 1 ? `${line}\n` : line));
      const wanted = ends.filter((line) => line !== '').slice(lines === 0 ? ends.length : -lines);
      expect(shown.map(({ bytes }) => Buffer.from(bytes).toString()).join('')).toBe(wanted.join(''));
      const sizes = (some: readonly LogPiece[]) => some.reduce((sum, piece) => plus(sum, gapSize(piece)), none);
      expect(plus(sizes(shown), missing)).toEqual(sizes(all));
    }),
  );
});

test('a note before the first of the lines is left out, also right before it', async () => {
  async function* read() {
    yield* [output('stdout', 'a\n'), note('n\n'), output('stdout', 'b\n')];
  }
  const shown = async (lines: number) => (await partsOf(read, lines)).shown.map(wordsOf);
  expect([await shown(1), await shown(2), await shown(3)]).toEqual([['ob\n'], ['en\n', 'ob\n'], ['oa\n', 'en\n', 'ob\n']]);
});

test('what came, or was lost, while they were looked for is passed on', async () => {
  async function* read(follow: boolean) {
    if (!follow) yield* [output('stdout', '1\n2\n3\n'), output('stdout', '4\n')];
    else yield* [output('stdout', '1\n2\n3\n4\n5\n'), note('note\n')];
  }
  const came = await partsOf(read, 2, true);
  expect([came.shown.map(wordsOf), came.missing]).toEqual([['o3\n4\n5\n', 'enote\n'], { stdout: 4, stderr: 0 }]);

  async function* readLess(follow: boolean) {
    if (!follow) yield* [output('stdout', '1\n'), output('stdout', '2\n3\n')];
    else yield* [gapPiece({ missing: { stdout: 6, stderr: 0 }, after: none }), output('stdout', '4\n')];
  }
  const { shown, missing } = await partsOf(readLess, 1, true);
  expect(missing).toEqual({ stdout: 2, stderr: 0 });
  expect(shown.map(wordsOf)).toEqual(['eoutput is not kept here: 4 bytes of stdout after its first 2 bytes\n', 'o4\n']);
});

test('a reader who has words that do not come again gets notes once it gets new output', async () => {
  async function* read() {
    yield* [output('stdout', 'a\n'), note('old\n'), output('stdout', 'b\nc\n'), note('new\n'), output('stdout', 'd\n')];
  }
  const shown: string[] = [];
  for await (const piece of skip(read(), { stdout: 4, stderr: 50 })) shown.push(wordsOf(piece));
  expect(shown).toEqual(['oc\n', 'enew\n', 'od\n']);
});
