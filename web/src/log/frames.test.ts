import { expect, test } from 'vitest';
import { frame, pieceFrames } from '../../../src/contract/frames.ts';
import { gapPiece } from '../../../src/contract/gap.ts';
import { createFrameReader, type Frame } from './frames.ts';

const gap = { missing: { stdout: 7, stderr: 0 }, after: { stdout: 1, stderr: 2 } };
const error = { code: 'E_X', message: 'no', hint: null, retry: false };
const stream = Buffer.concat([
  frame('stdout'),
  ...pieceFrames({ stream: 'stdout', bytes: Buffer.from('häl') }),
  ...pieceFrames({ stream: 'stderr', bytes: Buffer.from('bad') }),
  ...pieceFrames({ stream: 'stdout', bytes: Buffer.from('lo'), forTerminal: true }),
  ...pieceFrames({ stream: 'note', bytes: Buffer.from('attempt ❷\n') }),
  ...pieceFrames(gapPiece(gap)),
  ...pieceFrames(gapPiece({ ...gap, asked: true })),
  ...pieceFrames(gapPiece({ ...gap, holes: 'here' })),
  frame('error', JSON.stringify(error)),
  frame('end'),
]);

/** Output of one stream is put together again. */
function merged(frames: readonly Frame[]): unknown[] {
  const found: { kind: string; bytes?: string }[] = [];
  for (const one of frames) {
    const last = found.at(-1);
    if (!('bytes' in one)) found.push(one);
    else if (last?.kind === one.kind) last.bytes += Buffer.from(one.bytes).toString('latin1');
    else found.push({ kind: one.kind, bytes: Buffer.from(one.bytes).toString('latin1') });
  }
  return found.map((one) => (one.bytes === undefined ? one : { ...one, bytes: Buffer.from(one.bytes, 'latin1').toString() }));
}

test('reads what the daemon writes, however it is cut', () => {
  const expected = [
    { kind: 'stdout', bytes: 'häl' },
    { kind: 'stderr', bytes: 'bad' },
    { kind: 'stdout', bytes: 'lo' },
    { kind: 'note', text: 'attempt ❷\n' },
    { kind: 'gap', missing: gap.missing, asked: false, isUncounted: false },
    { kind: 'gap', missing: gap.missing, asked: true, isUncounted: false },
    { kind: 'gap', missing: gap.missing, asked: false, isUncounted: true },
    { kind: 'error', error },
    { kind: 'end' },
  ];
  for (const size of [1, 2, 3, 5, 11, stream.length]) {
    const read = createFrameReader();
    const parts = Array.from({ length: Math.ceil(stream.length / size) }, (_, at) => stream.subarray(at * size, (at + 1) * size));
    expect(merged(parts.flatMap(read))).toEqual(expected);
  }
});

test('data of another kind is refused', () => {
  expect(() => createFrameReader()(Buffer.from('<html>nothing here'))).toThrow(/not a frame/);
  expect(() => createFrameReader()(Buffer.from([1, 255, 0, 0, 0]))).toThrow(/not a frame/);
});
