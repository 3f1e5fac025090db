/** What the proofs after an agent say about whose fault the end of its job was, and what that end says about its image. Pure. */
import { z } from 'zod';
import { type DeviceEvidence, type Ending, judgeEnding, type Verdict } from '../contract/verdict.ts';
import type { Exit } from '../core/slot.ts';
import { gradeXid } from '../gpu/xid.ts';
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
  for (const { device, evidence: written } of proofs) {
    const read = evidence.safeParse(written);
    if (!read.success) continue;
    const { checks, kernel, message, shared } = read.data;
    let graded = 0;
    for (const line of kernel) {
      const xid = /\bXid \([^)]*\): (\d+)/.exec(line)?.[1];
      if (xid === undefined) continue;
      const { grade, meaning } = gradeXid(Number(xid));
      const text = `Xid ${xid}, ${meaning}, on ${device}`;
      const isFault = grade === 'reset' || grade === 'restart' || grade === 'hardware';
      if (isFault || grade === 'unknown') graded += 1;
      if (isFault || (Number(xid) === endsJob && !shared)) faults.add(text);
      // Of several programs on a device, it ended one.
      else if (grade === 'unknown' || Number(xid) === endsJob) doubts.add(text);
      else if (grade !== 'info') errors.add(text);
    }
    const failed = checks.filter(({ check, result }) => result === 'failed' && hardwareChecks.has(check));
    // The lines above have said it already, unless its fault is without a number, such as a card that fell off the bus.
    const isTold = graded > 0 && failed.every(({ check }) => check === 'kernelLog');
    if (failed.length > 0 && !isTold)
      faults.add(message?.replace(/\.$/, '') ?? `${failed.map(({ check }) => check).join(', ')} of ${device}`);
  }
  return { faults: [...faults], doubts: [...doubts], errors: [...errors] };
}

/** `works`: whether the image ran a job to an end of its own. `why`: a sentence without its full stop. */
export interface ImageEvidence {
  readonly works: boolean;
  readonly why: string;
}

/** A shell exits with these when it could not run a command: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02 */
const notRun: ReadonlySet<number> = new Set([126, 127]);

/**
 * A job that ended with an exit code of its own, whatever it is, was run by its image. One that was lost, or could not be started,
 * speaks against the image. One that was cancelled, killed, ran into a limit or could not run a command says nothing: null.
 */
export function imageEvidence({ result, exit }: Ending, { kind, why }: Pick<Verdict, 'kind' | 'why'>): ImageEvidence | null {
  const end = result?.kind === 'reported' ? (exit ?? result) : result;
  switch (kind) {
    case 'passed':
      return { works: true, why };
    case 'code':
      return end?.kind === 'reported' || (end?.kind === 'code' && !notRun.has(end.code)) ? { works: true, why } : null;
    case 'infrastructure':
    case 'configuration':
      // Not a card that failed under it.
      return end?.kind === 'lost' || end?.kind === 'unstartable' ? { works: false, why } : null;
    case 'unknown':
      return result?.kind === 'reported' && result.outcome === 'lost' ? { works: false, why } : null;
    case 'cancelled':
      return null;
  }
}

/**
 * The same for an agent with a job of which nobody has said how it ended. A sandbox that was lost, or that somebody killed although
 * nobody asked for that (onejob writes down no exit for those that it stops itself), has taken its job with it.
 */
export function agentEvidence(exit: Exit | null): ImageEvidence | null {
  if (exit === null || exit.kind === 'oom') return null;
  const ending = { result: exit, exit: null, memoryLimited: false, ownRecipe: false, ownImage: false };
  const { kind } = judgeEnding(ending, { faults: [], doubts: [], errors: [] });
  if (exit.kind === 'lost') return { works: false, why: `its agent was lost: ${exit.reason}` };
  const how = exit.kind === 'signal' ? exit.signal : `exit code ${exit.code}`;
  return kind === 'unknown' ? { works: false, why: `its agent was killed (${how})` } : null;
}
