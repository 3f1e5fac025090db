/**
 * Many connections through one pipe, each with its own flow control: a reader that stands still holds up nobody else, and costs one
 * window of memory. HTTP/2 could do that, but Node's corrupts what is written through a pipe that is not a socket (Node 24.21:
 * the head of a request without a body).
 *
 * A frame is a byte for its kind, the id of its stream and a number, both big-endian in 4 bytes, and for `data` so many bytes.
 */
import { Duplex } from 'node:stream';

/** `end`: nothing more is written. `reset`: the stream is over, in both directions. `credit`: so many more bytes may be sent. */
const kinds = { open: 1, data: 2, end: 3, reset: 4, credit: 5 } as const;
const headLength = 9;
/** Bytes under way in one direction of a stream, so that a distant host is not slow; and in one frame, so that others get a turn. */
const [window, piece] = [1 << 20, 1 << 16];

/** One end of the pipe. The end that opens streams passes no `opened`. */
export interface Mux {
  readonly isOver: boolean;
  open(): Duplex;
  /** Ends all streams. The pipe is the caller's. */
  close(): void;
  /** Resolves when the pipe has ended, or does not speak this. */
  readonly ended: Promise<void>;
}

/** `opened`: gets each stream that the other end opens. */
export function createMux(pipe: Duplex, opened: (stream: Duplex) => void = (stream) => void stream.destroy()): Mux {
  const streams = new Map<number, MuxStream>();
  const ended = Promise.withResolvers<void>();
  let isOver = false;
  let last = 0;
  let unread: Buffer = Buffer.alloc(0);

  const send = (kind: keyof typeof kinds, id: number, number = 0, data?: Uint8Array): void => {
    if (isOver) return;
    const head = Buffer.alloc(headLength);
    head.writeUInt8(kinds[kind]);
    head.writeUInt32BE(id, 1);
    head.writeUInt32BE(data?.length ?? number, 5);
    pipe.write(head);
    if (data !== undefined) pipe.write(data);
  };
  const make = (id: number): MuxStream => {
    const stream = new MuxStream((kind, number, data) => send(kind, id, number, data));
    streams.set(id, stream);
    stream.on('error', () => {}).once('close', () => streams.delete(id));
    return stream;
  };
  const close = (): void => {
    if (isOver) return;
    isOver = true;
    for (const stream of streams.values()) stream.cut();
    streams.clear();
    ended.resolve();
  };
  const take = (kind: number, id: number, number: number, data: Buffer): void => {
    if (kind === kinds.open) {
      if (!streams.has(id)) opened(make(id));
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
  pipe.on('data', (bytes: Buffer) => {
    unread = unread.length === 0 ? bytes : Buffer.concat([unread, bytes]);
    while (!isOver && unread.length >= headLength) {
      const [kind, id, number] = [unread.readUInt8(), unread.readUInt32BE(1), unread.readUInt32BE(5)];
      const length = kind === kinds.data ? number : 0;
      if (length > piece) return close();
      if (unread.length < headLength + length) return;
      const data = unread.subarray(headLength, headLength + length);
      unread = unread.subarray(headLength + length);
      take(kind, id, number, data);
    }
  });
  for (const event of ['end', 'close', 'error'] as const) pipe.once(event, close);
  return {
    get isOver() {
      return isOver;
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

type Send = (kind: 'data' | 'end' | 'reset' | 'credit', number?: number, data?: Uint8Array) => void;

class MuxStream extends Duplex {
  readonly #send: Send;
  /** Bytes that may be sent now. */
  #credit = window;
  /** The rest of what is being written. */
  #rest: { data: Buffer; readonly done: () => void } | null = null;
  /** Bytes that were received and not yet asked for. */
  #taken = 0;
  #isCut = false;

  constructor(send: Send) {
    super({ allowHalfOpen: true, readableHighWaterMark: piece });
    this.#send = send;
  }

  arrived(data: Buffer): void {
    this.#taken += data.length;
    if (!this.destroyed && this.push(data)) this.#giveCredit();
  }

  mayWrite(bytes: number): void {
    this.#credit += bytes;
    this.#write();
  }

  /** The other end, or the pipe, has gone. */
  cut(): void {
    this.#isCut = true;
    this.destroy(Object.assign(new Error('the other end closed the connection'), { code: 'ECONNRESET' }));
  }

  #giveCredit(): void {
    if (this.#taken > 0) this.#send('credit', this.#taken);
    this.#taken = 0;
  }

  #write(): void {
    while (this.#rest !== null && this.#credit > 0) {
      const { data, done } = this.#rest;
      const now = data.subarray(0, Math.min(piece, this.#credit));
      this.#credit -= now.length;
      this.#send('data', 0, now);
      this.#rest = now.length === data.length ? null : { data: data.subarray(now.length), done };
      if (this.#rest === null) done();
    }
  }

  override _read(): void {
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
    this.#send('end');
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    // After an orderly end of both directions the other end needs no word.
    if (!this.#isCut && !(this.readableEnded && this.writableFinished)) this.#send('reset');
    done(error);
  }
}
