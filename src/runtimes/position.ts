/** Where one stands in a sandbox's output. */
import type { LogChunk, LogPosition } from './runtime.ts';

export const start: LogPosition = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };

/** The position after one more chunk was kept. */
export function advance(position: LogPosition, chunk: LogChunk): LogPosition {
  const isLater = chunk.time > position.time;
  return {
    time: isLater ? chunk.time : position.time,
    atTime: isLater ? 1 : position.atTime + (chunk.time === position.time ? 1 : 0),
    stdout: position.stdout + (chunk.stream === 'stdout' ? chunk.bytes.length : 0),
    stderr: position.stderr + (chunk.stream === 'stderr' ? chunk.bytes.length : 0),
  };
}
