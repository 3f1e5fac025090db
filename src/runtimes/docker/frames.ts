/**
 * The wire format of an Engine's log: frames of one message each, `[stream, 0, 0, 0, length32]`, then a time stamp, a
 * space and the bytes (Engine API, ContainerAttach and ContainerLogs with `timestamps`).
 */

export interface LogFrame {
  readonly stream: 'stdout' | 'stderr';
  /** Nanoseconds since the epoch. */
  readonly time: bigint;
  readonly bytes: Buffer<ArrayBufferLike>;
}

/** Takes a stream apart, however the network has cut it. Frames share memory with what was pushed. */
export function createFrameReader() {
  let held: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  const timeOf = createClock();
  return (chunk: Buffer<ArrayBufferLike>): LogFrame[] => {
    const buffer = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
    const frames: LogFrame[] = [];
    let at = 0;
    while (at + 8 <= buffer.length) {
      const end = at + 8 + buffer.readUInt32BE(at + 4);
      if (end > buffer.length) break;
      const space = buffer.indexOf(0x20, at + 8);
      const stream = buffer[at] === 2 ? 'stderr' : 'stdout';
      if (space !== -1 && space < end) {
        frames.push({ stream, time: timeOf(buffer.toString('latin1', at + 8, space)), bytes: buffer.subarray(space + 1, end) });
      }
      at = end;
    }
    held = buffer.subarray(at);
    return frames;
  };
}

/** Reads RFC 3339 with up to nine digits; consecutive stamps share their second, so that is parsed once. */
function createClock(): (written: string) => bigint {
  let known = '';
  let base = 0n;
  return (written) => {
    const second = written.slice(0, 19);
    const rest = /^(?:\.(\d{1,9}))?(.*)$/.exec(written.slice(19));
    const zone = rest?.[2] ?? 'Z';
    if (second + zone !== known) {
      known = second + zone;
      base = BigInt(Date.parse(known)) * 1_000_000n;
    }
    return base + BigInt((rest?.[1] ?? '').padEnd(9, '0'));
  };
}
