import { expect, test } from 'vitest';
import { type Framed, frame, pieceFrames, readFrames } from './frames.ts';

const pieces: Framed[] = [
  { stream: 'stdout', bytes: Buffer.from('hello\0\n') },
  { stream: 'note', bytes: Buffer.from('a line of ours') },
  { stream: 'stderr', bytes: Buffer.from([255, 0, 1]) },
];
const encoded = Buffer.concat([
  ...pieces.flatMap((piece) => (piece.stream === 'error' ? [] : [...pieceFrames(piece)])),
  frame('end'),
]);

async function* inParts(bytes: Buffer, ...cuts: number[]) {
  let from = 0;
  for (const cut of [...cuts, bytes.length]) {
    yield bytes.subarray(from, cut);
    from = cut;
  }
}

/** Everything read, pieces of one stream that follow each other put together. */
async function read(source: AsyncIterable<Uint8Array>): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for await (const { stream, bytes } of readFrames(source))
    found[stream] = (found[stream] ?? '') + Buffer.from(bytes).toString('latin1');
  return found;
}

const whole = { stdout: 'hello\0\n', note: 'a line of ours', stderr: '\u00ff\0\u0001' };

test('frames are read wherever the stream is torn', async () => {
  for (let cut = 0; cut <= encoded.length; cut += 1) expect(await read(inParts(encoded, cut))).toEqual(whole);
  expect(await read(inParts(encoded, ...encoded.keys()))).toEqual(whole);
});

test('a stream that ends at any earlier byte is known to be cut', async () => {
  for (let length = 0; length < encoded.length; length += 1) {
    await expect(read(inParts(encoded.subarray(0, length)))).rejects.toMatchObject({ code: 'E_DAEMON_CUT' });
  }
});

test('what is not framed is refused', async () => {
  await expect(read(inParts(Buffer.from('HTTP/1.1 200 OK')))).rejects.toMatchObject({ code: 'E_API_ANSWER' });
  await expect(read(inParts(Buffer.from([3, 255, 255, 255, 255, 0])))).rejects.toMatchObject({ code: 'E_API_ANSWER' });
});

test('an error ends the stream', async () => {
  expect(await read(inParts(frame('error', '{"code":"E_BUG"}')))).toEqual({ error: '{"code":"E_BUG"}' });
});

test('a large piece becomes several frames', async () => {
  const bytes = Buffer.alloc(3_000_000, 'x');
  const frames = [...pieceFrames({ stream: 'note', bytes })];
  expect(frames.length).toBe(3);
  expect((await read(inParts(Buffer.concat([...frames, frame('end')])))).note).toHaveLength(bytes.length);
});

test('what was written for a terminal is known to be, on either side of a tear', async () => {
  for (const stream of ['stdout', 'stderr'] as const) {
    const bytes = Buffer.concat([...pieceFrames({ stream, bytes: Buffer.from('ab'), forTerminal: true }), frame('end')]);
    const found: Framed[] = [];
    for await (const piece of readFrames(inParts(bytes, 6))) found.push(piece);
    expect(found).toEqual([...'ab'].map((letter) => ({ stream, bytes: Buffer.from(letter), forTerminal: true })));
  }
});
