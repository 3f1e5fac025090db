/** What the proofs after an agent say about whose fault the end of its job was. Pure. */
import { z } from 'zod';
import type { DeviceEvidence } from '../contract/verdict.ts';
import { gradeXid } from '../gpu/proof-checks.ts';
import type { Proof } from '../store/devices.ts';

/** Checks that fail for hardware and driver only. A job can cause the others, such as memory that is still in use. */
const hardwareChecks: ReadonlySet<string> = new Set(['listed', 'health', 'eccErrors', 'kernelLog', 'recoveryAction']);

/** The part of `gpu/proof.ts`' evidence that counts here. Evidence of other versions says nothing. */
const evidence = z.object({
  checks: z.array(z.object({ check: z.string(), result: z.string() })).default([]),
  kernel: z.array(z.string()).default([]),
  message: z.string().nullable().default(null),
  /** Whether other agents may have used the device at the same time. */
  shared: z.boolean().default(false),
});

/**
 * Xid 94, a contained memory error, leaves the device usable but ends the program that touched the memory (NVIDIA's Xid catalogue),
 * so the catalogue's grade for the next use is not the one for the job.
 */
const endsJob = 94;

export function deviceEvidence(proofs: readonly Pick<Proof, 'device' | 'evidence'>[]): DeviceEvidence {
  const faults = new Set<string>();
  const doubts = new Set<string>();
  const errors = new Set<string>();
  for (const { device, evidence: found } of proofs) {
    const read = evidence.safeParse(found);
    if (!read.success) continue;
    const { checks, kernel, message, shared } = read.data;
    let told = 0;
    for (const line of kernel) {
      const xid = /\bXid \([^)]*\): (\d+)/.exec(line)?.[1];
      if (xid === undefined) continue;
      const { grade, meaning } = gradeXid(Number(xid));
      const text = `Xid ${xid}, ${meaning}, on ${device}`;
      const isFault = grade === 'reset' || grade === 'restart' || grade === 'hardware';
      if (isFault || grade === 'unknown') told += 1;
      if (isFault || (Number(xid) === endsJob && !shared)) faults.add(text);
      // Of several programs on a device, it ended one.
      else if (grade === 'unknown' || Number(xid) === endsJob) doubts.add(text);
      else if (grade !== 'info') errors.add(text);
    }
    const failed = checks.filter(({ check, result }) => result === 'failed' && hardwareChecks.has(check));
    // The lines above have said it already, unless its fault is without a number, such as a card that fell off the bus.
    const isTold = told > 0 && failed.every(({ check }) => check === 'kernelLog');
    if (failed.length > 0 && !isTold)
      faults.add(message?.replace(/\.$/, '') ?? `${failed.map(({ check }) => check).join(', ')} of ${device}`);
  }
  return { faults: [...faults], doubts: [...doubts], errors: [...errors] };
}
