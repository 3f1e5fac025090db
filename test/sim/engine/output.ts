/**
 * What a sandbox has printed, as its Engine keeps it: in pieces with time stamps, the oldest thrown away beyond a limit. A reader
 * continues from a place in it, so reading costs what is new and not what is kept.
 */
import type { LogChunk, LogPosition } from '../../../src/ports/runtime.ts';

/** Bytes of the largest piece. */
const largest = 16_384;

type Streams = { stdout: number; stderr: number };

export class Output {
  readonly #chunks: LogChunk[] = [];
  readonly #limit: number;
  readonly #dropped: Streams = { stdout: 0, stderr: 0 };
  #droppedChunks = 0;
  /** Of the newest piece that was thrown away: its time, and how many of that time were. */
  #droppedTime = -1n;
  #droppedAtTime = 0;
  #kept = 0;

  /** @param limit bytes that are kept at least of the newest */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** The place after the last piece. */
  get end(): number {
    return this.#droppedChunks + this.#chunks.length;
  }

  /** Prints; `cut` in it is where a piece ends although more was printed at once. */
  print(stream: 'stdout' | 'stderr', time: bigint, bytes: Uint8Array, cut = 0): void {
    for (let at = 0; at < bytes.length; ) {
      const end = at < cut ? Math.min(cut, at + largest) : Math.min(bytes.length, at + largest);
      this.#chunks.push({ stream, time, bytes: bytes.subarray(at, end) });
      at = end;
    }
    this.#kept += bytes.length;
    if (this.#kept > 2 * this.#limit) this.#drop();
  }

  /** Where one stands who has kept what is before `position`. */
  placeOf({ time, atTime }: LogPosition): number {
    if (time < this.#droppedTime) return this.#droppedChunks;
    let low = 0;
    let high = this.#chunks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#chunks[middle] as LogChunk).time < time) low = middle + 1;
      else high = middle;
    }
    const before = time === this.#droppedTime ? this.#droppedAtTime : 0;
    return Math.min(this.end, this.#droppedChunks + low - before + atTime);
  }

  /** What came after `place`. `kept`: bytes that the reader has of each stream. What was thrown away between is told as missing. */
  since(place: number, kept: Streams): LogChunk[] {
    if (place >= this.#droppedChunks && kept.stdout >= this.#dropped.stdout && kept.stderr >= this.#dropped.stderr)
      return this.#chunks.slice(place - this.#droppedChunks);
    const fresh = this.#chunks.slice(Math.max(0, place - this.#droppedChunks));
    for (const stream of ['stdout', 'stderr'] as const) {
      const missing = this.#dropped[stream] - kept[stream];
      const at = fresh.findIndex((chunk) => chunk.stream === stream);
      const first = fresh[at];
      if (missing > 0 && first !== undefined) fresh[at] = { ...first, gap: true, missing };
    }
    return fresh;
  }

  #drop(): void {
    let count = 0;
    while (this.#kept > this.#limit && count < this.#chunks.length - 1) {
      const { stream, time, bytes } = this.#chunks[count] as LogChunk;
      this.#droppedAtTime = time === this.#droppedTime ? this.#droppedAtTime + 1 : 1;
      this.#droppedTime = time;
      this.#dropped[stream] += bytes.length;
      this.#kept -= bytes.length;
      count += 1;
    }
    this.#chunks.splice(0, count);
    this.#droppedChunks += count;
  }
}
