import fc from 'fast-check';
import { expect, test } from 'vitest';
import { bytesOf } from '../../test/kit/runtime-contract/follow.ts';
import { advance, type LogChunk, type LogPosition, start } from '../ports/runtime.ts';
import { createFrameReader } from './docker/logs.ts';
import { type LogFrame, Rejoiner, slack } from './rejoin.ts';

const base = 1_700_000_000_000_000_000n;

type Line = { readonly stream: 'stdout' | 'stderr'; readonly length: number; readonly pause: number };

/** Stores lines as Engine 20.10 does: pieces of 16 KiB that share a time, without the newline of a long line. */
function store(
  lines: readonly Line[],
  interleave: readonly boolean[],
  modern: boolean,
): { frames: LogFrame[]; written: Record<'stdout' | 'stderr', Buffer> } {
  let time = base;
  const queues: Record<'stdout' | 'stderr', LogFrame[]> = { stdout: [], stderr: [] };
  const written: Record<'stdout' | 'stderr', Buffer[]> = { stdout: [], stderr: [] };
  lines.forEach(({ stream, length, pause }, index) => {
    time += BigInt(pause) * 1_000_000n + 1n;
    const text = Buffer.alloc(length, 97 + (index % 26));
    written[stream].push(text, Buffer.from('\n'));
    if (length < 16_384) {
      queues[stream].push({ stream, time, bytes: Buffer.concat([text, Buffer.from('\n')]) });
      return;
    }
    for (let at = 0; at <= length; at += 16_384) {
      const piece = text.subarray(at, at + 16_384);
      const isLast = piece.length < 16_384;
      queues[stream].push({ stream, time, bytes: isLast && modern ? Buffer.concat([piece, Buffer.from('\n')]) : piece });
    }
  });
  const frames: LogFrame[] = [];
  const { stdout, stderr } = queues;
  // Mostly by time, as the Engine gets them; here and there the other stream's first.
  for (let i = 0; stdout.length + stderr.length > 0; i += 1) {
    const [a, b] = [stdout[0], stderr[0]];
    const byTime = b === undefined || (a !== undefined && a.time <= b.time) ? stdout : stderr;
    const other = byTime === stdout ? stderr : stdout;
    const isNear = (other[0]?.time ?? 0n) - (byTime[0]?.time ?? 0n) < slack / 2n;
    const isSwapped = interleave[i % Math.max(1, interleave.length)] === true && other.length > 0 && isNear;
    const next = (isSwapped ? other : byTime).shift();
    if (next !== undefined) frames.push(next);
  }
  return { frames, written: { stdout: Buffer.concat(written.stdout), stderr: Buffer.concat(written.stderr) } };
}

/** Reads what is stored at `since` or later, on from `position`; tells how to continue after each push. */
function readFrom(stored: readonly LogFrame[], since: bigint, position: LogPosition, cuts: readonly number[]) {
  const frames = stored.filter((frame) => frame.time >= since);
  const rejoiner = new Rejoiner(position);
  const chunks: LogChunk[] = [];
  const stops: { readonly kept: number; readonly since: bigint }[] = [{ kept: 0, since: 0n }];
  for (let at = 0, i = 0; at < frames.length; i += 1) {
    const size = cuts[i % Math.max(1, cuts.length)] ?? 3;
    chunks.push(...rejoiner.push(frames.slice(at, at + size)));
    stops.push({ kept: chunks.length, since: rejoiner.since });
    at += size;
  }
  chunks.push(...rejoiner.end());
  // A new manager knows only what was kept, and may have kept any number of chunks.
  for (let kept = 0; kept <= chunks.length; kept += 1) stops.push({ kept, since: 0n });
  return { chunks, stops };
}

/** True when the pieces, one after the other, are the whole; without putting half a megabyte together each time. */
function areTogether(pieces: readonly Uint8Array[], whole: Buffer): boolean {
  let at = 0;
  for (const piece of pieces) {
    if (!whole.subarray(at, at + piece.length).equals(piece)) return false;
    at += piece.length;
  }
  return at === whole.length;
}

const lineArb = fc.record({
  stream: fc.constantFrom('stdout' as const, 'stderr' as const),
  length: fc.oneof(fc.nat(40), fc.constantFrom(16_383, 16_384, 16_385, 32_768, 40_000)),
  pause: fc.oneof(fc.nat(5), fc.constantFrom(4_000)),
});
const cutsArb = fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 5 });

test('everything written comes back, from every position, wherever it is cut', () => {
  fc.assert(
    fc.property(
      fc.array(lineArb, { minLength: 1, maxLength: 14 }),
      fc.array(fc.boolean(), { maxLength: 5 }),
      cutsArb,
      cutsArb,
      fc.boolean(),
      (lines, interleave, cuts, otherCuts, modern) => {
        const { frames, written } = store(lines, interleave, modern);
        const { chunks, stops } = readFrom(frames, 0n, start, cuts);
        for (const { kept, since } of stops) {
          const position = chunks.slice(0, kept).reduce(advance, start);
          const rest = readFrom(frames, since, position, otherCuts).chunks;
          for (const stream of ['stdout', 'stderr'] as const) {
            const said = [...chunks.slice(0, kept), ...rest].filter((chunk) => chunk.stream === stream);
            expect(
              areTogether(
                said.map(({ bytes }) => bytes),
                written[stream],
              ),
            ).toBe(true);
          }
          expect(rest.some((chunk) => chunk.gap)).toBe(false);
        }
      },
    ),
    { numRuns: 500 },
  );
});

test('output that was deleted before it was read is reported once', () => {
  const { frames } = store(
    Array.from({ length: 5 }, () => ({ stream: 'stdout' as const, length: 3, pause: 1 })),
    [],
    false,
  );
  const first = new Rejoiner(start).push(frames.slice(0, 1)).reduce(advance, start);
  const later = new Rejoiner(first);
  const chunks = [...later.push(frames.slice(3, 4)), ...later.push(frames.slice(4))];
  expect(chunks.map((chunk) => chunk.gap)).toEqual([true, undefined]);
  expect(bytesOf(chunks, 'stdout').toString()).toBe('ddd\neee\n');
});

test('frames are read wherever the network cuts them, with zones and fractions of any length', () => {
  const frame = (stream: number, text: string) => {
    const body = Buffer.from(text, 'latin1');
    const head = Buffer.alloc(8);
    head[0] = stream;
    head.writeUInt32BE(body.length, 4);
    return Buffer.concat([head, body]);
  };
  const wire = Buffer.concat([
    frame(1, '2026-11-20T09:45:23.297693519Z one\n'),
    frame(2, '2026-11-20T09:45:23.2Z \xff\x00\n'),
    frame(1, '2026-11-20T10:45:24+01:00 three'),
  ]);
  const expected = [
    ['stdout', 1795167923297693519n, 'one\n'],
    ['stderr', 1795167923200000000n, '\xff\x00\n'],
    ['stdout', 1795167924000000000n, 'three'],
  ];
  for (let size = 1; size <= wire.length; size += 1) {
    const read = createFrameReader();
    const got: LogFrame[] = [];
    for (let at = 0; at < wire.length; at += size) got.push(...read(wire.subarray(at, at + size)));
    expect(got.map(({ stream, time, bytes }) => [stream, time, bytes.toString('latin1')])).toEqual(expected);
  }
});

test('a frame that no Engine writes ends the reading, before it fills memory', () => {
  const read = createFrameReader();
  expect(read(Buffer.from([1, 0, 0, 0, 1, 0, 0, 0]))).toEqual([]);
  expect(() => createFrameReader()(Buffer.from([1, 0, 0, 0, 1, 0, 0, 1]))).toThrow('a frame that no Engine writes');
});
