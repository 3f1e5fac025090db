/**
 * Joins an Engine's log messages to the bytes that the job wrote, with time stamps from which reading can continue.
 *
 * A line over 16 KiB comes as messages with the same time stamp. `local` up to Engine 20.10 drops the newline at the end of such
 * a line; it is restored as soon as the stream continues. A last line of over 16 KiB gets one in any case: both look the same.
 *
 * The stamps of the two streams interleave, and the messages of a long line carry the time of its beginning, so stamps go back
 * and forth. A chunk's time is therefore that of the latest message so far. It never goes back, and does not depend on where
 * reading began, if that was early enough.
 */
import type { LogChunk, LogPosition } from '../ports/runtime.ts';

/** One message of a log. */
export interface LogFrame {
  readonly stream: 'stdout' | 'stderr';
  /** Nanoseconds since the epoch. */
  readonly time: bigint;
  readonly bytes: Buffer<ArrayBufferLike>;
}

/** Bytes per message of a long line (moby, daemon/logger/copier.go). */
const pieceSize = 16 * 1024;

interface OpenLine {
  readonly time: bigint;
  readonly pieces: number;
  /** Its last piece was short, so the line has ended and its newline was dropped. */
  readonly owesNewline: boolean;
}

/** ns by which messages of the two streams may be stored out of order. */
export const slack = 10_000_000_000n;

export class Rejoiner {
  #time = 0n;
  #open: { stdout: OpenLine | null; stderr: OpenLine | null } = { stdout: null, stderr: null };
  /** Messages that were kept before are skipped: first up to that of the position's time, then this many. */
  #seeking: bigint | null;
  #toSkip: number;
  #gap = false;
  #wentBack = false;

  constructor(from: LogPosition) {
    this.#seeking = from.time === 0n ? null : from.time;
    this.#toSkip = from.time === 0n ? 0 : from.atTime;
  }

  /**
   * The time from which everything must be read again to continue: the beginning of a line that is still open, however old. A new
   * manager does not know it and reads from the start. So does a reader that saw the clock set back: later stamps are earlier.
   */
  get since(): bigint {
    if (this.#wentBack) return 0n;
    const times = [this.#open.stdout?.time, this.#open.stderr?.time, this.#time].filter((time) => time !== undefined);
    const earliest = times.reduce((a, b) => (a < b ? a : b));
    return earliest > slack ? earliest - slack : 0n;
  }

  /** The new output in these messages. A chunk never holds two messages of one time, so positions always count the same. */
  push(frames: readonly LogFrame[]): LogChunk[] {
    const out: LogChunk[] = [];
    let parts: Buffer<ArrayBufferLike>[] = [];
    let stream: LogFrame['stream'] = 'stdout';
    let time = -1n;
    const flush = () => {
      const gap = this.#gap ? ({ gap: true } as const) : {};
      if (parts.length > 0) {
        out.push({ stream, time, bytes: parts.length === 1 ? (parts[0] ?? Buffer.alloc(0)) : Buffer.concat(parts), ...gap });
        this.#gap = false;
      }
      parts = [];
    };
    for (const frame of frames) {
      const newline = this.#enter(frame);
      if (this.#isKept()) continue;
      if (frame.stream !== stream || this.#time === time) flush();
      stream = frame.stream;
      time = this.#time;
      if (newline) parts.push(Buffer.from('\n'));
      parts.push(frame.bytes);
    }
    flush();
    return out;
  }

  /** Output before the next message may be missing: it was deleted before it was read. */
  hole(): void {
    this.#gap = true;
  }

  /** To be called when the sandbox has ended and everything was read. */
  end(): LogChunk[] {
    const out: LogChunk[] = [];
    for (const stream of ['stdout', 'stderr'] as const) {
      if (!this.#open[stream]?.owesNewline) continue;
      this.#open[stream] = null;
      if (this.#toSkip > 0) this.#toSkip -= 1;
      else out.push({ stream, time: this.#time, bytes: Buffer.from('\n') });
    }
    return out;
  }

  /** Enters one message. Returns whether the newline before it must be restored. */
  #enter({ stream, time, bytes }: LogFrame): boolean {
    const before = this.#open[stream];
    const goesOn = before !== null && before.time === time && !before.owesNewline;
    if (time > this.#time) this.#time = time;
    // The pieces of a long line have the time of its beginning.
    else if (!goesOn && this.#time - time > slack) this.#wentBack = true;
    const isComplete = bytes.length > 0 && bytes[bytes.length - 1] === 10;
    const pieces = goesOn ? before.pieces + 1 : 1;
    const isShort = bytes.length < pieceSize;
    // A short first piece is a last line without a newline: nothing was dropped.
    if (isComplete || (isShort && pieces === 1)) this.#open[stream] = null;
    else this.#open[stream] = { time, pieces, owesNewline: isShort };
    return !goesOn && before?.owesNewline === true;
  }

  #isKept(): boolean {
    if (this.#seeking !== null) {
      if (this.#time < this.#seeking) return true;
      // The last kept message is gone, and others may be, too.
      if (this.#time > this.#seeking) {
        this.#gap = true;
        this.#toSkip = 0;
      }
      this.#seeking = null;
    }
    if (this.#toSkip === 0) return false;
    this.#toSkip -= 1;
    return true;
  }
}

/** Reads RFC 3339 with up to nine digits. Consecutive stamps share their second, so that part is parsed once. */
export function stampReader(): (written: string) => bigint {
  let known = '';
  let base = 0n;
  return (written) => {
    const second = written.slice(0, 19);
    const rest = /^(?:\.(\d{1,9}))?(.*)$/.exec(written.slice(19));
    const zone = rest?.[2] ?? 'Z';
    if (second + zone !== known) {
      known = second + zone;
      base = BigInt(Date.parse(known)) * 1_000_000n;
    }
    return base + BigInt((rest?.[1] ?? '').padEnd(9, '0'));
  };
}
