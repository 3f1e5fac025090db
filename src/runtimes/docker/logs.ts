/**
 * A sandbox's output, read from the Engine's log and never from the sandbox itself: a reader that stalls holds up nobody.
 * Memory stays flat: what the caller has not taken stays on the Engine.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { OnejobError } from '../../errors.ts';
import type { LogChunk, LogPosition } from '../runtime.ts';
import type { Engine } from './engine.ts';
import { createFrameReader } from './frames.ts';
import { Rejoiner } from './rejoin.ts';

const firstPause = 50;
const longestPause = 5_000;

/** Output of container `id` after `from`, until it has ended and all was read. Reconnects by itself. */
export async function* followLogs(
  engine: Engine,
  id: string,
  from: LogPosition,
  signal: AbortSignal,
): AsyncGenerator<LogChunk[], void> {
  let position = from;
  let since = 0n;
  let wait = firstPause;
  let hasEnded = false;
  while (!signal.aborted) {
    const rejoiner = new Rejoiner(position);
    try {
      const answer = await engine.logs(id, written(since), signal);
      if (answer === null) return;
      const read = createFrameReader();
      try {
        for await (const piece of answer) {
          const chunks = rejoiner.push(read(piece));
          if (chunks.length === 0) continue;
          since = rejoiner.since;
          position = chunks.reduce(advance, position);
          wait = firstPause;
          yield chunks;
        }
      } finally {
        answer.destroy();
      }
      if (hasEnded) {
        const last = rejoiner.end();
        if (last.length > 0) yield last;
        return;
      }
      const container = await engine.inspect(id, signal);
      if (container === null) return;
      // The follower may be told of the end before it has seen the last messages: read once more what came after.
      hasEnded = container.State.Status === 'exited' || container.State.Status === 'dead';
      if (hasEnded) continue;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof OnejobError && !error.retry) throw error;
    }
    // Not started yet, or the Engine went away. Nobody tells when to try again.
    await pause(wait, undefined, { signal }).catch(() => {});
    wait = Math.min(longestPause, wait * 2);
  }
}

function advance(position: LogPosition, chunk: LogChunk): LogPosition {
  return {
    time: chunk.time,
    atTime: chunk.time === position.time ? position.atTime + 1 : 1,
    stdout: position.stdout + (chunk.stream === 'stdout' ? chunk.bytes.length : 0),
    stderr: position.stderr + (chunk.stream === 'stderr' ? chunk.bytes.length : 0),
  };
}

/** As the Engine's `since`, which is inclusive, has it: seconds and nine digits. */
function written(time: bigint): string {
  return `${time / 1_000_000_000n}.${String(time % 1_000_000_000n).padStart(9, '0')}`;
}
