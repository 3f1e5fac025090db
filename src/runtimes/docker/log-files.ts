/**
 * Follows a container's log in the files of the Engine's driver `local`, if they can be read. The Engine's API sends one message
 * per line, at a third of the speed, and Engine 20.10 skips files when it follows (docs/adr/0007).
 *
 * Nothing here changes a file. An open file stays readable after the Engine has deleted it, so a reader that looks once per file
 * loses nothing. A reader that falls behind counts what it leaves out, to the byte. Only what the Engine deletes before anybody
 * could open it has no size, and is reported as a gap without one.
 */
import { statSync } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { attempt } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import type { LogChunk, LogPosition } from '../../ports/runtime.ts';
import { openExisting } from '../../system/files.ts';
import { type LogFrame, Rejoiner } from '../rejoin.ts';
import { watchFolders } from '../watch.ts';

const currentName = 'container.log';
/** Bytes read at a time. */
const blockSize = 256 * 1024;
/** Names in a row without a file after which no further one is expected: two more than a rotation leaves free. */
const mostMissing = 3;
/** How often all names are opened at one look, while the driver rotates. */
const mostTries = 10;
/** ms between looks if the kernel reports no change. */
const slowLook = 1_000;

interface LogPart {
  readonly inode: bigint;
  readonly file: FileHandle;
  /** Output before it may be in a file that nobody opened in time. */
  readonly afterHole: boolean;
  /** The reader is too far behind to pass its output on, so its bytes are only counted. */
  readonly isOnlyCounted: boolean;
}

type Opened = Pick<LogPart, 'inode' | 'file'>;

/** Folder in which the driver keeps a container's log. */
export function logFolder(engineRoot: string, id: string): string {
  return join(engineRoot, 'containers', id, 'local-logs');
}

/** Whether the log can be read now. */
export function canRead(folder: string): boolean {
  return seenAt(join(folder, currentName)) !== null;
}

/**
 * Output after `from`, until `ended` has resolved and everything was read, or the files are gone. Up to `mostDeleted` unread
 * bytes of deleted files, which occupy the Engine's disk unseen, are kept (1 GiB). Beyond that the oldest are only counted.
 * @throws UnknownEntries, and what Node throws when reading fails
 */
export async function* followFiles(
  clock: Clock,
  folder: string,
  from: LogPosition,
  ended: Promise<void>,
  signal: AbortSignal,
  mostDeleted = 2 ** 30,
): AsyncGenerator<LogChunk[], void> {
  const rejoiner = new Rejoiner(from);
  const over = new AbortController();
  const stop = AbortSignal.any([signal, over.signal]);
  let hasEnded = false;
  const end = (): void => over.abort();
  void ended.then(() => {
    hasEnded = true;
    end();
  }, end);
  using watch = watchFolders(clock, [folder], stop);
  await using parts = new LogParts(folder, mostDeleted);
  await parts.look();
  for (let part = parts.next(); part !== null && !signal.aborted; part = parts.next()) {
    if (part.afterHole) rejoiner.hole();
    const entries = new EntryReader();
    let offset = 0;
    for (;;) {
      // Read before the look below: output before the end, or before the next file, must still be read.
      const complete = hasEnded;
      const { isOld, isBehind, size } = await parts.look();
      if (signal.aborted) return;
      if (part.isOnlyCounted || isBehind) {
        yield await countRest(part.file, offset, (block) => rejoiner.push(entries.push(block)));
        break;
      }
      // Otherwise sixteen idle containers would allocate 4 MiB of blocks per second.
      if (isOld || size === null || size > offset) {
        const block = Buffer.allocUnsafe(blockSize);
        const { bytesRead } = await part.file.read(block, 0, blockSize, offset);
        if (bytesRead > 0) {
          offset += bytesRead;
          const chunks = rejoiner.push(entries.push(block.subarray(0, bytesRead)));
          if (chunks.length > 0) yield chunks;
          continue;
        }
      }
      if (isOld) break;
      if (complete || (stop.aborted && !hasEnded)) {
        const last = rejoiner.end();
        if (last.length > 0) yield last;
        return;
      }
      await watch.next(slowLook);
    }
  }
  if (!signal.aborted) throw new UnknownEntries('no file');
}

/** The chunks of an old file from there on, without their bytes: each says how many it had. */
async function countRest(file: FileHandle, from: number, read: (block: Buffer) => readonly LogChunk[]): Promise<LogChunk[]> {
  const chunks: LogChunk[] = [];
  for (let offset = from; ; ) {
    // Anew each time: what is left of an entry stays in it.
    const block = Buffer.allocUnsafe(blockSize);
    const { bytesRead } = await file.read(block, 0, blockSize, offset);
    if (bytesRead === 0) return chunks;
    offset += bytesRead;
    for (const chunk of read(block.subarray(0, bytesRead))) {
      chunks.push({ ...chunk, bytes: Buffer.alloc(0), missing: chunk.bytes.length });
    }
  }
}

/** The driver's files, oldest first, each opened before it can be deleted. */
class LogParts {
  readonly #path: string;
  /** Bytes of deleted files that are kept for the reader. */
  readonly #mostDeleted: number;
  readonly #waiting: LogPart[] = [];
  #reading: LogPart | null = null;
  /** Inode of the newest file that was opened. */
  #newest: bigint | null = null;

  constructor(folder: string, mostDeleted: number) {
    this.#path = join(folder, currentName);
    this.#mostDeleted = mostDeleted;
  }

  /**
   * Opens new files. `isOld`: the file being read has a successor. `isBehind`: its successor is only to be counted. `size`: bytes
   * of the newest file; null if unseen.
   */
  async look(): Promise<{ readonly isOld: boolean; readonly isBehind: boolean; readonly size: number | null }> {
    const current = seenAt(this.#path);
    if (current !== null && current.inode !== this.#newest) {
      const files = await this.#openAll();
      const known = files.findIndex(({ inode }) => inode === this.#newest);
      const isLate = this.#newest !== null && known === -1;
      for (const { file } of files.slice(0, known + 1)) await file.close();
      const fresh = files.slice(known + 1);
      this.#waiting.push(...fresh.map((file, at) => ({ ...file, afterHole: isLate && at === 0, isOnlyCounted: false })));
      this.#newest = files.at(-1)?.inode ?? this.#newest;
      await this.#limit(({ inode }) => !files.some((file) => file.inode === inode));
    }
    const [next] = this.#waiting;
    return { isOld: next !== undefined, isBehind: next?.isOnlyCounted === true, size: current?.size ?? null };
  }

  /** The file to read now; null if there is none. */
  next(): LogPart | null {
    void this.#reading?.file.close().catch(() => {});
    this.#reading = this.#waiting.shift() ?? null;
    return this.#reading;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const part of [this.#reading, ...this.#waiting]) await part?.file.close().catch(() => {});
  }

  /** A reader that is slower than the job leaves out the oldest output. */
  async #limit(isDeleted: (part: LogPart) => boolean): Promise<void> {
    const waiting = this.#waiting;
    let size = 0;
    for (const part of waiting) if (isDeleted(part) && !part.isOnlyCounted) size += (await part.file.stat()).size;
    for (const [at, part] of waiting.entries()) {
      if (size <= this.#mostDeleted || !isDeleted(part)) break;
      if (!part.isOnlyCounted) size -= (await part.file.stat()).size;
      waiting[at] = { ...part, isOnlyCounted: true };
    }
  }

  /**
   * Every file, oldest first. A rotation renames files to the next number, oldest first, so meanwhile any one name is missing, and
   * a file moves only up. Opened from the newest on, past names that are missing, files may show twice, and none is skipped. After
   * two rotations meanwhile a number has a newer file than the one before it had, so the names are opened until the newest stays.
   */
  async #openAll(): Promise<Opened[]> {
    let all: Opened[] = [];
    for (let tries = 0; tries < mostTries; tries += 1) {
      const named = await this.#openNames(all);
      // What has no name any more is older than all that has.
      all = [...all.filter((file) => !named.includes(file)), ...named];
      if (seenAt(this.#path)?.inode === all.at(-1)?.inode) break;
    }
    return all;
  }

  /** What has a name, oldest first; of the files that are `known`, what was opened then. */
  async #openNames(known: readonly Opened[]): Promise<Opened[]> {
    const named: Opened[] = [];
    for (let number = 0, missing = 0; missing < mostMissing; number += 1) {
      const file = await openExisting(number === 0 ? this.#path : `${this.#path}.${number}`);
      missing = file === null ? missing + 1 : 0;
      if (file === null) continue;
      const { ino: inode } = await file.stat({ bigint: true });
      const before = [...known, ...named].find((opened) => opened.inode === inode);
      if (before !== undefined) await file.close();
      const opened = before ?? { inode, file };
      if (!named.includes(opened)) named.push(opened);
    }
    return named.reverse();
  }
}

function seenAt(path: string): { readonly inode: bigint; readonly size: number } | null {
  const seen = attempt(() => statSync(path, { bigint: true }));
  return seen === null ? null : { inode: seen.ino, size: Number(seen.size) };
}

/** Bytes of the longest entry: a piece of a line has at most 16 KiB, plus some metadata. */
const longest = 1 << 20;

/** The file does not have the expected format. */
class UnknownEntries extends Error {}

/**
 * The files of the Engine's log driver `local` (moby, daemon/logger/local): entries of `length u32 BE · LogEntry · length u32
 * BE`, where LogEntry is protobuf: 1 source · 2 time_nano · 3 line · 4 partial · 5 metadata of the partial (1 last · 2 id · 3
 * ordinal). Unchanged from Engine 18.09 to 28. Anything else is refused, and read through the API instead.
 *
 * Splits a file into frames, wherever it was cut. Frames share memory with the pushed chunks, which it changes (`endLine`). A line has
 * its newline, unless it continues in the next entry or never had one.
 */
export class EntryReader {
  /** Bytes of an incomplete entry. */
  #left: Buffer<ArrayBufferLike> = Buffer.alloc(0);

  /** @throws UnknownEntries */
  push(chunk: Buffer<ArrayBufferLike>): LogFrame[] {
    const buffer = this.#left.length === 0 ? chunk : Buffer.concat([this.#left, chunk]);
    const frames: LogFrame[] = [];
    let at = 0;
    while (at + 8 <= buffer.length) {
      const length = buffer.readUInt32BE(at);
      if (length > longest) throw new UnknownEntries(`an entry of ${length} bytes`);
      const end = at + 4 + length;
      if (end + 4 > buffer.length) break;
      if (buffer.readUInt32BE(end) !== length) throw new UnknownEntries('an entry without its end');
      const { source, time, lineAt, lineEnd, isPartial, isLast } = fieldsOf(buffer, at + 4, end);
      const bytes = isPartial && !isLast ? buffer.subarray(lineAt, lineEnd) : endLine(buffer, lineAt, lineEnd);
      frames.push({ stream: source === 0x65 ? 'stderr' : 'stdout', time, bytes });
      at = end + 4;
    }
    this.#left = buffer.subarray(at);
    return frames;
  }
}

/**
 * A line of an entry with its newline, without a copy: the newline overwrites the byte after the line. That byte is always one of the
 * entry's own, since its length follows its fields, so no other frame has it. The entry must have been read to its end before.
 */
export function endLine(buffer: Buffer<ArrayBufferLike>, from: number, to: number): Buffer<ArrayBufferLike> {
  buffer[to] = newline;
  return buffer.subarray(from, to + 1);
}

const newline = 10;

function fieldsOf(buffer: Buffer<ArrayBufferLike>, from: number, end: number) {
  const fields = { source: 0, time: 0n, lineAt: end, lineEnd: end, isPartial: false, isLast: false };
  let at = from;
  while (at < end) {
    const tag = buffer[at++] ?? 0;
    // Times have 63 bits, but numbers are exact only below 2^53, so a time is built from two numbers.
    let low = 0;
    let high = 0;
    let shift = 0;
    for (let byte = 0x80; byte >= 0x80; shift += 7) {
      if (at >= end || shift > 63) throw new UnknownEntries('a number without its end');
      byte = buffer[at++] ?? 0;
      if (shift < 28) low += (byte & 0x7f) * 2 ** shift;
      else high += (byte & 0x7f) * 2 ** (shift - 28);
    }
    const isBytes = (tag & 7) === 2;
    if (isBytes && at + low > end) throw new UnknownEntries('a field longer than its entry');
    switch (tag) {
      case 0x0a: // "stdout" and "stderr" differ in their fourth letter
        fields.source = buffer[at + 3] ?? 0;
        break;
      case 0x10:
        fields.time = (BigInt(high) << 28n) | BigInt(low);
        break;
      case 0x1a:
        fields.lineAt = at;
        fields.lineEnd = at + low;
        break;
      case 0x20:
        fields.isPartial = low !== 0;
        break;
      case 0x2a:
        fields.isLast = low >= 2 && buffer[at] === 0x08 && buffer[at + 1] === 1;
        break;
      default:
        if ((tag & 7) !== 0 && !isBytes) throw new UnknownEntries(`a field of kind ${tag & 7}`);
    }
    if (isBytes) at += low;
  }
  return fields;
}
