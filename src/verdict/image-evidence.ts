/** What the end of a job says about the image that its sandbox was made from. Pure. */

import { type Ending, judgeEnding, type Verdict } from '../contract/verdict.ts';
import type { Exit } from '../core/slot.ts';

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
