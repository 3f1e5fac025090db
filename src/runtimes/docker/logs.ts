/**
 * A sandbox's output, read from the Engine's log and never from the sandbox itself: a reader that stalls holds up nobody.
 * Memory stays flat: what the caller has not taken stays on the Engine. The log is read in the Engine's files where that is possible
 * (`log-files.ts`), through its API elsewhere.
 */
import { sleep } from '../../core/clock.ts';
import type { ContainerAnswer, Engine } from '../../engine/engine.ts';
import { type ErrorCode, OnejobError } from '../../errors.ts';
import { advance, type LogChunk, type LogPosition } from '../runtime.ts';
import { createFrameReader } from './frames.ts';
import { canRead, followFiles } from './log-files.ts';
import { Rejoiner } from './rejoin.ts';

const firstPause = 50;
const longestPause = 5_000;

/** What waiting can mend though the same call would fail again at once: a socket is closed to us while its Engine starts. */
const passing: readonly ErrorCode[] = ['E_ENGINE_PERMISSION'];

export interface LogSource {
  /** The container's id; null when there is no such container. */
  readonly find: (signal: AbortSignal) => Promise<string | null>;
  /** Where the Engine keeps the log of a container; null where nobody can look. */
  readonly folder?: (id: string, signal: AbortSignal) => Promise<string | null>;
  /** Bytes of one of the Engine's log files. */
  readonly fileSize?: number;
}

/**
 * Output of a container after `from`, until it has ended and all was read, or there is no such container. An Engine that is away
 * is waited for.
 * @throws OnejobError what no waiting mends.
 */
export async function* followLogs(
  engine: Engine,
  { find, folder = async () => null, fileSize = Number.POSITIVE_INFINITY }: LogSource,
  from: LogPosition,
  signal: AbortSignal,
): AsyncGenerator<LogChunk[], void> {
  let position = from;
  let since = 0n;
  let wait = firstPause;
  let hasEnded = false;
  let readsFiles = true;
  /** Bytes that were new; of a log that was read before, more than any file has. */
  let total = from.stdout + from.stderr > 0 ? Number.POSITIVE_INFINITY : 0;
  while (!signal.aborted) {
    const rejoiner = new Rejoiner(position);
    try {
      const id = await find(signal);
      if (id === null) return;
      const files = readsFiles ? await folder(id, signal) : null;
      if (files !== null && canRead(files)) {
        try {
          for await (const chunks of followFiles(engine.clock, files, position, untilEnded(engine, id, signal), signal)) {
            // Counted before it is given away: who takes it may throw, and that is no reason to give it again.
            position = chunks.reduce(advance, position);
            yield chunks;
          }
          return;
        } catch {
          // What cannot be read there is asked of the Engine.
          readsFiles = false;
        }
        if (signal.aborted) return;
        continue;
      }
      const before = await engine.inspect(id, signal);
      if (before === null) return;
      // What is asked for after the end is whole; what was followed up to the end is asked for once more.
      hasEnded ||= hasExited(before);
      const answer = await engine.logs(id, written(isPast(since, engine.clock.wall()) ? since : 0n), signal);
      if (answer === null) return;
      const read = createFrameReader();
      let taken = 0;
      let isHalted = false;
      try {
        for await (const piece of answer) {
          const chunks = rejoiner.push(read(piece));
          if (chunks.length === 0) continue;
          since = rejoiner.since;
          position = chunks.reduce(advance, position);
          wait = firstPause;
          taken += piece.length;
          total += piece.length;
          yield chunks;
          // Who follows across the end of a file goes on with the newest one (Engine 20.10 to 22), whatever lies between. What is
          // asked for anew begins with what the last seconds had, so a log that has not come to the end of a file is left alone.
          isHalted = total > fileSize * 0.9 && taken > fileSize / 4;
          if (isHalted) break;
        }
      } finally {
        answer.destroy();
      }
      if (isHalted) continue;
      if (hasEnded) {
        const last = rejoiner.end();
        if (last.length > 0) yield last;
        return;
      }
      const container = await engine.inspect(id, signal);
      if (container === null) return;
      // The follower may be told of the end before it has seen the last messages: read once more what came after.
      hasEnded = hasExited(container);
      if (hasEnded) continue;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof OnejobError && !error.retry && !passing.includes(error.code)) throw error;
    }
    // Not started yet, or the Engine went away. Nobody tells when to try again.
    await sleep(engine.clock, wait, signal);
    wait = Math.min(longestPause, wait * 2);
  }
}

function hasExited({ State }: ContainerAnswer): boolean {
  return State.Status === 'exited' || State.Status === 'dead';
}

/** Resolves once the container has ended, or is gone, and its log is whole; never rejects but when `signal` aborts. */
async function untilEnded(engine: Engine, id: string, signal: AbortSignal): Promise<void> {
  for (let wait = firstPause; !signal.aborted; wait = Math.min(longestPause, Math.max(firstPause, wait * 2))) {
    try {
      const container = await engine.inspect(id, signal);
      if (container === null || hasExited(container)) return;
      if (container.State.Status !== 'created') {
        const since = engine.clock.now();
        await engine.ended(id, signal);
        // Looked at again at once, unless that was no waiting at all.
        if (engine.clock.now() - since > firstPause) wait = 0;
      }
    } catch {
      // An Engine that is away, or has been: asked again.
    }
    if (wait > 0) await sleep(engine.clock, wait, signal);
  }
}

/** Not so when the clock was set back meanwhile; then what is new is stamped with times that seem to be long ago. */
function isPast(time: bigint, now: number): boolean {
  return time <= BigInt(now) * 1_000_000n;
}

/** As the Engine's `since`, which is inclusive, has it: seconds and nine digits. */
function written(time: bigint): string {
  return `${time / 1_000_000_000n}.${String(time % 1_000_000_000n).padStart(9, '0')}`;
}
