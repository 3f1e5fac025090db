/**
 * Many connections through one pipe, each with its own flow control: a reader that stands still holds up nobody else, and costs one
 * window of memory. HTTP/2 could do that, but Node's corrupts what is written through a pipe that is not a socket (Node 24.21:
 * the head of a request without a body).
 *
 * Neither end trusts the other to keep to that: a stream that gets more than its window is reset, credit is never more than a window,
 * and nothing is written while the pipe takes nothing, so what an end holds is bounded.
 *
 * A frame is a byte for its kind, the id of its stream and a number, both big-endian in 4 bytes, and for `data` so many bytes.
 */
import { Duplex } from 'node:stream';
import type { Pace } from './pace.ts';

/** `end`: nothing more is written. `reset`: the stream is over, in both directions. `credit`: so many more bytes may be sent. */
const kinds = { open: 1, data: 2, end: 3, reset: 4, credit: 5 } as const;
const headLength = 9;
/** Bytes under way in one direction of a stream, so that a distant host is not slow; and in one frame, so that others get a turn. */
const [window, piece] = [1 << 20, 1 << 16];

/** One end of the pipe. */
export interface Mux {
  readonly isOver: boolean;
  /** How many there are. */
  readonly streams: number;
  open(): Duplex;
  /** Ends all streams. The pipe is the caller's. */
  close(): void;
  /** Resolves when the pipe has ended, or does not speak this. */
  readonly ended: Promise<void>;
}

/** Frames after which a paced end lets others have a turn. */
const mostFrames = 64;

/**
 * `opened`: gets each stream that the other end opens. Without it this end alone opens them, and one from there ends it all. `pace`: how
 * much time the other end may take; null: all that it wants.
 */
export function createMux(pipe: Duplex, opened: ((stream: Duplex) => void) | null = null, pace: Pace | null = null): Mux {
  const streams = new Map<number, MuxStream>();
  const ended = Promise.withResolvers<void>();
  let isOver = false;
  let last = 0;
  let unread: Buffer = Buffer.alloc(0);
  /** Whether the pipe takes nothing now. */
  let isFull = false;
  /** Streams that have something to send then, the next one first. */
  const waiting = new Set<MuxStream>();

  const send = (kind: keyof typeof kinds, id: number, number = 0, data?: Uint8Array): void => {
    if (isOver) return;
    const head = Buffer.alloc(headLength);
    head.writeUInt8(kinds[kind]);
    head.writeUInt32BE(id, 1);
    head.writeUInt32BE(data?.length ?? number, 5);
    const takesMore = pipe.write(head);
    isFull = !(data === undefined ? takesMore : pipe.write(data));
  };
  const make = (id: number): MuxStream => {
    const stream = new MuxStream({
      send: (kind, number, data) => send(kind, id, number, data),
      maySend(one) {
        if (isFull) waiting.add(one);
        return !isFull;
      },
    });
    streams.set(id, stream);
    stream
      .on('error', () => {})
      .once('close', () => {
        streams.delete(id);
        waiting.delete(stream);
      });
    return stream;
  };
  pipe.on('drain', () => {
    isFull = false;
    for (const stream of waiting) {
      if (isFull) return;
      waiting.delete(stream);
      stream.proceed();
    }
  });
  const close = (): void => {
    if (isOver) return;
    isOver = true;
    for (const stream of streams.values()) stream.cut();
    streams.clear();
    ended.resolve();
  };
  const take = (kind: number, id: number, number: number, data: Buffer): void => {
    if (kind === kinds.open) {
      if (opened === null) close();
      else if (!streams.has(id)) opened(make(id));
      return;
    }
    // It may have been given up at this end meanwhile.
    const stream = streams.get(id);
    if (kind === kinds.data) stream?.arrived(data);
    else if (kind === kinds.end) stream?.push(null);
    else if (kind === kinds.credit) stream?.mayWrite(number);
    else if (kind === kinds.reset) stream?.cut();
    else close();
  };
  /** Takes the next frame; false: it is not whole yet. */
  const takeNext = (): boolean => {
    if (isOver || unread.length < headLength) return false;
    const [kind, id, number] = [unread.readUInt8(), unread.readUInt32BE(1), unread.readUInt32BE(5)];
    const length = kind === kinds.data ? number : 0;
    if (length > piece) {
      close();
      return false;
    }
    if (unread.length < headLength + length) return false;
    const data = unread.subarray(headLength, headLength + length);
    unread = unread.subarray(headLength + length);
    take(kind, id, number, data);
    return true;
  };
  /** Whether it waits for its next turn. The pipe may still deliver what it had. */
  let isPaced = false;
  const takeAll = async (paced: Pace): Promise<void> => {
    isPaced = true;
    pipe.pause();
    for (let hasMore = true; hasMore && !isOver; ) {
      const since = paced.now();
      for (let left = mostFrames; left > 0 && hasMore; left -= 1) hasMore = takeNext();
      await paced.spent(since);
    }
    isPaced = false;
    pipe.resume();
  };
  pipe.on('data', (bytes: Buffer) => {
    unread = unread.length === 0 ? bytes : Buffer.concat([unread, bytes]);
    if (pace === null) while (takeNext());
    else if (!isPaced) void takeAll(pace);
  });
  for (const event of ['end', 'close', 'error'] as const) pipe.once(event, close);
  return {
    get isOver() {
      return isOver;
    },
    get streams() {
      return streams.size;
    },
    open() {
      const id = ++last;
      const stream = make(id);
      if (isOver) process.nextTick(() => stream.cut());
      else send('open', id);
      return stream;
    },
    close,
    ended: ended.promise,
  };
}

interface Pipe {
  send(kind: 'data' | 'end' | 'reset' | 'credit', number?: number, data?: Uint8Array): void;
  /** False while the pipe takes nothing; then calls `proceed` later. */
  maySend(stream: MuxStream): boolean;
}

class MuxStream extends Duplex {
  readonly #pipe: Pipe;
  /** Bytes that may be sent now. */
  #credit = window;
  /** The rest of what is being written. */
  #rest: { data: Buffer; readonly done: () => void } | null = null;
  /** Bytes that were received, and for which the other end has no new credit yet. */
  #taken = 0;
  /** Whether it may have that: somebody reads. */
  #isRead = false;
  #isCut = false;

  constructor(pipe: Pipe) {
    super({ allowHalfOpen: true, readableHighWaterMark: piece });
    this.#pipe = pipe;
  }

  arrived(data: Buffer): void {
    if (this.destroyed) return;
    this.#taken += data.length;
    if (this.#taken > window) {
      this.destroy(new Error('the other end sent more than it may'));
      return;
    }
    this.#isRead = this.push(data);
    this.#giveCredit();
  }

  mayWrite(bytes: number): void {
    this.#credit = Math.min(window, this.#credit + bytes);
    this.#write();
  }

  /** The pipe takes something again. */
  proceed(): void {
    this.#giveCredit();
    this.#write();
  }

  /** The other end, or the pipe, has gone. */
  cut(): void {
    this.#isCut = true;
    this.destroy(Object.assign(new Error('the other end closed the connection'), { code: 'ECONNRESET' }));
  }

  #giveCredit(): void {
    if (this.#taken === 0 || !this.#isRead || this.destroyed || !this.#pipe.maySend(this)) return;
    this.#pipe.send('credit', this.#taken);
    this.#taken = 0;
  }

  #write(): void {
    while (this.#rest !== null && this.#credit > 0 && !this.destroyed && this.#pipe.maySend(this)) {
      const { data, done } = this.#rest;
      const now = data.subarray(0, Math.min(piece, this.#credit));
      this.#credit -= now.length;
      this.#pipe.send('data', 0, now);
      this.#rest = now.length === data.length ? null : { data: data.subarray(now.length), done };
      if (this.#rest === null) done();
    }
  }

  override _read(): void {
    this.#isRead = true;
    this.#giveCredit();
  }

  override _write(data: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    if (data.length === 0) done();
    else {
      this.#rest = { data, done };
      this.#write();
    }
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#pipe.send('end');
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    // After an orderly end of both directions the other end needs no word.
    if (!this.#isCut && !(this.readableEnded && this.writableFinished)) this.#pipe.send('reset');
    done(error);
  }
}
