/**
 * Reads a log's records, in pieces as large as one read. Memory does not grow with the log.
 *
 * A reader counts what it has passed on. So it passes on repeated output once, and reports how much is missing before records
 * that are further on: the files of a log may be read in order at any speed while older ones are deleted.
 */
import { readFileSync, readSync } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';
import { attempt, codeOf } from '../base/errors.ts';
import { beyond, type Counts, gapPiece, isNone, none, plus } from '../contract/gap.ts';
import type { LogPiece } from '../contract/manager.ts';
import { start } from '../ports/runtime.ts';
import { openExisting } from '../system/files.ts';
import { partsOf, reading } from './parts.ts';
import { decodeHead, headSize, positionAfter, type RecordHead } from './record.ts';

const readSize = 256 * 1024;

export class Cursor {
  /** Bytes of the sandbox's output up to the current record. */
  #at: Counts = none;
  /** The same up to the furthest one that was passed on. */
  #seen: Counts = none;
  /** Bytes of the job's output that were passed on or reported missing. */
  #told: Counts = none;
  /** Holes before the current record, and those that were reported. */
  #holes = 0;
  #toldHoles = 0;

  /**
   * Takes the whole records of `bytes`, and joins neighbours of one stream in place: the pieces are parts of `bytes`, which it
   * changes. `next`: where the first incomplete record begins.
   */
  take(bytes: Buffer): { pieces: LogPiece[]; next: number; needs: number | null } {
    const pieces: LogPiece[] = [];
    let run: { readonly stream: 'stdout' | 'stderr'; readonly from: number; to: number } | null = null;
    const flush = (): void => {
      if (run !== null) pieces.push({ stream: run.stream, bytes: bytes.subarray(run.from, run.to) });
      run = null;
    };
    for (let next = 0; ; ) {
      const head = decodeHead(bytes, next);
      const size = headSize + (head?.length ?? 0);
      if (head === null || next + size > bytes.length) {
        flush();
        return { pieces, next, needs: head === null && bytes.length - next >= headSize ? null : size };
      }
      const body = next + headSize;
      next += size;
      if (head.type === 'note') {
        flush();
        pieces.push({ stream: 'note', bytes: bytes.subarray(body, next) });
        continue;
      }
      const fresh = this.#pass(head, bytes, body);
      if (head.type === 'position') {
        const isHole = this.#holes > this.#toldHoles;
        if (isNone(fresh) && !isHole) continue;
        flush();
        const holes = isHole ? 'here' : this.#toldHoles > 0 ? 'before' : undefined;
        pieces.push(gapPiece({ missing: fresh, after: this.#told, ...(holes === undefined ? {} : { holes }) }));
        this.#toldHoles = Math.max(this.#toldHoles, this.#holes);
      } else {
        const length = Math.min(fresh[head.type], head.length);
        if (length === 0) continue;
        if (run !== null && run.stream !== head.type) flush();
        const from = next - length;
        if (run === null) run = { stream: head.type, from, to: next };
        else {
          // Over the head between them, which was read.
          bytes.copyWithin(run.to, from, next);
          run.to += length;
        }
        this.#told = { ...this.#told, [head.type]: this.#told[head.type] + length };
        continue;
      }
      this.#told = plus(this.#told, fresh);
    }
  }

  /** Moves past one record and returns what is new in it. */
  #pass(head: RecordHead, bytes: Buffer, body: number): Counts {
    const position = positionAfter({ ...start, ...this.#at, holes: this.#holes }, head, bytes, body);
    [this.#at, this.#holes] = [position, position.holes];
    const fresh = beyond(this.#at, this.#seen);
    this.#seen = plus(this.#seen, fresh);
    return fresh;
  }
}

/**
 * Reads whole records from `from` to `end`. Returns the end of the last whole one. Recent output is in memory, so a short read is
 * synchronous; a long one leaves the event loop free.
 */
export async function* readRecords(file: FileHandle, from: number, end: number, cursor: Cursor): AsyncGenerator<LogPiece, number> {
  let offset = from;
  let wanted = readSize;
  while (offset + headSize <= end) {
    const bytes = Buffer.allocUnsafe(Math.min(wanted, end - offset));
    const length = await readAt(file, bytes, offset);
    const { pieces, next, needs } = cursor.take(bytes.subarray(0, length));
    if (next === 0) {
      // Less than one record: it is longer, or the end is torn.
      if (needs === null || needs > end - offset || length < bytes.length) return offset;
      wanted = needs;
      continue;
    }
    wanted = readSize;
    offset += next;
    yield* pieces;
  }
  return offset;
}

/** What was taken over from deleted parts, if anything. */
export function keptPieces(path: string, cursor: Cursor): LogPiece[] {
  try {
    return cursor.take(readFileSync(path)).pieces;
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return [];
    throw error;
  }
}

/** Reads a log that nobody writes to any more; nothing if there is none. */
export async function* readLog(path: string): AsyncGenerator<LogPiece, void> {
  const { parts, kept } = partsOf(path);
  const cursor = new Cursor();
  for (const [index, part] of [path, ...parts.map((one) => one.path)].entries()) {
    await using file = await openExisting(part);
    // Somebody may have deleted the beginning to free space.
    if (file === null) continue;
    if (index === 1) yield* keptPieces(kept, cursor);
    yield* readRecords(file, 0, (await file.stat()).size, cursor);
  }
}

async function readAt(file: FileHandle, bytes: Buffer, offset: number): Promise<number> {
  if (bytes.length <= 64 * 1024) return readSync(file.fd, bytes, 0, bytes.length, offset);
  return (await file.read(bytes, 0, bytes.length, offset)).bytesRead;
}

/** Bytes in which the first output begins: before it there are only the gate's markers and notes. */
const headOfLog = 16 * 1024;

/** When a log's first output was printed, by the clock of its runtime, ms since the epoch; null before the first output. */
export function firstOutputAt(path: string): number | null {
  const first = (file: number): number | null => {
    const bytes = Buffer.alloc(headOfLog);
    const read = bytes.subarray(0, readSync(file, bytes, 0, headOfLog, 0));
    for (let at = 0; ; ) {
      const head = decodeHead(read, at);
      if (head === null) return null;
      if ((head.type === 'stdout' || head.type === 'stderr') && head.length > 0) return Number(head.time / 1_000_000n);
      at += headSize + head.length;
    }
  };
  // People see the job also while its log cannot be read.
  return attempt(() => reading(path, first));
}
