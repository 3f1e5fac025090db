/** Output that is not kept: how much, of which stream, and where. */
import type { LogPosition } from '../ports/runtime.ts';

/** Bytes of each stream. */
export type Counts = Pick<LogPosition, 'stdout' | 'stderr'>;

export interface Gap {
  readonly missing: Counts;
  /** Bytes of the job's output before it, including missing ones. */
  readonly after: Counts;
  /**
   * Where output of unknown length may be missing. `here`: the missing bytes are at least so many, or nobody knows. `before`: those
   * before it are at least so many. Omitted: every figure is exact.
   */
  readonly holes?: 'here' | 'before' | undefined;
  /** Left out on request (`--tail`), so nothing is said about it. */
  readonly asked?: boolean | undefined;
}

export const none: Counts = { stdout: 0, stderr: 0 };
export const streams = ['stdout', 'stderr'] as const;

export function plus(a: Counts, b: Counts): Counts {
  return { stdout: a.stdout + b.stdout, stderr: a.stderr + b.stderr };
}

/** What `a` has more than `b`; never negative. */
export function beyond(a: Counts, b: Counts): Counts {
  return { stdout: Math.max(0, a.stdout - b.stdout), stderr: Math.max(0, a.stderr - b.stderr) };
}

export function isNone({ stdout, stderr }: Counts): boolean {
  return stdout + stderr === 0;
}

/** Bytes of output in a piece, or missing according to it. */
export function gapSize({ stream, bytes, gap }: { stream: 'stdout' | 'stderr' | 'note'; bytes: Uint8Array; gap?: Gap }): Counts {
  if (gap !== undefined) return gap.missing;
  return stream === 'note' ? none : { ...none, [stream]: bytes.length };
}

/** The piece that marks missing output. */
export function gapPiece(gap: Gap) {
  return { stream: 'note', bytes: Buffer.from(gap.asked ? '' : `${gapLine(gap)}\n`), gap } as const;
}

function gapLine({ missing, after, holes }: Gap): string {
  const count = holes === 'here' ? 'at least ' : '';
  const place = holes === 'before' ? 'at least ' : '';
  if (isNone(missing)) {
    const begins = streams.map((stream) => `${bytes(after[stream])} of ${stream}`).join(' and ');
    return `output may be missing here, after ${begins}: it was deleted before it could be read or counted`;
  }
  const parts = streams.flatMap((stream) =>
    missing[stream] === 0 ? [] : [`${count}${bytes(missing[stream])} of ${stream} after ${place}its first ${bytes(after[stream])}`],
  );
  return `output is not kept here: ${parts.join(', ')}`;
}

function bytes(count: number): string {
  return `${count.toLocaleString('en-US')} ${count === 1 ? 'byte' : 'bytes'}`;
}
