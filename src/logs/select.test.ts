/** The last lines of logs as they are, and as they should not be. */
import { expect, test } from 'vitest';
import type { LogPiece } from '../api/manager.ts';
import { none, plus, sizeOf } from './gap.ts';
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
