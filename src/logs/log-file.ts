/**
 * One agent's output on disk. At every moment it says where to continue (see `record.ts`). All output up to the limit is kept,
 * beyond it the beginning and the end (see `parts.ts`). Nothing is kept while the disk is nearly full.
 *
 * A record that a crash cut off is removed on opening. A full disk changes nothing: the append throws and may be tried again.
 * Readers in this process follow at their own pace; a slow one holds nobody up.
 */
import { closeSync, constants, fstatSync, ftruncateSync, openSync, rmSync, writeSync, writevSync } from 'node:fs';
import { join } from 'node:path';
import { Waiters } from '../base/abortable.ts';
import { attempt } from '../base/errors.ts';
import { beyond } from '../contract/gap.ts';
import type { LogPiece } from '../contract/manager.ts';
import type { AgentId } from '../core/slot.ts';
import { advance, type LogChunk, type LogPosition, start } from '../ports/runtime.ts';
import { storeFault, translated } from '../store/fault.ts';
import { openExisting } from '../system/files.ts';
import {
  eachRecord,
  filesOf,
  hasTakenOver,
  nextPart,
  type Part,
  partsOf,
  roomForLog,
  type Shares,
  sharesOf,
  takeOver,
} from './parts.ts';
import { Cursor, firstOutputAt, keptPieces, readLog, readRecords } from './read.ts';
import { encodeHead, encodePosition, headSize, positionAfter, positionSize } from './record.ts';

/** Default for the kept bytes of output. */
const defaultLogLimit = 64 * 2 ** 20;
/** Default for the bytes of each stream's end that are kept, independent of the other stream. */
const defaultEndKept = 2 ** 20;
/** Bytes written between checks for a deleted file. */
const lookEvery = 2 ** 20;

export interface LogFileOptions {
  /** Bytes of output that are kept. Each piece takes 21 more on disk; of very short pieces fewer bytes are kept (`roomOf`). */
  readonly limit?: number;
  /** Bytes of each stream's end that are kept, whatever the limit and the other stream. Default 1 MiB. */
  readonly endKept?: number;
  /** Why nothing may be written to the disk now, as a sentence; null if there is room. */
  readonly noRoom?: () => string | null;
}

export interface ReadOptions {
  /** Wait for more until the log is closed. */
  readonly follow?: boolean;
  readonly signal?: AbortSignal;
}

// With O_APPEND a torn record could not be overwritten.
const openFlags = constants.O_RDWR | constants.O_CREAT;

export class LogFile {
  readonly path: string;
  readonly #shares: Shares;
  readonly #endKept: number;
  readonly #noRoom: () => string | null;
  readonly #waiters = new Waiters();
  /** The existing parts, the first file first. The last one is written to. */
  #parts: readonly Part[];
  #fd: number;
  /** Bytes of the file that is written to, and bytes of output in it. */
  #size = 0;
  #filled = 0;
  /** Bytes since the last check for a deleted file. */
  #unlooked = 0;
  #position: LogPosition = start;
  #hasOutput = false;
  #isLeavingOut = false;
  #closed = false;

  /** Opens or creates the log. @throws OnejobError E_STATE_FULL, E_STATE_DIR */
  constructor(path: string, { limit = defaultLogLimit, endKept = defaultEndKept, noRoom = () => null }: LogFileOptions = {}) {
    this.path = path;
    this.#shares = sharesOf(limit, endKept);
    this.#endKept = endKept;
    this.#noRoom = noRoom;
    let last = path;
    try {
      const { parts, kept, broken } = partsOf(path);
      // Created right before a crash, and empty.
      for (const one of broken) rmSync(one, { force: true });
      this.#parts = [{ path, start: start }, ...parts];
      this.#hasOutput = parts.length > 0;
      last = parts.at(-1)?.path ?? path;
      this.#fd = openSync(last, openFlags, 0o600);
      // Taken over right before a crash, and not deleted yet; `kept` ends where the next one begins.
      const [older, newer] = parts;
      if (older !== undefined && newer !== undefined && hasTakenOver(kept, newer.start)) this.#forget(older);
    } catch (error) {
      throw storeFault('open the log', last, error);
    }
    try {
      this.#load();
    } catch (error) {
      closeSync(this.#fd);
      throw storeFault('read the log', last, error);
    }
  }

  /** How much of the sandbox's output is in the file, or was left out on purpose. */
  get position(): LogPosition {
    return this.#position;
  }

  get hasOutput(): boolean {
    return this.#hasOutput;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /**
   * Adds one chunk of the sandbox's output. Readers get only `kept`.
   * @throws OnejobError E_STATE_FULL; nothing was added then, and the same chunk may be tried again
   */
  append(chunk: LogChunk, kept: Uint8Array): void {
    const position = advance(this.#position, chunk);
    const why = kept.length > 0 ? this.#noRoom() : null;
    if (why !== null) this.#leaveOut(why);
    else {
      this.#lookForFile();
      if (this.#isFull()) this.#begin();
      const { time, atTime } = position;
      const { stream, bytes, missing = 0 } = chunk;
      const head = encodeHead({ type: stream, time, atTime, dropped: bytes.length - kept.length, length: kept.length });
      // After a gap the next record says where it stands.
      const begins = { ...this.#position, [stream]: this.#position[stream] + missing, holes: position.holes };
      const jump = this.#isLeavingOut || missing > 0 || chunk.gap === true ? [encodePosition(begins)] : [];
      this.#size += this.#write([...jump, head, kept], this.#size);
      this.#isLeavingOut = false;
      this.#filled += kept.length;
      this.#unlooked += kept.length;
    }
    this.#position = position;
    this.#hasOutput ||= kept.length > 0;
    this.#waiters.wake();
  }

  /** Adds a line of onejob's own. @throws OnejobError E_STATE_FULL */
  note(line: string): void {
    const text = Buffer.from(`${line}\n`);
    const head = encodeHead({ type: 'note', time: 0n, atTime: 0, dropped: 0, length: text.length });
    this.#size += this.#write([head, text], this.#size);
    this.#waiters.wake();
  }

  /** Forgets everything, to start again from the beginning of the output. */
  reset(): void {
    ftruncateSync(this.#fd, 0);
    this.#size = 0;
    this.#filled = 0;
    this.#position = start;
    this.#hasOutput = false;
  }

  /** Records what was left out at the end of the log. @throws OnejobError E_STATE_FULL; it may be tried again */
  finish(): void {
    if (!this.#isLeavingOut) return;
    this.#size += this.#write([encodePosition(this.#position)], this.#size);
    this.#isLeavingOut = false;
    this.#waiters.wake();
  }

  /** Ends every reader once it has read everything. Closing twice is allowed; appending afterwards is not. */
  close(): void {
    if (this.#closed) return;
    // Without that record a new manager may read the left-out output again.
    attempt(() => this.finish());
    this.#closed = true;
    closeSync(this.#fd);
    this.#waiters.wake();
  }

  /** What is kept, and with `follow` what comes, until the log is closed or `signal` aborts. */
  async *read(options: ReadOptions = {}): AsyncGenerator<LogPiece, void> {
    const { follow = false, signal } = options;
    let cursor = new Cursor();
    let before: Part | null = null;
    for (let part = this.#after(before); part !== null && signal?.aborted !== true; part = this.#after(before)) {
      await using file = await openExisting(part.path);
      // Deleted meanwhile: what exists now comes after it.
      if (file === null || !this.#parts.includes(part)) {
        if (file === null && this.#parts.at(-1) === part) return;
        before = part;
        continue;
      }
      if (before !== null || part !== this.#parts[0]) yield* keptPieces(`${this.path}.kept`, cursor);
      let offset = 0;
      for (;;) {
        // Read before the look below: what was written before closing, or before the next part, must still be read.
        const last = this.#closed || !follow;
        const isWritten = this.#parts.at(-1) === part;
        const end = isWritten ? this.#size : (await file.stat()).size;
        if (offset > end) {
          offset = 0;
          cursor = new Cursor();
        }
        offset = yield* readRecords(file, offset, end, cursor);
        if (isWritten && last) return;
        if (!isWritten) break;
        if (this.#size === end && this.#parts.at(-1) === part && !this.#closed) await this.#waiters.next(signal);
        if (signal?.aborted) return;
      }
      before = part;
    }
  }

  /** The part after this one, or the first remaining one if it is gone. */
  #after(part: Part | null): Part | null {
    const index = part === null ? -1 : this.#parts.indexOf(part);
    if (index !== -1 || part === null) return this.#parts[index + 1] ?? null;
    return this.#parts.find(({ start }) => start.stdout + start.stderr > part.start.stdout + part.start.stderr) ?? null;
  }

  #isFull(): boolean {
    const share = this.#parts.length === 1 ? this.#shares.first : this.#shares.part;
    return this.#filled >= share || (this.#filled > 0 && this.#size >= roomForLog(share));
  }

  /** Continues in a new file, and drops the oldest but the first if there are too many. */
  #begin(): void {
    const [, older, newer] = this.#parts;
    if (older !== undefined && newer !== undefined) {
      const kept = `${this.path}.kept`;
      const wanted = beyond({ stdout: this.#endKept, stderr: this.#endKept }, beyond(this.#position, newer.start));
      translated('write the log', kept, () => takeOver(kept, older, newer.start, wanted));
      this.#forget(older);
    }
    this.#open({ path: nextPart(this.path, this.#parts.slice(1)), start: this.#position });
  }

  /** Writes to a new file from now on. The file begins with its position. */
  #open(part: Part): void {
    translated('write the log', part.path, () => {
      rmSync(part.path, { force: true });
      const fd = openSync(part.path, openFlags | constants.O_EXCL, 0o600);
      try {
        this.#size = writeSync(fd, encodePosition(part.start), 0, headSize + positionSize, 0);
      } catch (error) {
        closeSync(fd);
        throw error;
      }
      closeSync(this.#fd);
      this.#fd = fd;
    });
    this.#filled = 0;
    this.#parts = [...this.#parts.filter(({ path }) => path !== part.path), part];
  }

  #forget(part: Part): void {
    rmSync(part.path, { force: true });
    this.#parts = this.#parts.filter((one) => one !== part);
  }

  /** If somebody deleted the file to free space, output continues in a new one. */
  #lookForFile(): void {
    if (this.#unlooked < lookEvery) return;
    this.#unlooked = 0;
    const path = this.#parts.at(-1)?.path ?? this.path;
    if (fstatSync(this.#fd).nlink === 0) this.#open({ path, start: this.#position });
  }

  #leaveOut(why: string): void {
    if (this.#isLeavingOut) return;
    this.#isLeavingOut = true;
    // If not even a line fits, the gap is recorded once there is room.
    attempt(() => this.note(why));
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
      // Otherwise the next append overwrites the half-written record after #size, and opening cuts it off.
      if (!this.#closed) attempt(() => ftruncateSync(this.#fd, this.#size));
      throw storeFault('write the log', this.#parts.at(-1)?.path ?? this.path, error);
    }
  }

  #load(): void {
    this.#size = eachRecord(this.#fd, (head, bytes, at) => {
      this.#position = positionAfter(this.#position, head, bytes, at);
      if (head.type === 'stdout' || head.type === 'stderr') this.#filled += head.length;
      if (head.type === 'position') this.#hasOutput = true;
    });
    this.#hasOutput ||= this.#filled > 0;
    if (this.#size < fstatSync(this.#fd).size) ftruncateSync(this.#fd, this.#size);
  }
}

/** Deletes an agent's log, if there is one. */
export function deleteLog(path: string): void {
  translated('delete the log', path, () => {
    for (const file of filesOf(path)) rmSync(file, { force: true });
  });
}

/** The logs of all agents, in one folder. */
export interface LogFolder {
  path(agent: AgentId): string;
  /** Every path that a file of the log may have. */
  files(agent: AgentId): string[];
  /** Opens or makes an agent's log. @throws OnejobError E_STATE_FULL, E_STATE_DIR */
  open(agent: AgentId): LogFile;
  delete(agent: AgentId): void;
  /** As `firstOutputAt` in `read.ts`. */
  firstOutputAt(agent: AgentId): number | null;
  /** A log that nobody writes to; empty if there is none. */
  read(agent: AgentId): AsyncGenerator<LogPiece, void>;
}

/** `options` apply to every log that is opened. */
export function createLogFolder(folder: string, options: LogFileOptions = {}): LogFolder {
  const path = (agent: AgentId): string => join(folder, `${agent}.log`);
  return {
    path,
    files: (agent) => filesOf(path(agent)),
    open: (agent) => new LogFile(path(agent), options),
    delete: (agent) => deleteLog(path(agent)),
    firstOutputAt: (agent) => firstOutputAt(path(agent)),
    read: (agent) => readLog(path(agent)),
  };
}
