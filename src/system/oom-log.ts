/**
 * What the kernel's log says about memory limits of control groups. An Engine reads the counters of a container's group after it was told
 * of a change. Where systemd makes the groups, it removes one as soon as nothing runs in it, so the Engine often comes too late, and reports
 * the container as killed by somebody (containerd pull request #12714; measured with Engine 28 on systemd 257: 9 of 16).
 */
import { closeSync, constants, openSync } from 'node:fs';
import { attempt } from '../base/errors.ts';
import { readRecords, recordSize } from './kernel-records.ts';
import { turn } from './system-clock.ts';

/** Reads before other work gets its turn. */
const burst = 500;
/** Reads of one look, for a log that grows meanwhile. */
const mostReads = 100_000;

/**
 * Whether the memory limit of the control group with `id` in its name has ended something since the boot, and not that of a group
 * below. false where the log cannot be read, or has forgotten it.
 */
export async function hasKernelEnded(id: string, path = '/dev/kmsg'): Promise<boolean> {
  // Facility 0 is the kernel: programs can write to its log, too (Documentation/ABI/testing/dev-kmsg).
  const record = new RegExp(String.raw`^[0-7],[^;\n]*;oom-kill:.*\boom_memcg=[^,\n]*\b${id}(?:\.scope)?,`, 'm');
  const fd = attempt(() => openSync(path, constants.O_RDONLY | constants.O_NONBLOCK));
  if (fd === null) return false;
  try {
    const buffer = Buffer.alloc(recordSize);
    for (let reads = 1; reads <= mostReads; reads++) {
      const bytes = readRecords(fd, buffer);
      if (bytes === 'end') return false;
      if (bytes !== 'overwritten' && record.test(buffer.toString('latin1', 0, bytes))) return true;
      if (reads % burst === 0) await turn();
    }
    return false;
  } catch {
    return false;
  } finally {
    closeSync(fd);
  }
}
