/** Reads records of the kernel's log device, which is open without blocking. */
import { readSync } from 'node:fs';
import { codeOf } from '../base/errors.ts';

/** A record is at most 8 KiB (CONSOLE_EXT_LOG_MAX); a read with less room fails. */
export const recordSize = 65_536;

/** How many bytes of it there are now; 0 when it was interrupted. @throws Error if it cannot be read */
export function readRecords(fd: number, into: Buffer): number | 'end' | 'overwritten' {
  try {
    const bytes = readSync(fd, into, 0, into.length, null);
    return bytes === 0 ? 'end' : bytes;
  } catch (error) {
    const code = codeOf(error);
    if (code === 'EAGAIN') return 'end';
    // The kernel wrote faster than we read, and continues with the oldest record it has.
    if (code === 'EPIPE') return 'overwritten';
    if (code === 'EINTR') return 0;
    throw error;
  }
}
