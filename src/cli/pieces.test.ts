import { expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { gapPiece, gapSize, none, plus } from '../contract/gap.ts';
import type { LogPiece } from '../contract/manager.ts';
import { skip } from '../logs/select.ts';
import { jobPrinter, plainPrinter } from './follow.ts';
import { createOutput } from './output.ts';

const missing = gapPiece({ missing: { stdout: 1_000, stderr: 3 }, after: { stdout: 12, stderr: 0 } });

/** A job's output in pieces of `size` bytes, with a gap in it. */
async function* output(size: number): AsyncGenerator<LogPiece> {
  const text = (whole: string) => {
    const bytes = Buffer.from(whole);
    return Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.subarray(at * size, (at + 1) * size));
  };
  for (const bytes of text('\u001b[90m$\u001b[0m a\r\n')) yield { stream: 'stdout', bytes, forTerminal: true };
  yield missing;
  for (const bytes of text('\u001b]0;title\u0007b\r\n\u001b[1mc\u001b[0m\r\n'))
    yield { stream: 'stdout', bytes, forTerminal: true };
}

test('wherever the connection is lost, plain output continues, and a gap is reported once', async () => {
  for (const [size, again] of [
    [1, 1],
    [3, 100],
    [100, 100],
  ] as const) {
    for (let lostAfter = 0; lostAfter < 60; lostAfter += 1) {
      const cli = testContext([], '/');
      const printer = plainPrinter(createOutput(cli.context, false), jobPrinter(createOutput(cli.context, false)));
      let [shown, left] = [none, lostAfter];
      for await (const piece of output(size)) {
        if (left-- === 0) break;
        await printer.show(piece);
        shown = plus(shown, gapSize(piece));
      }
      for await (const piece of skip(output(again), shown)) await printer.show(piece);
      await printer.end?.();
      expect(cli.stdout()).toBe('$ a\nb\nc\n');
      expect(cli.stderr().match(/not kept here/g)).toHaveLength(1);
    }
  }
});
