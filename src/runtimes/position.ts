/** Where one stands in a sandbox's output. */
import type { LogChunk, LogPosition } from './runtime.ts';

export const start: LogPosition = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };

/**
 * The position after one more chunk was kept. A chunk older than the newest (the streams are read apart, so one may be kept late)
 * leaves the time alone: asking for output since the newest never brings it again.
 */
export function advance(position: LogPosition, chunk: LogChunk): LogPosition {
  const isLater = chunk.time > position.time;
  const more = (chunk.missing ?? 0) + chunk.bytes.length;
  return {
    time: isLater ? chunk.time : position.time,
    atTime: isLater ? 1 : position.atTime + (chunk.time === position.time ? 1 : 0),
    stdout: position.stdout + (chunk.stream === 'stdout' ? more : 0),
    stderr: position.stderr + (chunk.stream === 'stderr' ? more : 0),
  };
}
