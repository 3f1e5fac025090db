/** Following a sandbox's log files: every byte once, live, in bounded pieces, from any position. */
import { existsSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { OnejobError } from '../../errors.ts';
import { advance } from '../position.ts';
import type { LogChunk, LogPosition } from '../runtime.ts';
import { codeOf, mayPass } from './identity.ts';
import { watchFolders } from './watch.ts';

const streams = ['stdout', 'stderr'] as const;
/** Bytes of one chunk at most. */
const chunkSize = 64 * 1024;
/** ms that output may still come after the exit: something the job left behind can hold a pipe open. */
const lingering = 2_000;
/** ms between looks when the kernel has told nothing. */
const slowLook = 1_000;
/** ms until what could not be read is tried again. */
const retryPause = 500;

/**
 * Yields what is in `folder` (an agent's `log` folder) after `from`, and returns once `hasExited` says so and all is
 * read, or the folder is gone. Reads on only when asked, so a slow reader costs no memory and stops nothing. What cannot
 * be read now is tried again: no free descriptor and a failing disk say nothing about the sandbox.
 * @throws OnejobError E_FILES when somebody took the files away.
 */
export async function* followLog(
  folder: string,
  from: LogPosition,
  hasExited: () => boolean,
  signal: AbortSignal,
): AsyncGenerator<LogChunk[]> {
  let at = from;
  while (!signal.aborted) {
    try {
      for await (const chunks of followOnce(folder, at, hasExited, signal)) {
        // Counted before it is given away: who takes it may throw, and that is no reason to give it again.
        at = chunks.reduce(advance, at);
        yield chunks;
      }
      return;
    } catch (error) {
      // Removed while it was read.
      if (codeOf(error) === 'ENOENT' && !existsSync(folder)) return;
      if (!mayPass(error)) throw lostLog(folder, error);
    }
    await pause(retryPause, undefined, { signal }).catch(() => {});
  }
}

async function* followOnce(
  folder: string,
  from: LogPosition,
  hasExited: () => boolean,
  signal: AbortSignal,
): AsyncGenerator<LogChunk[]> {
  using watch = watchFolders([folder], signal);
  const files: FileHandle[] = [];
  try {
    for (const stream of streams) files.push(await open(join(folder, stream)));
    let position = from;
    let exitedAt: number | null = null;
    let complete = false;
    while (!signal.aborted) {
      const chunks: LogChunk[] = [];
      for (const [i, stream] of streams.entries()) {
        const bytes = await readAt(files[i] as FileHandle, position[stream]);
        if (bytes.length === 0) continue;
        const wall = BigInt(Date.now()) * 1_000_000n;
        const chunk = { stream, time: wall > position.time ? wall : position.time, bytes };
        position = advance(position, chunk);
        chunks.push(chunk);
      }
      if (chunks.length > 0) {
        yield chunks;
        continue;
      }
      // Only what is read after the end was seen is all there is.
      if (complete) return;
      // No folder any more: removed, and what is still open of it will not grow.
      const closed = !existsSync(folder) || streams.every((stream) => existsSync(join(folder, `${stream}.end`)));
      if (exitedAt === null && hasExited()) exitedAt = performance.now();
      complete = exitedAt !== null && (closed || performance.now() - exitedAt > lingering);
      if (!complete) await watch.next(closed || exitedAt !== null ? 20 : slowLook);
    }
  } finally {
    for (const file of files) await file.close();
  }
}

async function readAt(file: FileHandle, position: number): Promise<Uint8Array> {
  const buffer = Buffer.allocUnsafe(chunkSize);
  const { bytesRead } = await file.read(buffer, 0, chunkSize, position);
  // A short piece must not keep a whole buffer alive.
  return bytesRead < chunkSize / 4 ? Uint8Array.from(buffer.subarray(0, bytesRead)) : buffer.subarray(0, bytesRead);
}

function lostLog(folder: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  const why = cause instanceof Error ? cause.message : String(cause);
  return new OnejobError('E_FILES', `Cannot follow the log in ${folder}: ${why}.`, { cause });
}
