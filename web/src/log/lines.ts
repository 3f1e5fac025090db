/**
 * A log's bytes as lines, in blocks that do not change once they are full. Every line knows where it begins, so that the log can
 * be read again from there.
 */
import { type Look, piecesOf, usual } from './ansi.ts';
import type { Counts } from './frames.ts';

type Stream = 'stdout' | 'stderr';

export interface Line {
  readonly key: number;
  readonly stream: Stream | 'note';
  /** With its escape sequences. */
  readonly text: string;
  /** The look in which it begins. */
  readonly look: Look;
}

export interface Block {
  readonly key: number;
  readonly lines: readonly Line[];
  /** Bytes of the job's output in it. */
  readonly counts: Counts;
  /** Characters. */
  readonly size: number;
}

export const blockLines = 100;
/** Bytes of a line; a longer one is broken. */
export const longestLine = 16_384;
const newline = 10;
export const nothing: Counts = { stdout: 0, stderr: 0 };

export function plus(a: Counts, b: Counts): Counts {
  return { stdout: a.stdout + b.stdout, stderr: a.stderr + b.stderr };
}

export function minus(a: Counts, b: Counts): Counts {
  return { stdout: a.stdout - b.stdout, stderr: a.stderr - b.stderr };
}

export type LineReader = ReturnType<typeof createLineReader>;

/** `onLine` gets each line once it is complete; `bytes` is what it took of its stream. */
export function createLineReader(onLine: (stream: Stream, text: string, bytes: number) => void) {
  const held: Record<Stream, Uint8Array[]> = { stdout: [], stderr: [] };
  const sizes: Record<Stream, number> = { stdout: 0, stderr: 0 };
  const decoder = new TextDecoder();

  const end = (stream: Stream, last: Uint8Array, newlines: number) => {
    const parts = [...held[stream], last];
    const bytes = sizes[stream] + last.length + newlines;
    held[stream] = [];
    sizes[stream] = 0;
    onLine(stream, lineText(parts, decoder), bytes);
  };

  return {
    push(stream: Stream, bytes: Uint8Array): void {
      let at = 0;
      while (at < bytes.length) {
        const room = longestLine - sizes[stream];
        const found = bytes.indexOf(newline, at);
        const stop = found === -1 ? bytes.length : found;
        if (stop - at > room) {
          const cut = at + boundary(bytes, at, room);
          end(stream, bytes.subarray(at, cut), 0);
          at = cut;
        } else if (found === -1) {
          // A copy, as this part may be of a large chunk.
          held[stream].push(bytes.slice(at));
          sizes[stream] += bytes.length - at;
          at = bytes.length;
        } else {
          end(stream, bytes.subarray(at, found), 1);
          at = found + 1;
        }
      }
    },
    /** What has no line end yet. */
    get open(): { readonly stream: Stream; readonly text: string }[] {
      return (['stdout', 'stderr'] as const).flatMap((stream) =>
        sizes[stream] === 0 ? [] : [{ stream, text: lineText(held[stream], decoder) }],
      );
    },
    /** Bytes of it. */
    get openBytes(): Counts {
      return { ...sizes };
    },
  };
}

/** Not in the middle of a character of UTF-8; at least something. */
function boundary(bytes: Uint8Array, from: number, room: number): number {
  let cut = Math.max(1, room);
  while (cut > Math.max(1, room - 3) && ((bytes[from + cut] ?? 0) & 0xc0) === 0x80) cut -= 1;
  return cut;
}

/** What a terminal would show in the end: what a progress bar overwrote is left out. */
function lineText(parts: readonly Uint8Array[], decoder: TextDecoder): string {
  const text =
    parts.length === 1
      ? decoder.decode(parts[0])
      : parts.map((part) => decoder.decode(part, { stream: true })).join('') + decoder.decode();
  const ended = text.replace(/\r+$/, '');
  return ended.slice(ended.lastIndexOf('\r') + 1);
}

/** Lines in blocks. */
export class Blocks {
  #full: Block[] = [];
  #last: Line[] = [];
  #lastCounts = nothing;
  #lastSize = 0;
  #looks: Record<Stream, Look> = { stdout: usual, stderr: usual };
  readonly #nextKey: () => number;
  lines = 0;
  /** Characters. */
  size = 0;

  /** Keys of lines differ as those of `nextKey` do. */
  constructor(nextKey: () => number) {
    this.#nextKey = nextKey;
  }

  add(stream: Stream | 'note', text: string, counts: Counts): void {
    const line: Line = { key: this.#nextKey(), stream, text, look: stream === 'note' ? usual : this.#looks[stream] };
    if (stream !== 'note' && (text.includes('\u001b') || text.includes('\u009b'))) {
      this.#looks[stream] = piecesOf(text, line.look).end;
    }
    this.#last.push(line);
    this.#lastCounts = plus(this.#lastCounts, counts);
    this.#lastSize += text.length;
    this.lines += 1;
    this.size += text.length;
    if (this.#last.length >= blockLines) this.#full.push(this.#close());
  }

  #close(): Block {
    const block = { key: this.#last[0]?.key ?? 0, lines: this.#last, counts: this.#lastCounts, size: this.#lastSize };
    [this.#last, this.#lastCounts, this.#lastSize] = [[], nothing, 0];
    return block;
  }

  /** Of now; full blocks stay the same objects. */
  list(): Block[] {
    if (this.#last.length === 0) return [...this.#full];
    const growing = { key: this.#last[0]?.key ?? 0, lines: [...this.#last], counts: this.#lastCounts, size: this.#lastSize };
    return [...this.#full, growing];
  }

  /** Of all lines. */
  get counts(): Counts {
    return this.#full.reduce((sum, { counts }) => plus(sum, counts), this.#lastCounts);
  }

  /** The look in which an open line begins. */
  lookOf(stream: Stream): Look {
    return this.#looks[stream];
  }

  /** Takes full blocks away from the front until at most so much is left. Returns what was in them. */
  trimFront({ lines, size }: Limits): { readonly counts: Counts; readonly lines: number } {
    let taken = { counts: nothing, lines: 0 };
    while (this.lines > lines || this.size > size) {
      const first = this.#full.shift();
      if (first === undefined) break;
      this.lines -= first.lines.length;
      this.size -= first.size;
      taken = { counts: plus(taken.counts, first.counts), lines: taken.lines + first.lines.length };
    }
    return taken;
  }

  /** Puts blocks before all others, and takes some away from the end until at most so much is left. True if some were taken. */
  prepend(blocks: readonly Block[], { lines, size }: Limits): boolean {
    if (this.#last.length > 0) this.#full.push(this.#close());
    this.#full.unshift(...blocks);
    for (const block of blocks) {
      this.lines += block.lines.length;
      this.size += block.size;
    }
    let taken = false;
    while ((this.lines > lines || this.size > size) && this.#full.length > 1) {
      const last = this.#full.pop();
      if (last === undefined) break;
      this.lines -= last.lines.length;
      this.size -= last.size;
      taken = true;
    }
    return taken;
  }
}

/** Of a window; `size` in characters. */
export interface Limits {
  readonly lines: number;
  readonly size: number;
}
