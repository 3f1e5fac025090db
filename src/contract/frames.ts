/**
 * Output in the API: frames of one byte stream id, four bytes length (big endian), then that many bytes. The last frame of a
 * complete stream is `end` or `error`.
 */
import { OnejobError } from '../base/errors.ts';
import { gapPiece } from './gap.ts';
import type { LogPiece } from './manager.ts';

/** By id. */
const kinds = ['end', 'stdout', 'stderr', 'note', 'error', 'gap', 'terminalStdout', 'terminalStderr'] as const;
type Kind = (typeof kinds)[number];
/** Kinds for output that was written for a terminal. */
const forTerminal = { stdout: 'terminalStdout', stderr: 'terminalStderr' } as const;

/** Bytes of the longest payload, which bounds the memory of a reader. */
const maxPayload = 1 << 20;
const headerLength = 5;

/** One frame. An empty one lets an answer begin before there is output; that of an `error` has an `errorView` as JSON. */
export function frame(kind: Kind, payload: Uint8Array | string = ''): Buffer {
  const bytes = typeof payload === 'string' ? Buffer.from(payload) : payload;
  const head = Buffer.allocUnsafe(headerLength);
  head.writeUInt8(kinds.indexOf(kind), 0);
  head.writeUInt32BE(bytes.length, 1);
  return Buffer.concat([head, bytes]);
}

/** One piece as frames. Empty pieces give none. */
export function* pieceFrames(piece: LogPiece): Generator<Buffer> {
  if (piece.gap !== undefined) return yield frame('gap', JSON.stringify(piece.gap));
  const kind = piece.forTerminal && piece.stream !== 'note' ? forTerminal[piece.stream] : piece.stream;
  for (let from = 0; from < piece.bytes.length; from += maxPayload)
    yield frame(kind, piece.bytes.subarray(from, from + maxPayload));
}

/** `error` is the last, with an `errorView` as JSON. */
export type Framed = LogPiece | { readonly stream: 'error'; readonly bytes: Uint8Array };

/**
 * Reads frames until the end frame. Output is passed on as it comes, also in the middle of a frame.
 * @throws OnejobError E_DAEMON_CUT when the source ends before the end frame, E_API_ANSWER when it is not framed.
 */
export async function* readFrames(source: AsyncIterable<Uint8Array>): AsyncGenerator<Framed> {
  let head: Buffer = Buffer.alloc(0);
  let current: { kind: Exclude<Kind, 'end'>; left: number; held: Uint8Array[] } | null = null;
  for await (const chunk of source) {
    let rest = chunk;
    while (rest.length > 0) {
      if (current === null) {
        const missing = headerLength - head.length;
        head = Buffer.concat([head, rest.subarray(0, missing)]);
        rest = rest.subarray(missing);
        if (head.length < headerLength) continue;
        const kind = kinds[head.readUInt8(0)];
        const left = head.readUInt32BE(1);
        head = Buffer.alloc(0);
        if (kind === undefined || left > maxPayload) {
          throw new OnejobError('E_API_ANSWER', 'Cannot read the output: the daemon sent invalid data (not a frame).');
        }
        if (kind === 'end') return;
        current = { kind, left, held: [] };
        continue;
      }
      const bytes = rest.subarray(0, current.left);
      rest = rest.subarray(bytes.length);
      current.left -= bytes.length;
      const { kind, left, held } = current;
      if (kind === 'stdout' || kind === 'stderr') {
        if (bytes.length > 0) yield { stream: kind, bytes };
      } else if (kind === 'terminalStdout' || kind === 'terminalStderr') {
        if (bytes.length > 0) yield { stream: kind === 'terminalStdout' ? 'stdout' : 'stderr', bytes, forTerminal: true };
      } else {
        held.push(bytes);
        if (left === 0) yield kind === 'gap' ? await readGap(Buffer.concat(held)) : { stream: kind, bytes: Buffer.concat(held) };
        if (left === 0 && kind === 'error') return;
      }
      if (left === 0) current = null;
    }
  }
  throw new OnejobError('E_DAEMON_CUT', 'The connection to the daemon was cut in the middle of the output.', { retry: true });
}

/** Loads the schema only where output is missing, since most commands never see that. */
async function readGap(payload: Uint8Array): Promise<LogPiece> {
  const { gapBody } = await import('./schema.ts');
  return gapPiece(gapBody.parse(JSON.parse(Buffer.from(payload).toString())));
}
