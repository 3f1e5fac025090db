import { createHash } from 'node:crypto';
import { type Duplex, duplexPair, Transform } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { setImmediate as turn } from 'node:timers/promises';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { createMux } from './mux.ts';
import { createPace } from './pace.ts';

/** Both ends; the far one gives each stream to `opened`. `tear`: how large the pieces are in which the pipe delivers. */
function pair(opened: (stream: Duplex) => void, tear?: number) {
  const [near, middle] = duplexPair();
  const [end, far] = duplexPair();
  const torn = () =>
    new Transform({
      transform(data: Buffer, _, done) {
        for (let at = 0; at < data.length; at += tear ?? data.length) this.push(data.subarray(at, at + (tear ?? data.length)));
        done();
      },
    });
  void pipeline(middle, torn(), end).catch(() => {});
  void pipeline(end, torn(), middle).catch(() => {});
  return { near, mux: createMux(near), far: createMux(far, opened) };
}

const hash = (data: Buffer): string => createHash('sha256').update(data).digest('hex');

test('every stream gets back what it sent, whatever the sizes and however the pipe tears it', async () => {
  const size = fc.oneof(fc.nat(5), fc.nat(70_000), fc.constant(2 << 20));
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.array(size, { maxLength: 4 }), { minLength: 1, maxLength: 5 }),
      fc.integer({ min: 1_000, max: 200_000 }),
      async (all, tear) => {
        const { mux } = pair((stream) => void pipeline(stream, stream).catch(() => {}), tear);
        const back = all.map(async (sizes, at) => {
          const stream = mux.open();
          const sent = sizes.map((bytes, n) => Buffer.alloc(bytes, `${at} ${n} `));
          for (const data of sent) stream.write(data);
          stream.end();
          return hash(await buffer(stream)) === hash(Buffer.concat(sent));
        });
        expect(await Promise.all(back)).toEqual(all.map(() => true));
      },
    ),
    { numRuns: 25 },
  );
});

test('what nobody reads is held back at its sender', async () => {
  const opened: Duplex[] = [];
  const { mux } = pair((stream) => void opened.push(stream));
  const stream = mux.open();
  let sent = 0;
  const data = Buffer.alloc(100_000);
  for (let n = 0; n < 60; n++)
    stream.write(data, () => {
      sent += data.length;
    });
  for (let turns = 0; turns < 200; turns++) await turn();
  expect(sent).toBeGreaterThan(500_000);
  expect(sent).toBeLessThan(1_500_000);
  opened[0]?.resume();
  await expect.poll(() => sent).toBe(6_000_000);
  stream.destroy();
  await expect.poll(() => opened[0]?.destroyed).toBe(true);
});

test('one end may finish before the other', async () => {
  const { mux } = pair((stream) => {
    stream.resume().once('end', () => stream.end('answer'));
  });
  const stream = mux.open();
  stream.end('question');
  expect(String(await buffer(stream))).toBe('answer');
});

test('the end of the pipe cuts off every stream, and opens none', async () => {
  const { mux, near } = pair(() => {});
  const stream = mux.open();
  const ended = buffer(stream);
  near.destroy();
  await mux.ended;
  await expect(ended).rejects.toMatchObject({ code: 'ECONNRESET' });
  await expect(buffer(mux.open())).rejects.toMatchObject({ code: 'ECONNRESET' });
  expect(mux.isOver).toBe(true);
});

test.each([
  ['an unknown kind', [9, 0, 0, 0, 1, 0, 0, 0, 0]],
  ['a frame that is too large', [2, 0, 0, 0, 1, 255, 0, 0, 0]],
])('%s ends it', async (_, bytes) => {
  const { mux, near } = pair(() => {});
  const stream = mux.open();
  const ended = buffer(stream);
  near.emit('data', Buffer.from(bytes));
  await mux.ended;
  await expect(ended).rejects.toMatchObject({ code: 'ECONNRESET' });
});

test('frames of streams that this end has given up, or never had, are nothing', async () => {
  const { mux, near } = pair((stream) => void pipeline(stream, stream).catch(() => {}));
  for (const kind of [3, 4, 5]) near.emit('data', Buffer.from([kind, 0, 0, 0, 77, 0, 0, 0, 0]));
  const stream = mux.open();
  stream.end('x');
  expect(String(await buffer(stream))).toBe('x');
});

/** One end, against bytes that a hostile other end may write. `taken`: what this end writes, while it is read. */
function against(opened?: (stream: Duplex) => void) {
  const [near, far] = duplexPair();
  const mux = createMux(near, opened);
  const frame = (kind: number, id: number, number: number, data = Buffer.alloc(0)) => {
    const head = Buffer.alloc(9);
    head.writeUInt8(kind);
    head.writeUInt32BE(id, 1);
    head.writeUInt32BE(number, 5);
    near.emit('data', Buffer.concat([head, data]));
  };
  return { near, far, mux, frame };
}

test('a stream whose sender ignores the window is reset, and holds no more than the window', async () => {
  const { mux, frame, near } = against();
  const stream = mux.open();
  const failed = new Promise((resolve) => stream.once('error', resolve));
  for (let n = 0; n < 100; n++) frame(2, 1, 65_536, Buffer.alloc(65_536));
  expect(stream.readableLength).toBeLessThanOrEqual(1 << 20);
  expect(await failed).toMatchObject({ message: expect.stringContaining('more than') });
  const other = mux.open();
  other.resume();
  expect(mux.isOver).toBe(false);
  near.destroy();
});

test('no credit lets a stream send more than the window, or what the pipe does not take', async () => {
  const { mux, frame, near, far } = against();
  const streams = Array.from({ length: 8 }, () => mux.open());
  for (const stream of streams) stream.write(Buffer.alloc(8 << 20));
  for (let n = 0; n < 100; n++) for (let id = 1; id <= 8; id++) frame(5, id, 0xffffffff);
  expect(near.writableLength).toBeLessThan(300_000);
  let got = 0;
  far.on('data', (data: Buffer) => {
    got += data.length;
  });
  await expect.poll(() => got).toBeGreaterThan(8 << 20);
  for (let turns = 0; turns < 200; turns++) await turn();
  // One window each, after the credit for it.
  expect(got).toBeLessThan(9 << 20);
  near.destroy();
});

test('the end that opens streams accepts none, and answers nothing that is not read', async () => {
  const { mux, frame, near } = against();
  const stream = mux.open();
  stream.resume();
  for (let n = 0; n < 300_000; n++) frame(2, 1, 1, Buffer.alloc(1));
  expect(near.writableLength).toBeLessThan(300_000);
  frame(1, 7, 0);
  await mux.ended;
  expect(mux.isOver).toBe(true);
});

test('a paced end takes its part of the time, whatever its bytes cost, and the pipe waits meanwhile', async () => {
  const [near, far] = duplexPair();
  const clock = handClock();
  const mux = createMux(near, null, createPace(clock));
  const stream = mux.open();
  let frames = 0;
  // Each costs 1 ms, however small it is.
  stream.on('data', () => {
    frames += 1;
    clock.advance(1);
  });
  const frame = Buffer.alloc(10, 'x');
  frame.writeUInt8(2);
  frame.writeUInt32BE(1, 1);
  frame.writeUInt32BE(1, 5);
  far.resume().write(Buffer.concat(Array.from({ length: 2_000 }, () => frame)));
  const rest = async () => {
    for (let turns = 0; turns < 20; turns += 1) await turn();
    return frames;
  };
  const first = await rest();
  expect(first).toBe(64);
  expect(near.isPaused()).toBe(true);
  clock.advance(10_000);
  const later = await rest();
  expect(later).toBeGreaterThan(first);
  // A fifth of the time and what it may have at once, in whole turns.
  for (let at = 0; at < 40 && frames < 2_000; at += 1) {
    const before = { frames, now: clock.now() };
    clock.advance(320);
    await rest();
    expect(frames - before.frames).toBeLessThanOrEqual(128);
  }
  expect(frames).toBe(2_000);
  expect(near.isPaused()).toBe(false);
});
