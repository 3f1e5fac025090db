/**
 * What client and daemon say to each other once a request for a shell was upgraded: frames of one byte kind, four bytes length (big
 * endian), then that many bytes. The client sends `start`, then `stdin`, `eof` and `size`; the daemon `stdout`, `stderr`, and at
 * last `exit` or `error`.
 */
import { once } from 'node:events';
import type { Writable } from 'node:stream';
import { z } from 'zod';
import { OnejobError } from '../base/errors.ts';

/** The protocol that the request asks for. */
export const shellProtocol = 'onejob-shell';

/** By number. */
const kinds = ['start', 'stdin', 'eof', 'size', 'stdout', 'stderr', 'exit', 'error'] as const;
export type ShellKind = (typeof kinds)[number];
export interface ShellFrame {
  readonly kind: ShellKind;
  readonly bytes: Buffer;
}

const size = z.strictObject({ columns: z.int().min(1).max(10_000), rows: z.int().min(1).max(10_000) });
/** Bodies of frames, as JSON. `error` has an `errorView`. */
export const shellBodies = {
  start: z.strictObject({
    /** null: an interactive shell. */
    command: z
      .array(z.string().refine((word) => !word.includes('\0'), 'a NUL byte'))
      .min(1)
      .nullable(),
    /** null: no terminal. */
    terminal: size.extend({ term: z.string().regex(/^[\w.+-]{1,64}$/) }).nullable(),
    /** In the sandbox of an attended job that runs, with a command and no terminal. Otherwise in the files of a held job. */
    running: z.literal(true).optional(),
  }),
  size,
  exit: z.strictObject({ code: z.int().min(0).max(255) }),
};
export type ShellStart = z.output<typeof shellBodies.start>;

const headerLength = 5;
/** Bytes of one frame, which bounds the memory of its reader. */
const longest = 1 << 20;

export function shellFrame(kind: ShellKind, payload: Uint8Array | object = new Uint8Array(0)): Buffer {
  const bytes = payload instanceof Uint8Array ? payload : Buffer.from(JSON.stringify(payload));
  const head = Buffer.allocUnsafe(headerLength);
  head.writeUInt8(kinds.indexOf(kind), 0);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
}

/** `bytes` as frames of at most the length that a reader takes. */
export function* shellFrames(kind: ShellKind, bytes: Uint8Array): Generator<Buffer> {
  for (let from = 0; from < bytes.length; from += longest) yield shellFrame(kind, bytes.subarray(from, from + longest));
}

export type ShellFrames = AsyncGenerator<ShellFrame, void>;

/** @throws OnejobError E_API_REQUEST for what is not framed; what `source` throws */
export async function* readShellFrames(source: AsyncIterable<Uint8Array>): ShellFrames {
  let held: Buffer = Buffer.alloc(0);
  for await (const chunk of source) {
    held = held.length === 0 ? Buffer.from(chunk) : Buffer.concat([held, chunk]);
    while (held.length >= headerLength) {
      const kind = kinds[held.readUInt8(0)];
      const length = held.readUInt32BE(1);
      if (kind === undefined || length > longest) throw new OnejobError('E_API_REQUEST', 'Cannot read a frame of the shell.');
      if (held.length < headerLength + length) break;
      yield { kind, bytes: held.subarray(headerLength, headerLength + length) };
      held = held.subarray(headerLength + length);
    }
  }
}

/** @throws OnejobError E_API_REQUEST */
export function shellBody<T extends z.ZodType>(schema: T, { bytes, kind }: ShellFrame): z.output<T> {
  try {
    return schema.parse(JSON.parse(bytes.toString()));
  } catch (cause) {
    throw new OnejobError('E_API_REQUEST', `Cannot read the frame "${kind}" of the shell.`, { cause });
  }
}

/** Resolves when a stream takes more, or has closed. It leaves no listener behind: a shell may wait for this a million times. */
export async function drained(stream: Writable): Promise<void> {
  const over = new AbortController();
  const { signal } = over;
  await Promise.race([once(stream, 'drain', { signal }), once(stream, 'close', { signal })]).catch(() => {});
  over.abort();
}
