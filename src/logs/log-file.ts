/**
 * One agent's output on disk: append-only, capped, and at every moment enough to know where to go on (see `record.ts`).
 *
 * A record that was not written whole before a crash is cut off on opening. A full disk changes nothing: the append
 * throws and may be tried again. Readers follow in this process, each at its own pace; a slow one holds nobody up.
 */
import { closeSync, constants, fstatSync, ftruncateSync, openSync, readSync, unlinkSync, writeSync, writevSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import type { AgentId } from '../core/slot.ts';
import type { LogChunk, LogPosition } from '../runtimes/runtime.ts';
import { storeFault } from '../store/fault.ts';
import { type PlacedPiece, readRecords } from './read.ts';
import { advance, decodeHead, encodeHead, encodePosition, headSize, positionAfter, positionSize, startPosition } from './record.ts';

/** Bytes a log file may have when config does not say. */
const defaultLogLimit = 64 * 2 ** 20;

/** Where an agent's log lies in a folder of logs. */
export function logPath(folder: string, agent: AgentId): string {
  return join(folder, `${agent}.log`);
}

export interface ReadOptions {
  /** A piece's `next`, or 0 for the start. */
  readonly from?: number;
  /** Wait for more until the log is closed. */
  readonly follow?: boolean;
  readonly signal?: AbortSignal;
}

const openFlags = constants.O_RDWR | constants.O_CREAT;

export class LogFile {
  readonly path: string;
  readonly #limit: number;
  readonly #fd: number;
  readonly #waiting = new Set<() => void>();
  #size = 0;
  #position: LogPosition = startPosition;
  #hasOutput = false;
  /** Where the `position` record stands that is written over and over once the cap is reached. */
  #cappedAt: number | null = null;
  #closed = false;

  /** Opens or makes the file; `limit` is its cap in bytes. @throws OnejobError E_STATE_FULL, E_STATE_DIR */
  constructor(path: string, limit: number = defaultLogLimit) {
    this.path = path;
    this.#limit = limit;
    try {
      // O_APPEND would make every write go to the end, also the position record's.
      this.#fd = openSync(path, openFlags, 0o600);
    } catch (error) {
      throw storeFault('open the log', path, error);
    }
    try {
      this.#load();
    } catch (error) {
      closeSync(this.#fd);
      throw storeFault('read the log', path, error);
    }
  }

  /** How much of the sandbox's output is in the file or was dropped on purpose. */
  get position(): LogPosition {
    return this.#position;
  }

  /** Whether any output is kept. */
  get hasOutput(): boolean {
    return this.#hasOutput;
  }

  /** Whether the cap was reached, so that nothing more is kept. */
  get capped(): boolean {
    return this.#cappedAt !== null;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /**
   * Adds one chunk of the sandbox's output, of which only `kept` is for readers.
   * @throws OnejobError E_STATE_FULL; then nothing was added and the same chunk may be tried again
   */
  append(chunk: LogChunk, kept: Uint8Array): void {
    const position = advance(this.#position, chunk);
    if (this.#cappedAt !== null) {
      this.#write([encodePosition(position)], this.#cappedAt);
      this.#position = position;
      return;
    }
    const room = this.#limit - this.#size - headSize;
    const stored = kept.length <= room ? kept : kept.subarray(0, Math.max(0, room));
    const { time, atTime } = position;
    const dropped = chunk.bytes.length - stored.length;
    const parts = [encodeHead({ type: chunk.stream, time, atTime, dropped, length: stored.length }), stored];
    if (stored !== kept) parts.push(...noteParts(`output over ${sizeInWords(this.#limit)} was not kept`), encodePosition(position));
    const length = this.#write(parts, this.#size);
    this.#size += length;
    if (stored !== kept) this.#cappedAt = this.#size - headSize - positionSize;
    this.#position = position;
    this.#hasOutput ||= stored.length > 0;
    this.#wake();
  }

  /** Adds a line of onejob's own; without effect once the cap is reached. @throws OnejobError E_STATE_FULL */
  note(line: string): void {
    if (this.#cappedAt !== null) return;
    this.#size += this.#write(noteParts(line), this.#size);
    this.#wake();
  }

  /** Forgets everything, to begin anew from the start of the sandbox's output. */
  reset(): void {
    ftruncateSync(this.#fd, 0);
    this.#size = 0;
    this.#position = startPosition;
    this.#hasOutput = false;
    this.#cappedAt = null;
  }

  /** Ends every follower once it has read all there is. Closing twice is no error; appending afterwards is. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    closeSync(this.#fd);
    this.#wake();
  }

  /** What is kept, and with `follow` what comes, until the log is closed or `signal` aborts. */
  async *read(options: ReadOptions = {}): AsyncGenerator<PlacedPiece, void> {
    const { follow = false, signal } = options;
    const file = await open(this.path, 'r');
    try {
      let offset = options.from ?? 0;
      while (signal?.aborted !== true) {
        // Closed is looked at first: what was written right before closing is still read.
        const last = this.#closed || !follow;
        const end = this.#size;
        if (offset > end) offset = 0;
        offset = yield* readRecords(file, offset, end);
        if (last) return;
        if (this.#size === end) await this.#more(signal);
      }
    } finally {
      await file.close();
    }
  }

  #more(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve) => {
      if (this.#closed || signal?.aborted === true) return resolve();
      const done = (): void => {
        this.#waiting.delete(done);
        signal?.removeEventListener('abort', done);
        resolve();
      };
      this.#waiting.add(done);
      signal?.addEventListener('abort', done, { once: true });
    });
  }

  #wake(): void {
    for (const done of [...this.#waiting]) done();
  }

  #write(parts: readonly Uint8Array[], at: number): number {
    const length = parts.reduce((sum, part) => sum + part.length, 0);
    try {
      let written = writevSync(this.#fd, parts, at);
      if (written < length) {
        const whole = Buffer.concat(parts);
        while (written < length) written += writeSync(this.#fd, whole, written, length - written, at + written);
      }
      return length;
    } catch (error) {
      if (!this.#closed) this.#cutBack();
      throw storeFault('write the log', this.path, error);
    }
  }

  #cutBack(): void {
    try {
      ftruncateSync(this.#fd, this.#size);
    } catch {
      // The half-written record is past #size: the next append writes over it, and opening cuts it off.
    }
  }

  #load(): void {
    const end = fstatSync(this.#fd).size;
    const buffer = Buffer.allocUnsafe(Math.min(end, 1024 * 1024));
    let [filled, base] = [0, 0];
    for (let at = 0; at + headSize <= end; ) {
      if (at - base + headSize + positionSize > filled) {
        base = at;
        filled = readSync(this.#fd, buffer, 0, buffer.length, base);
      }
      const head = decodeHead(buffer.subarray(0, filled), at - base);
      if (head === null || at + headSize + head.length > end) break;
      this.#position = positionAfter(this.#position, head, buffer, at - base + headSize);
      if (head.type === 'position') this.#cappedAt = at;
      else if (head.type !== 'note' && head.length > 0) this.#hasOutput = true;
      at += headSize + head.length;
      this.#size = at;
    }
    if (this.#size < end) ftruncateSync(this.#fd, this.#size);
  }
}

/** Deletes an agent's log; none there is no error. */
export function deleteLog(path: string): void {
  try {
    unlinkSync(path);
  } catch (error) {
    if ((error as { code?: unknown }).code !== 'ENOENT') throw storeFault('delete the log', path, error);
  }
}

function noteParts(line: string): Uint8Array[] {
  const text = Buffer.from(`${line}\n`);
  return [encodeHead({ type: 'note', time: 0n, atTime: 0, dropped: 0, length: text.length }), text];
}

function sizeInWords(bytes: number): string {
  return bytes % 2 ** 20 === 0 ? `${bytes / 2 ** 20} MiB` : `${bytes} bytes`;
}
