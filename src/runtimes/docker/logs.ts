/**
 * A sandbox's output, read from the Engine's log and never from the sandbox itself, so a stalled reader holds up nobody. Memory
 * stays constant: untaken output stays on the Engine. It is read in its files if possible (`log-files.ts`), else by its API.
 */
import { text } from 'node:stream/consumers';
import { isEngineAway, OnejobError } from '../../base/errors.ts';
import { deadline, sleep } from '../../core/clock.ts';
import { advance, type LogChunk, type LogPosition } from '../../ports/runtime.ts';
import type { ContainerAnswer, Engine } from '../engine/engine.ts';
import { type LogFrame, Rejoiner, stampReader } from '../rejoin.ts';
import { canRead, followFiles } from './log-files.ts';

const firstPause = 50;
const longestPause = 5_000;

export interface LogSource {
  /** Id of the container; null if it does not exist. */
  readonly find: (signal: AbortSignal) => Promise<string | null>;
  /** Folder of the container's log; null if it cannot be read. */
  readonly folder?: (id: string, signal: AbortSignal) => Promise<string | null>;
  /** Bytes of one of the Engine's log files. */
  readonly fileSize?: number;
}

/**
 * Output of a container after `from`, until it has ended and all was read, or it does not exist. Waits for an Engine that is away.
 * @throws OnejobError for errors that do not pass
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
  /** Bytes of new output. For a log that was partly read before, it counts as more than any file holds. */
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
            // Counted before the yield: a consumer that throws must not get it again.
            position = chunks.reduce(advance, position);
            yield chunks;
          }
          return;
        } catch {
          // Then the Engine is asked.
          readsFiles = false;
        }
        if (signal.aborted) return;
        continue;
      }
      const before = await engine.inspect(id, signal);
      if (before === null) return;
      // A request after the end returns everything. A log that was followed to the end is requested once more.
      hasEnded ||= hasExited(before);
      // After a clock was set back, new output has stamps that seem old.
      const isPast = since <= BigInt(engine.clock.wall()) * 1_000_000n;
      const answer = await engine.logs(id, written(isPast ? since : 0n), signal);
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
          // A follower that crosses the end of a file continues with the newest one (Engine 20.10 to 22) and skips the rest. A
          // new request repeats the last seconds, so a log far from the end of a file is left alone.
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
      // The follower may hear of the end before it has read the last messages, so the rest is requested once more.
      hasEnded = hasExited(container);
      if (hasEnded) continue;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof OnejobError && !error.retry && !isEngineAway(error)) throw error;
    }
    // It has not started yet, or the Engine is away. No event says when to try again.
    await sleep(engine.clock, wait, signal);
    wait = Math.min(longestPause, wait * 2);
  }
}

function hasExited({ State }: ContainerAnswer): boolean {
  return State.Status === 'exited' || State.Status === 'dead';
}

/** Resolves once the container has ended, or is gone, and its log is complete. Rejects only when `signal` aborts. */
async function untilEnded(engine: Engine, id: string, signal: AbortSignal): Promise<void> {
  for (let wait = firstPause; !signal.aborted; wait = Math.min(longestPause, Math.max(firstPause, wait * 2))) {
    try {
      const container = await engine.inspect(id, signal);
      if (container === null || hasExited(container)) return;
      if (container.State.Status !== 'created') {
        const since = engine.clock.now();
        await engine.ended(id, signal);
        // Inspects again at once, unless the call did not wait at all.
        if (engine.clock.now() - since > firstPause) wait = 0;
      }
    } catch {
      // The Engine is, or was, away: ask again.
    }
    if (wait > 0) await sleep(engine.clock, wait, signal);
  }
}

/** The format of the Engine's `since`, which is inclusive: seconds and nine digits. */
function written(time: bigint): string {
  return `${time / 1_000_000_000n}.${String(time % 1_000_000_000n).padStart(9, '0')}`;
}

/** Bytes of a frame. Engines cut long lines; one that belongs to a job may announce 4 GiB. */
const longestFrame = 16 * 2 ** 20;

/**
 * Splits a stream of the API into frames, wherever it was cut. Each holds one message: `[stream, 0, 0, 0, length32]`, a time stamp,
 * a space and the bytes (ContainerAttach and ContainerLogs with `timestamps`). Frames share memory with the pushed chunks.
 */
export function createFrameReader() {
  let left: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  const timeOf = stampReader();
  return (chunk: Buffer<ArrayBufferLike>): LogFrame[] => {
    const buffer = left.length === 0 ? chunk : Buffer.concat([left, chunk]);
    const frames: LogFrame[] = [];
    let at = 0;
    while (at + 8 <= buffer.length) {
      const length = buffer.readUInt32BE(at + 4);
      if (length > longestFrame)
        throw new OnejobError('E_ENGINE_FAILED', 'The log of a container has a frame that no Engine writes.');
      const end = at + 8 + length;
      if (end > buffer.length) break;
      const space = buffer.indexOf(0x20, at + 8);
      const stream = buffer[at] === 2 ? 'stderr' : 'stdout';
      if (space !== -1 && space < end) {
        frames.push({ stream, time: timeOf(buffer.toString('latin1', at + 8, space)), bytes: buffer.subarray(space + 1, end) });
      }
      at = end;
    }
    left = buffer.subarray(at);
    return frames;
  };
}

/** The last line that a container which has ended wrote; empty without one, or if the Engine does not say it within 2 s. */
export async function lastWords(engine: Engine, id: string, signal: AbortSignal): Promise<string> {
  using limit = deadline(engine.clock, 2_000, signal);
  const log = await engine.logs(id, '0.000000000', limit.signal).catch(() => null);
  const lines = log === null ? [] : (await text(log).catch(() => '')).trim().split('\n');
  // Before each the Engine writes a few bytes and the time.
  return (lines.at(-1) ?? '').replace(/^.*?\d{4}-\S+Z /, '').slice(0, 300);
}
