/**
 * Makes of an Engine's log messages the bytes that the job wrote, and gives each a time stamp by which reading can go on.
 *
 * A line over 16 KiB comes as messages that share one time stamp. `local` up to Engine 20.10 drops the newline that ends
 * such a line; it is put back as soon as the stream goes on. What cannot be told apart: a last line of more than 16 KiB
 * with a newline at its end, and one without; it gets one.
 *
 * The stamps of the two streams interleave, and the messages of a long line carry the time at which it began, so stamps
 * go back and forth. A chunk's time is therefore that of the latest message so far, which never goes back, and is the same
 * from wherever reading began, as long as that was early enough.
 */
import type { LogChunk, LogPosition } from '../runtime.ts';
import type { LogFrame } from './frames.ts';

/** Bytes of a long line per message (moby, daemon/logger/copier.go). */
const pieceSize = 16 * 1024;

interface OpenLine {
  readonly time: bigint;
  readonly pieces: number;
  /** Its last piece was a short one, so the line has ended; its newline was dropped. */
  readonly owesNewline: boolean;
}

/** The streams' messages may be stored out of order by this much, in ns. */
export const slack = 10_000_000_000n;

export class Rejoiner {
  #time = 0n;
  #open: { stdout: OpenLine | null; stderr: OpenLine | null } = { stdout: null, stderr: null };
  /** Messages that were kept before are passed over: first up to the one of the position's time, then this many. */
  #seeking: bigint | null;
  #toSkip: number;
  #gap = false;
  #wentBack = false;

  constructor(from: LogPosition) {
    this.#seeking = from.time === 0n ? null : from.time;
    this.#toSkip = from.time === 0n ? 0 : from.atTime;
  }

  /**
   * The time from which all must be read again to go on after what was pushed so far: the beginning of a line that is
   * still open, however long ago that was. A new manager does not know it, and reads from the start; so does whoever has
   * seen the clock being set back, since what comes then is stamped with times of before.
   */
  get since(): bigint {
    if (this.#wentBack) return 0n;
    const times = [this.#open.stdout?.time, this.#open.stderr?.time, this.#time].filter((time) => time !== undefined);
    const earliest = times.reduce((a, b) => (a < b ? a : b));
    return earliest > slack ? earliest - slack : 0n;
  }

  /** What is new of these messages. Chunks never hold two messages of one time, so positions count the same each time. */
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

  /** What comes next may not follow on what came: output between was thrown away before it was read. */
  hole(): void {
    this.#gap = true;
  }

  /** The sandbox has ended and all was read. */
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

  /** Moves on to one message; whether the newline of the line before it must be put back. */
  #enter({ stream, time, bytes }: LogFrame): boolean {
    const before = this.#open[stream];
    const goesOn = before !== null && before.time === time && !before.owesNewline;
    if (time > this.#time) this.#time = time;
    // The pieces of a long line are stamped with when it began.
    else if (!goesOn && this.#time - time > slack) this.#wentBack = true;
    const isComplete = bytes.length > 0 && bytes[bytes.length - 1] === 10;
    const pieces = goesOn ? before.pieces + 1 : 1;
    const isShort = bytes.length < pieceSize;
    // A short first piece is a last line without a newline: nothing follows it, and nothing was dropped.
    if (isComplete || (isShort && pieces === 1)) this.#open[stream] = null;
    else this.#open[stream] = { time, pieces, owesNewline: isShort };
    return !goesOn && before?.owesNewline === true;
  }

  #isKept(): boolean {
    if (this.#seeking !== null) {
      if (this.#time < this.#seeking) return true;
      // The message we stood at is gone, and so may be others after it.
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
