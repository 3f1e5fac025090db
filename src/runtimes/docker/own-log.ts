/**
 * The output of a sandbox in an engine of its own: a file of this host that Podman's conmon appends to. It is read there and never
 * asked from the engine, so it is seen at once, and an engine that is slow, belongs to a job or was ended takes nothing of it away.
 *
 * Every line is `TIME stdout|stderr F|P bytes`; after P the line of the job continues. A job with all rights over its engine can write
 * anything into this file, which is its own log: what conmon would not write is skipped, and a stamp counts only if it is past.
 *
 * Nothing else bounds the file, so it is emptied once it is long and was read: conmon appends, so it begins anew. How much was in it
 * before is in a file next to it, which is written first.
 */
import { constants } from 'node:fs';
import { type FileHandle, open, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { codeOf } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import type { LogChunk, LogPosition } from '../../ports/runtime.ts';
import { jsonOf } from '../../system/json.ts';
import { watchFolders } from '../watch.ts';
import { inEngine } from './engine-program.ts';

/** Makes the file, which Podman's user is to write. */
export async function makeOwnLog(folder: string): Promise<void> {
  await using file = await open(join(folder, inEngine.log), 'w');
  await file.chmod(0o666);
}

/** Bytes read at a time. */
const blockSize = 256 * 1024;
/** Bytes of the longest line: conmon reads 8 KiB at a time. */
const longest = 64 * 1024;
/** Bytes after which the file is emptied, once they were read; and of which no more is read at all. */
const [longFile, hugeFile] = [64 * 2 ** 20, 2 ** 30];
/** ms between looks if the kernel reports no change. */
const slowLook = 1_000;

/** Output after `from`, until `over` has aborted and everything was read, or the file is gone. @throws what Node throws when reading fails */
export async function* followOwnLog(
  clock: Clock,
  folder: string,
  from: LogPosition,
  over: AbortSignal,
  signal: AbortSignal,
): AsyncGenerator<LogChunk[], void> {
  const file = await openLog(folder);
  if (file === null) return;
  await using _ = file;
  using watch = watchFolders(clock, [folder], AbortSignal.any([signal, over]));
  const before = await emptiedBefore(folder, file);
  const read = new LineReader(clock, from, before);
  let isHole = before.stdout > from.stdout || before.stderr > from.stderr;
  let offset = 0;
  while (!signal.aborted) {
    // Read before the look below: what was written before the end must still be read.
    const isComplete = over.aborted;
    const { size } = await file.stat();
    if (size > offset && size < hugeFile) {
      const block = Buffer.allocUnsafe(blockSize);
      const { bytesRead } = await file.read(block, 0, blockSize, offset);
      offset += bytesRead;
      const chunks = read.push(block.subarray(0, bytesRead));
      const [first, ...others] = chunks;
      if (first !== undefined) yield isHole ? [{ ...first, gap: true }, ...others] : chunks;
      if (first !== undefined) isHole = false;
      if (bytesRead > 0) continue;
    }
    if (isComplete) return;
    if (size >= longFile && (read.isAtLine || size >= hugeFile)) {
      await empty(folder, file, { ...read.seen, size });
      isHole ||= offset < size;
      offset = 0;
    }
    await watch.next(slowLook);
  }
}

/** null: the sandbox is gone. No job can change the folder, so nobody can have put a link there; not to follow one costs nothing. */
async function openLog(folder: string): Promise<FileHandle | null> {
  try {
    return await open(join(folder, inEngine.log), constants.O_RDWR | constants.O_NOFOLLOW);
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return null;
    throw error;
  }
}

/** Bytes of each stream that were in the file before it was emptied. `size`: its own then; null: it is empty since. */
const emptiedSchema = z.object({ stdout: z.number(), stderr: z.number(), size: z.number().nullable() });
type Emptied = z.infer<typeof emptiedSchema>;

async function emptiedBefore(folder: string, file: FileHandle): Promise<Omit<Emptied, 'size'>> {
  const none = { stdout: 0, stderr: 0 };
  const { success, data } = emptiedSchema.safeParse(jsonOf(await readFile(pathOfEmptied(folder), 'utf8').catch(() => '')));
  // A manager that was killed in between may not have emptied it.
  return success && (data.size === null || (await file.stat()).size < data.size) ? data : none;
}

async function empty(folder: string, file: FileHandle, emptied: Emptied): Promise<void> {
  const note = async (what: Emptied): Promise<void> => {
    await writeFile(`${pathOfEmptied(folder)}.new`, JSON.stringify(what));
    await rename(`${pathOfEmptied(folder)}.new`, pathOfEmptied(folder));
  };
  await note(emptied);
  await file.truncate(0);
  await note({ ...emptied, size: null });
}

function pathOfEmptied(folder: string): string {
  return join(folder, `${inEngine.log}.emptied`);
}

/** Makes chunks of such lines, wherever they were cut. They share memory with what was pushed. */
class LineReader {
  readonly #clock: Clock;
  /** Bytes of each stream that were kept before, and are in the file. */
  readonly #toSkip: { stdout: number; stderr: number };
  /** Bytes of each stream, with those before the file was emptied. */
  readonly seen: { stdout: number; stderr: number };
  #time: bigint;
  #left: Buffer<ArrayBufferLike> = Buffer.alloc(0);

  constructor(clock: Clock, { time, stdout, stderr }: LogPosition, before: { readonly stdout: number; readonly stderr: number }) {
    this.#clock = clock;
    this.#time = time;
    this.#toSkip = { stdout: Math.max(0, stdout - before.stdout), stderr: Math.max(0, stderr - before.stderr) };
    this.seen = { stdout: before.stdout, stderr: before.stderr };
  }

  /** Nothing was pushed of the next line. */
  get isAtLine(): boolean {
    return this.#left.length === 0;
  }

  push(block: Buffer<ArrayBufferLike>): LogChunk[] {
    const buffer = this.#left.length === 0 ? block : Buffer.concat([this.#left, block]);
    const runs: { readonly stream: LogChunk['stream']; readonly parts: Uint8Array[]; time: bigint }[] = [];
    let at = 0;
    for (let end = buffer.indexOf(newline, at); end !== -1; at = end + 1, end = buffer.indexOf(newline, at)) {
      const line = this.#line(buffer, at, end);
      if (line === null || line.bytes.length === 0) continue;
      const last = runs.at(-1);
      if (last?.stream !== line.stream) runs.push({ stream: line.stream, parts: [line.bytes], time: this.#time });
      else {
        last.parts.push(line.bytes);
        last.time = this.#time;
      }
    }
    const rest = buffer.subarray(at);
    this.#left = rest.length > longest ? Buffer.alloc(0) : rest;
    return runs.map(({ stream, time, parts: [first = none, ...more] }) => ({
      stream,
      time,
      bytes: more.length === 0 ? first : Buffer.concat([first, ...more]),
    }));
  }

  /** The new bytes of one line; null if conmon would not write it. */
  #line(buffer: Buffer<ArrayBufferLike>, from: number, end: number) {
    const match = head.exec(buffer.toString('latin1', from, Math.min(end, from + longestHead)));
    const [whole, stamp, , kind] = match ?? [];
    if (whole === undefined || stamp === undefined) return null;
    const stream = match?.[2] === 'stderr' ? 'stderr' : 'stdout';
    const bytes = buffer.subarray(from + whole.length, kind === 'F' ? end + 1 : end);
    this.seen[stream] += bytes.length;
    const skipped = Math.min(bytes.length, this.#toSkip[stream]);
    this.#toSkip[stream] -= skipped;
    if (skipped < bytes.length) this.#see(stamp);
    return { stream, bytes: bytes.subarray(skipped) } as const;
  }

  /** Times never go back, nor ahead of the clock. */
  #see(stamp: string): void {
    const ms = Date.parse(`${stamp.slice(0, 19)}${stamp.slice(29)}`);
    if (Number.isNaN(ms) || ms > this.#clock.wall()) return;
    const time = BigInt(ms) * 1_000_000n + BigInt(stamp.slice(20, 29));
    if (time > this.#time) this.#time = time;
  }
}

const newline = 10;
const none = new Uint8Array(0);
const longestHead = 50;
const head = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP]) /;
