/**
 * The files of one log. `AGENT.log` has the beginning of the output and is written once. Output beyond its share is in
 * `AGENT.log.a` and `.b` in turn: when both are full the older one is deleted, and what must stay of it is written to
 * `AGENT.log.kept`. All but the first begin with a `position` record, so their order and the gaps between them are known.
 */
import { closeSync, fstatSync, openSync, readSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { codeOf } from '../base/errors.ts';
import { type Counts, isNone, streams } from '../contract/gap.ts';
import { type LogPosition, start as origin } from '../ports/runtime.ts';
import { decodeHead, encodeHead, encodePosition, headSize, positionAfter, positionSize, type RecordHead } from './record.ts';

/** Maximum bytes of `.a` and of `.b`. */
const largestPart = 16 * 2 ** 20;
const readSize = 256 * 1024;

export interface Part {
  readonly path: string;
  readonly start: LogPosition;
}

/** Bytes of output in the first file, and in each further one. */
export interface Shares {
  readonly first: number;
  readonly part: number;
}

/**
 * How a limit is divided. Output below it is kept whole; of more, the beginning and at least a quarter, or 16 MiB, of the end. A
 * part is not much smaller than what is taken over from it, which would otherwise be rewritten for every few bytes.
 */
export function sharesOf(limit: number, endKept: number): Shares {
  const part = Math.min(largestPart, Math.ceil(Math.max(limit, endKept) / 4));
  return { first: Math.max(0, limit - 2 * part), part };
}

/** Bytes on disk, with heads, at which a file with this share is full: output may arrive byte by byte, each with a head. */
export function roomForLog(share: number): number {
  return 2 * share + 64 * 1024;
}

const later = (path: string) => [`${path}.a`, `${path}.b`] as const;

/** The parts but the first, in order. Writes nothing. */
export function partsOf(path: string): { readonly parts: readonly Part[]; readonly kept: string; readonly broken: string[] } {
  const parts: Part[] = [];
  const broken: string[] = [];
  for (const part of later(path)) {
    const start = positionAt(part);
    if (start === 'broken') broken.push(part);
    else if (start !== null) parts.push({ path: part, start });
  }
  return { parts: parts.sort((a, b) => total(a.start) - total(b.start)), kept: `${path}.kept`, broken };
}

export function nextPart(path: string, parts: readonly Part[]): string {
  const [a, b] = later(path);
  return parts.at(-1)?.path === a ? b : a;
}

export function filesOf(path: string): string[] {
  return [path, ...later(path), `${path}.kept`, `${path}.kept.new`];
}

/**
 * Takes over what must stay of a part that is about to be deleted: the last `wanted` bytes of each stream, or fewer. Repeating it
 * for the same part changes nothing. `wanted` bounds the memory, not the size of the files.
 */
export function takeOver(kept: string, part: Part, end: LogPosition, wanted: Counts): void {
  if (isNone(wanted)) {
    rmSync(kept, { force: true });
    return;
  }
  if (hasTakenOver(kept, end)) return;
  const tail = new Tail(wanted);
  let position = origin;
  const goTo = (next: LogPosition): void => {
    for (const stream of streams) if (next[stream] !== position[stream] || next.holes !== position.holes) tail.forget(stream);
    position = next;
  };
  for (const path of [kept, part.path]) {
    reading(path, (file) =>
      eachRecord(file, (head, bytes, at) => {
        const next = positionAfter(position, head, bytes, at);
        if (head.type === 'position') goTo(next);
        else if (head.type !== 'note') {
          // The position of output before dropped bytes is unknown.
          if (head.dropped > 0) tail.forget(head.type);
          tail.push(head.type, bytes.subarray(at, at + head.length));
          position = next;
        }
      }),
    );
  }
  goTo({ ...origin, ...end });
  const start = {
    stdout: end.stdout - tail.lengthOf('stdout'),
    stderr: end.stderr - tail.lengthOf('stderr'),
    holes: end.holes,
  };
  writeFileSync(`${kept}.new`, Buffer.concat([encodePosition({ ...origin, ...start }), ...tail.records()]), { mode: 0o600 });
  renameSync(`${kept}.new`, kept);
}

/** Whether `kept` ends there. */
export function hasTakenOver(kept: string, end: Counts): boolean {
  let has = origin;
  reading(kept, (file) =>
    eachRecord(file, (head, bytes, at) => {
      has = positionAfter(has, head, bytes, at);
    }),
  );
  return has !== origin && has.stdout >= end.stdout && has.stderr >= end.stderr;
}

type Stream = (typeof streams)[number];

/** Bytes by which a piece may move past those of the other stream, to be joined with its own stream. */
const joinedOver = 128;

/**
 * The last bytes of each stream, and their order. Streams that alternate byte by byte would need a head for each, so nearby
 * pieces are joined: heads take at most a third of the size.
 */
class Tail {
  readonly #wanted: Counts;
  /** Twice the wanted length, so that bytes move to the front only now and then. */
  readonly #bytes: Readonly<Record<Stream, Buffer>>;
  readonly #filled = { stdout: 0, stderr: 0 };
  readonly #runs: { readonly stream: Stream; length: number }[] = [];
  /** Bytes that were moved before the last run although they came after its beginning. */
  #moved = 0;

  constructor(wanted: Counts) {
    this.#wanted = wanted;
    this.#bytes = { stdout: Buffer.allocUnsafe(2 * wanted.stdout), stderr: Buffer.allocUnsafe(2 * wanted.stderr) };
  }

  lengthOf(stream: Stream): number {
    return Math.min(this.#wanted[stream], this.#filled[stream]);
  }

  push(stream: Stream, body: Buffer): void {
    const wanted = this.#wanted[stream];
    if (wanted === 0 || body.length === 0) return;
    const bytes = this.#bytes[stream];
    const more = body.length > wanted ? body.subarray(body.length - wanted) : body;
    if (this.#filled[stream] + more.length > bytes.length) {
      bytes.copyWithin(0, this.#filled[stream] - wanted, this.#filled[stream]);
      this.#filled[stream] = wanted;
    }
    bytes.set(more, this.#filled[stream]);
    this.#filled[stream] += more.length;
    this.#count(stream, more.length);
  }

  forget(stream: Stream): void {
    this.#filled[stream] = 0;
  }

  /** Heads and bodies, alternating. */
  records(): Buffer[] {
    const left = { stdout: this.lengthOf('stdout'), stderr: this.lengthOf('stderr') };
    const pieces: Buffer[] = [];
    for (const { stream, length: had } of this.#runs.reverse()) {
      const length = Math.min(had, left[stream]);
      if (length === 0) continue;
      left[stream] -= length;
      const from = this.#filled[stream] - this.lengthOf(stream) + left[stream];
      const head = encodeHead({ type: stream, time: 0n, atTime: 0, dropped: 0, length });
      pieces.push(this.#bytes[stream].subarray(from, from + length), head);
    }
    return pieces.reverse();
  }

  #count(stream: Stream, length: number): void {
    const before = this.#runs.at(-2);
    const last = this.#runs.at(-1);
    if (last?.stream === stream) last.length += length;
    else if (before !== undefined && last !== undefined && last.length + this.#moved + length < joinedOver) {
      before.length += length;
      this.#moved += length;
    } else {
      this.#runs.push({ stream, length });
      this.#moved = 0;
    }
  }
}

/**
 * Visits the whole records of an open file, and returns where the last one ends. The body of each is at `at`, and must not be
 * kept.
 */
export function eachRecord(file: number, visit: (head: RecordHead, bytes: Buffer, at: number) => void): number {
  const end = fstatSync(file).size;
  let buffer = Buffer.allocUnsafe(Math.min(end, readSize));
  let offset = 0;
  while (offset + headSize <= end) {
    const bytes = buffer.subarray(0, readSync(file, buffer, 0, buffer.length, offset));
    let at = 0;
    for (let head = decodeHead(bytes, at); ; head = decodeHead(bytes, at)) {
      if (head === null || at + headSize + head.length > bytes.length) {
        const size = headSize + (head?.length ?? 0);
        // A torn end, or not a record.
        if (offset + at + size > end || (at === 0 && (head === null || size <= buffer.length))) return offset + at;
        if (at === 0) buffer = Buffer.allocUnsafe(size);
        break;
      }
      visit(head, bytes, at + headSize);
      at += headSize + head.length;
    }
    offset += at;
  }
  return offset;
}

/** Reads a file if it exists; null if not. */
export function reading<T>(path: string, read: (file: number) => T): T | null {
  // Usually there are no further parts, and an error costs more than a look.
  if (statSync(path, { throwIfNoEntry: false }) === undefined) return null;
  let file: number;
  try {
    file = openSync(path, 'r');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return null;
    throw error;
  }
  try {
    return read(file);
  } finally {
    closeSync(file);
  }
}

/** The position in a part's first record; null if there is no such part. */
function positionAt(path: string): LogPosition | 'broken' | null {
  return reading(path, (file) => {
    const bytes = Buffer.alloc(headSize + positionSize);
    const length = readSync(file, bytes, 0, bytes.length, 0);
    const head = decodeHead(bytes, 0);
    if (length < bytes.length || head?.type !== 'position') return 'broken';
    return positionAfter(origin, head, bytes, headSize);
  });
}

function total({ stdout, stderr }: Counts): number {
  return stdout + stderr;
}
