/**
 * A sandbox's output, read from the Engine's log and never from the sandbox itself: a reader that stalls holds up nobody.
 * Memory stays flat: what the caller has not taken stays on the Engine.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { type ErrorCode, OnejobError } from '../../errors.ts';
import { advance } from '../position.ts';
import type { LogChunk, LogPosition } from '../runtime.ts';
import type { Engine } from './engine.ts';
import { createFrameReader } from './frames.ts';
import { Rejoiner } from './rejoin.ts';

const firstPause = 50;
const longestPause = 5_000;

/** What waiting can mend though the same call would fail again at once: a socket is closed to us while its Engine starts. */
const passing: readonly ErrorCode[] = ['E_ENGINE_PERMISSION'];

/**
 * Output of a container after `from`, until it has ended and all was read, or there is no such container (`find` says
 * null). An Engine that is away is waited for.
 * @throws OnejobError what no waiting mends.
 */
export async function* followLogs(
  engine: Engine,
  find: (signal: AbortSignal) => Promise<string | null>,
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
      const id = await find(signal);
      if (id === null) return;
      const answer = await engine.logs(id, written(isPast(since) ? since : 0n), signal);
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
      if (error instanceof OnejobError && !error.retry && !passing.includes(error.code)) throw error;
    }
    // Not started yet, or the Engine went away. Nobody tells when to try again.
    await pause(wait, undefined, { signal }).catch(() => {});
    wait = Math.min(longestPause, wait * 2);
  }
}

/** Not so when the clock was set back meanwhile; then what is new is stamped with times that seem to be long ago. */
function isPast(time: bigint): boolean {
  return time <= BigInt(Date.now()) * 1_000_000n;
}

/** As the Engine's `since`, which is inclusive, has it: seconds and nine digits. */
function written(time: bigint): string {
  return `${time / 1_000_000_000n}.${String(time % 1_000_000_000n).padStart(9, '0')}`;
}
