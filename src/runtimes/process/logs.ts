/** Follows a sandbox's log files from any position: every byte once, live, in bounded pieces. */
import { existsSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { advance, type LogChunk, type LogPosition } from '../../ports/runtime.ts';
import { namesIn } from '../../system/files.ts';
import { mayPass } from '../../system/process-identity.ts';
import { watchFolders } from '../watch.ts';

const streams = ['stdout', 'stderr'] as const;
/** Maximum bytes of one chunk. */
const chunkSize = 64 * 1024;
/** ms that output may still arrive after the exit: a process that the job left behind can hold a pipe open. */
const lingering = 2_000;
/** ms between looks if the kernel reports no change. */
const slowLook = 1_000;
/** ms until a failed read is tried again. */
const retryPause = 500;

/**
 * Yields what is in `folder` (an agent's `log` folder) after `from`. Returns once `hasExited` and everything was read, or the
 * folder is gone. Reads only on demand, so a slow reader costs no memory and stops nothing. A failed read is tried again: a lack
 * of descriptors or a failing disk says nothing about the sandbox.
 * @throws OnejobError E_FILES if somebody removed the files
 */
export async function* followLog(clock: Clock, folder: string, from: LogPosition, hasExited: () => boolean, signal: AbortSignal) {
  let at = from;
  while (!signal.aborted) {
    try {
      for await (const chunks of followOnce(clock, folder, at, hasExited, signal)) {
        // Counted before the yield: a consumer that throws must not get it again.
        at = chunks.reduce(advance, at);
        yield chunks;
      }
      return;
    } catch (error) {
      if (codeOf(error) === 'ENOENT' && !existsSync(folder)) return;
      if (!mayPass(error)) throw lostLog(folder, error);
    }
    await sleep(clock, retryPause, signal);
  }
}

async function* followOnce(clock: Clock, folder: string, from: LogPosition, hasExited: () => boolean, signal: AbortSignal) {
  using watch = watchFolders(clock, [folder], signal);
  await using readers = new AsyncDisposableStack();
  const parts = streams.map((stream) => readers.use(createStreamReader(folder, stream)));
  for (const part of parts) await part.open(from[part.stream]);
  let position = from;
  let exitedAt: number | null = null;
  let complete = false;
  while (!signal.aborted) {
    const chunks: LogChunk[] = [];
    for (const part of parts) {
      const { bytes, missing } = await part.read(position[part.stream]);
      if (bytes.length === 0) continue;
      const wall = BigInt(clock.wall()) * 1_000_000n;
      const time = wall > position.time ? wall : position.time;
      const chunk = { stream: part.stream, time, bytes, ...(missing > 0 && { missing }) };
      position = advance(position, chunk);
      chunks.push(chunk);
    }
    if (chunks.length > 0) {
      yield chunks;
      continue;
    }
    // The log is complete only if it was read after the end was seen.
    if (complete) return;
    // Without the folder the sandbox was removed, and its open files do not grow.
    const closed = !existsSync(folder) || streams.every((stream) => existsSync(join(folder, `${stream}.end`)));
    if (exitedAt === null && hasExited()) exitedAt = clock.now();
    complete = exitedAt !== null && (closed || clock.now() - exitedAt > lingering);
    if (!complete) await watch.next(closed || exitedAt !== null ? 20 : slowLook);
  }
}

interface Segment {
  readonly name: string;
  /** Bytes of the stream before it. */
  readonly start: number;
}

/** The files of one stream (`supervisor.ts`), oldest first. */
async function segmentsOf(folder: string, stream: string): Promise<Segment[]> {
  const segments = (await namesIn(folder)).flatMap((name): Segment[] => {
    if (name === stream) return [{ name, start: 0 }];
    const start = name.startsWith(`${stream}.`) ? name.slice(stream.length + 1) : '';
    return /^\d+$/.test(start) ? [{ name, start: Number(start) }] : [];
  });
  return segments.sort((a, b) => a.start - b.start);
}

/** Reads one stream across its files. An open file stays readable when the supervisor deletes it. */
function createStreamReader(folder: string, stream: (typeof streams)[number]) {
  let current: { readonly file: FileHandle; readonly start: number } | null = null;

  const enter = async (segment: Segment): Promise<void> => {
    const file = await open(join(folder, segment.name));
    await current?.file.close();
    current = { file, start: segment.start };
  };
  /** The last file that begins at `position` or before, else the first one. */
  const find = async (position: number): Promise<Segment | null> => {
    const segments = await segmentsOf(folder, stream);
    return segments.findLast(({ start }) => start <= position) ?? segments[0] ?? null;
  };

  return {
    stream,
    /** @throws what Node throws: a file always exists, unless somebody removed it */
    async open(position: number): Promise<void> {
      await enter((await find(position)) ?? { name: stream, start: 0 });
    },
    /** Bytes at `position`, or at the next kept one, and how many are missing before. Empty: nothing more for now. */
    async read(position: number): Promise<{ readonly bytes: Uint8Array; readonly missing: number }> {
      while (current !== null) {
        const at = Math.max(position, current.start);
        const bytes = await readAt(current.file, at - current.start);
        if (bytes.length > 0) return { bytes, missing: at - position };
        // A file with a successor does not grow any more, but may have grown since it was read.
        const { start } = current;
        const next = (await segmentsOf(folder, stream)).find((segment) => segment.start > start);
        if (next === undefined) return { bytes, missing: 0 };
        const rest = await readAt(current.file, at - start);
        if (rest.length > 0) return { bytes: rest, missing: at - position };
        await enter(next);
      }
      return { bytes: new Uint8Array(0), missing: 0 };
    },
    async [Symbol.asyncDispose]() {
      await current?.file.close();
    },
  };
}

async function readAt(file: FileHandle, position: number): Promise<Uint8Array> {
  const buffer = Buffer.allocUnsafe(chunkSize);
  const { bytesRead } = await file.read(buffer, 0, chunkSize, position);
  // A short piece must not keep a whole buffer in memory.
  return bytesRead < chunkSize / 4 ? Uint8Array.from(buffer.subarray(0, bytesRead)) : buffer.subarray(0, bytesRead);
}

function lostLog(folder: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  return new OnejobError('E_FILES', `Cannot follow the log in ${folder}: ${messageOf(cause)}.`, { cause });
}
