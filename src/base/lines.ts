/** The lines of a stream. */
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';

/** Its errors are thrown while it is read. One that comes later, such as by destroying the stream, is nobody's. */
export async function* linesOf(input: Readable): AsyncGenerator<string, void> {
  const lines = createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY });
  // readline passes on the stream's errors while it is open. An unhandled one of either would end the process.
  for (const one of [lines, input]) one.on('error', () => {});
  try {
    yield* lines;
  } finally {
    lines.close();
  }
}
