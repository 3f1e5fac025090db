/**
 * The format of a log file: records with a fixed head and some bytes. The heads alone say how much of a sandbox's output
 * the file covers, including dropped bytes, so following continues without a gap or a repeat.
 *
 * Head, little endian: type u8 · time u64 (ns) · chunks at that time u32 · bytes dropped u32 · bytes that follow u32. A `position`
 * has the number of holes before it in place of the dropped bytes.
 */
import type { LogPosition } from '../ports/runtime.ts';

export const headSize = 21;
/** Bytes after the head of a `position` record: stdout u64 · stderr u64. */
export const positionSize = 16;

/** `position` says where the whole log stands: output before it may be missing. */
export type RecordType = 'stdout' | 'stderr' | 'note' | 'position';
const types: readonly (RecordType | null)[] = [null, 'stdout', 'stderr', 'note', 'position'];

export interface RecordHead {
  readonly type: RecordType;
  readonly time: bigint;
  readonly atTime: number;
  readonly dropped: number;
  readonly length: number;
}

export function encodeHead(head: RecordHead): Buffer {
  const bytes = Buffer.allocUnsafe(headSize);
  bytes.writeUInt8(types.indexOf(head.type), 0);
  bytes.writeBigUInt64LE(head.time, 1);
  bytes.writeUInt32LE(head.atTime, 9);
  bytes.writeUInt32LE(head.dropped, 13);
  bytes.writeUInt32LE(head.length, 17);
  return bytes;
}

/** The head at `offset`; null if there is no valid one. */
export function decodeHead(bytes: Buffer, offset: number): RecordHead | null {
  if (bytes.length - offset < headSize) return null;
  const type = types[bytes.readUInt8(offset)] ?? null;
  if (type === null) return null;
  return {
    type,
    time: bytes.readBigUInt64LE(offset + 1),
    atTime: bytes.readUInt32LE(offset + 9),
    dropped: bytes.readUInt32LE(offset + 13),
    length: bytes.readUInt32LE(offset + 17),
  };
}

export function encodePosition(position: LogPosition): Buffer {
  const { time, atTime, holes } = position;
  const body = Buffer.alloc(positionSize);
  body.writeBigUInt64LE(BigInt(position.stdout), 0);
  body.writeBigUInt64LE(BigInt(position.stderr), 8);
  return Buffer.concat([encodeHead({ type: 'position', time, atTime, dropped: holes, length: positionSize }), body]);
}

/** The position after a record whose body starts at `offset`. */
export function positionAfter(before: LogPosition, head: RecordHead, bytes: Buffer, offset: number): LogPosition {
  const { time, atTime } = head;
  const more = head.dropped + head.length;
  switch (head.type) {
    case 'stdout':
      return { ...before, time, atTime, stdout: before.stdout + more };
    case 'stderr':
      return { ...before, time, atTime, stderr: before.stderr + more };
    case 'note':
      return before;
    case 'position':
      return {
        time,
        atTime,
        stdout: Number(bytes.readBigUInt64LE(offset)),
        stderr: Number(bytes.readBigUInt64LE(offset + 8)),
        holes: head.dropped,
      };
  }
}
