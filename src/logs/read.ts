/** Reading a log file's records back, in pieces that are as large as one read allows. Memory does not grow with the file. */
import { readSync } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';
import { open } from 'node:fs/promises';
import type { LogPiece } from '../api/manager.ts';
import { decodeHead, headSize, type RecordType } from './record.ts';

/** `next` is the place in the file right after this piece: reading goes on from there. */
export interface PlacedPiece extends LogPiece {
  readonly next: number;
}

const readSize = 256 * 1024;

/**
 * Reads whole records from `from` up to `end`. Returns after the last whole record with where that was.
 * What was written a moment ago is in memory, so a short read is done at once; a long one leaves the event loop free.
 */
export async function* readRecords(file: FileHandle, from: number, end: number): AsyncGenerator<PlacedPiece, number> {
  let offset = from;
  let wanted = readSize;
  while (offset + headSize <= end) {
    const bytes = Buffer.allocUnsafe(Math.min(wanted, end - offset));
    const length = await readAt(file, bytes, offset);
    const { pieces, next, needs } = parse(bytes.subarray(0, length), offset);
    if (next === offset) {
      // Not one whole record: a longer one, or a torn end.
      if (needs === null || needs > end - offset || length < bytes.length) return offset;
      wanted = needs;
      continue;
    }
    wanted = readSize;
    offset = next;
    yield* pieces;
  }
  return offset;
}

/** Reads a log that nobody writes any more. */
export async function* readLog(path: string, from = 0): AsyncGenerator<PlacedPiece, void> {
  const file = await open(path, 'r');
  try {
    yield* readRecords(file, from, (await file.stat()).size);
  } finally {
    await file.close();
  }
}

async function readAt(file: FileHandle, bytes: Buffer, offset: number): Promise<number> {
  if (bytes.length <= 64 * 1024) return readSync(file.fd, bytes, 0, bytes.length, offset);
  return (await file.read(bytes, 0, bytes.length, offset)).bytesRead;
}

interface Parsed {
  readonly pieces: PlacedPiece[];
  readonly next: number;
  /** Bytes the first record takes, when not even that one is whole. */
  readonly needs: number | null;
}

/** Takes whole records from `bytes`, joining neighbours of one stream. */
function parse(bytes: Buffer, start: number): Parsed {
  const pieces: PlacedPiece[] = [];
  let run: { type: RecordType; parts: Buffer[] } | null = null;
  let at = 0;
  const flush = (): void => {
    if (run !== null && run.type !== 'position') {
      const [only] = run.parts;
      const joined = run.parts.length === 1 && only !== undefined ? only : Buffer.concat(run.parts);
      pieces.push({ stream: run.type, bytes: joined, next: start + at });
    }
    run = null;
  };
  for (;;) {
    const head = decodeHead(bytes, at);
    if (head === null) {
      flush();
      return { pieces, next: start + at, needs: bytes.length - at < headSize ? headSize : null };
    }
    const size = headSize + head.length;
    if (at + size > bytes.length) {
      flush();
      return { pieces, next: start + at, needs: size };
    }
    if (head.length > 0 && head.type !== 'position') {
      // Notes are lines of their own and are never joined.
      if (run === null || run.type !== head.type || head.type === 'note') {
        flush();
        run = { type: head.type, parts: [] };
      }
      run.parts.push(bytes.subarray(at + headSize, at + size));
    }
    at += size;
  }
}
