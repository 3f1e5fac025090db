/**
 * An Engine's log, as it sends it and as it stores it. On the wire each frame holds one message: `[stream, 0, 0, 0, length32]`, a
 * time stamp, a space and the bytes (Engine API, ContainerAttach and ContainerLogs with `timestamps`).
 */

export interface LogFrame {
  readonly stream: 'stdout' | 'stderr';
  /** Nanoseconds since the epoch. */
  readonly time: bigint;
  readonly bytes: Buffer<ArrayBufferLike>;
}

/** Splits a stream into frames, wherever the network has cut it. Frames share memory with the pushed chunks. */
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

/** Reads RFC 3339 with up to nine digits. Consecutive stamps share their second, so that part is parsed once. */
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

/** Bytes of the longest entry: a piece of a line has at most 16 KiB, plus some metadata. */
const longest = 1 << 20;
const newline = Buffer.from('\n');

/** The file does not have the expected format. */
export class UnknownEntries extends Error {}

interface Fields {
  source: number;
  time: bigint;
  lineAt: number;
  lineEnd: number;
  isPartial: boolean;
  isLast: boolean;
}

/**
 * The files of the Engine's log driver `local` (moby, daemon/logger/local): entries of `length u32 BE · LogEntry · length u32
 * BE`, where LogEntry is protobuf: 1 source · 2 time_nano · 3 line · 4 partial · 5 metadata of the partial (1 last · 2 id · 3
 * ordinal). Unchanged from Engine 18.09 to 28. Anything else is refused, and read through the API instead.
 *
 * Splits a file into frames, wherever it was cut. Frames share memory with the pushed chunks. A line has its newline, unless it
 * continues in the next entry or never had one. @throws UnknownEntries
 */
export function createEntryReader() {
  let held: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  return {
    /** Bytes of an incomplete entry. */
    get left(): number {
      return held.length;
    },
    push(chunk: Buffer<ArrayBufferLike>): LogFrame[] {
      const buffer = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
      const frames: LogFrame[] = [];
      let at = 0;
      while (at + 8 <= buffer.length) {
        const length = buffer.readUInt32BE(at);
        if (length > longest) throw new UnknownEntries(`an entry of ${length} bytes`);
        const end = at + 4 + length;
        if (end + 4 > buffer.length) break;
        if (buffer.readUInt32BE(end) !== length) throw new UnknownEntries('an entry without its end');
        const { source, time, lineAt, lineEnd, isPartial, isLast } = fieldsOf(buffer, at + 4, end);
        const stream = source === 0x65 ? 'stderr' : 'stdout';
        let bytes = buffer.subarray(lineAt, lineEnd);
        if (!isPartial || isLast) {
          // The byte after the line was read already, so the newline can overwrite it without a copy.
          if (lineEnd < buffer.length) {
            buffer[lineEnd] = 10;
            bytes = buffer.subarray(lineAt, lineEnd + 1);
          } else bytes = Buffer.concat([bytes, newline]);
        }
        frames.push({ stream, time, bytes });
        at = end + 4;
      }
      held = buffer.subarray(at);
      return frames;
    },
  };
}

function fieldsOf(buffer: Buffer<ArrayBufferLike>, from: number, end: number): Fields {
  const fields: Fields = { source: 0, time: 0n, lineAt: end, lineEnd: end, isPartial: false, isLast: false };
  let at = from;
  while (at < end) {
    const tag = buffer[at++] ?? 0;
    // Times have 63 bits, but numbers are exact only below 2^53, so a time is built from two numbers.
    let low = 0;
    let high = 0;
    let shift = 0;
    for (let byte = 0x80; byte >= 0x80; shift += 7) {
      if (at >= end || shift > 63) throw new UnknownEntries('a number without its end');
      byte = buffer[at++] ?? 0;
      if (shift < 28) low += (byte & 0x7f) * 2 ** shift;
      else high += (byte & 0x7f) * 2 ** (shift - 28);
    }
    const isBytes = (tag & 7) === 2;
    if (isBytes && at + low > end) throw new UnknownEntries('a field longer than its entry');
    switch (tag) {
      case 0x0a: // "stdout" and "stderr" differ in their fourth letter
        fields.source = buffer[at + 3] ?? 0;
        break;
      case 0x10:
        fields.time = (BigInt(high) << 28n) | BigInt(low);
        break;
      case 0x1a:
        fields.lineAt = at;
        fields.lineEnd = at + low;
        break;
      case 0x20:
        fields.isPartial = low !== 0;
        break;
      case 0x2a:
        fields.isLast = low >= 2 && buffer[at] === 0x08 && buffer[at + 1] === 1;
        break;
      default:
        if ((tag & 7) !== 0 && !isBytes) throw new UnknownEntries(`a field of kind ${tag & 7}`);
    }
    if (isBytes) at += low;
  }
  return fields;
}
