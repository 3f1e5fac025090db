/** Reads the frames of `GET /v1/logs` in a browser; `src/contract/frames.ts` describes and writes them. */
import type { ErrorView } from '../../../src/contract/schema.ts';

/** Bytes of each stream. */
export interface Counts {
  readonly stdout: number;
  readonly stderr: number;
}

export type Frame =
  | { readonly kind: 'stdout' | 'stderr'; readonly bytes: Uint8Array }
  | { readonly kind: 'note'; readonly text: string }
  /** Output that is not kept, or with `asked` was not asked for. `isUncounted`: more than `missing` may be missing. */
  | { readonly kind: 'gap'; readonly missing: Counts; readonly asked: boolean; readonly isUncounted: boolean }
  | { readonly kind: 'error'; readonly error: ErrorView }
  | { readonly kind: 'end' };

/** By id; those for a terminal are shown alike. */
const kinds = ['end', 'stdout', 'stderr', 'note', 'error', 'gap', 'stdout', 'stderr'] as const;
const headerLength = 5;
const maxPayload = 1 << 20;

/** Returns a function that takes bytes as they come. Output is passed on also in the middle of a frame. @throws Error for other data */
export function createFrameReader(): (chunk: Uint8Array) => Frame[] {
  const head = new Uint8Array(headerLength);
  let headed = 0;
  let kind: (typeof kinds)[number] = 'end';
  let left = 0;
  let held: Uint8Array[] = [];
  return (chunk) => {
    const frames: Frame[] = [];
    let at = 0;
    while (at < chunk.length) {
      if (headed < headerLength) {
        const part = chunk.subarray(at, at + headerLength - headed);
        head.set(part, headed);
        headed += part.length;
        at += part.length;
        if (headed < headerLength) break;
        const found = kinds[head[0] ?? -1];
        left = new DataView(head.buffer).getUint32(1);
        if (found === undefined || left > maxPayload) throw new Error('The daemon sent invalid data (not a frame).');
        kind = found;
        held = [];
      } else {
        const bytes = chunk.subarray(at, at + left);
        at += bytes.length;
        left -= bytes.length;
        if (kind === 'stdout' || kind === 'stderr') frames.push({ kind, bytes });
        else held.push(bytes);
      }
      if (left > 0) continue;
      headed = 0;
      if (kind !== 'stdout' && kind !== 'stderr') frames.push(whole(kind, held));
    }
    return frames;
  };
}

function whole(kind: 'end' | 'note' | 'error' | 'gap', parts: readonly Uint8Array[]): Frame {
  const decoder = new TextDecoder();
  const text = parts.map((part) => decoder.decode(part, { stream: true })).join('') + decoder.decode();
  if (kind === 'end') return { kind };
  if (kind === 'note') return { kind, text };
  if (kind === 'error') return { kind, error: JSON.parse(text) as ErrorView };
  const { missing, asked = false, holes } = JSON.parse(text) as { missing: Counts; asked?: boolean; holes?: string };
  return { kind, missing, asked, isUncounted: holes === 'here' };
}
