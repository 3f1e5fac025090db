/**
 * Whose fault the end of a job was: its own code's, the infrastructure's, the configuration's, or unknown. Pure. Unknown is an answer;
 * a wrong one is not, so whatever could have either cause is unknown.
 */

import { constants } from 'node:os';
import { type ErrorCode, isEngineAway, isJobsOwn, isOwnersToMend } from '../base/errors.ts';
import { formatBytes, formatDuration } from '../base/units.ts';
import type { FailedIn, Outcome } from '../core/job-end.ts';
import { type Exit, type JobResult, stoppedWithJob } from '../core/slot.ts';

export const verdictKinds = ['passed', 'cancelled', 'code', 'infrastructure', 'configuration', 'unknown'] as const;
export type VerdictKind = (typeof verdictKinds)[number];

/** What the ends of jobs are compared by. */
export const historyAxes = ['pool', 'service', 'image', 'device', 'hour', 'day'] as const;
export type HistoryAxis = (typeof historyAxes)[number];

/** Counted as one image: what more images a pool had on a day than have sums of their own. No image has such a name. */
export const otherImages = 'other images';

/** Whether somebody has to look for what went wrong. */
export function isFailure(kind: VerdictKind): boolean {
  return kind !== 'passed' && kind !== 'cancelled';
}

/** `why`: a sentence without its full stop. `evidence`: what it is based on, a line each. */
export interface Verdict {
  readonly kind: VerdictKind;
  readonly why: string;
  readonly evidence: readonly string[];
}

/**
 * The end of a job of a service that keeps its own jobs. `outcome`: what its word means; null: unknown. `failedIn`: what shows where it failed; null: nothing does. `note`: what onejob
 * knows of it; a sentence or null.
 */
interface Reported {
  readonly kind: 'reported';
  readonly word: string;
  readonly outcome: Outcome | null;
  readonly failedIn: FailedIn | null;
  readonly note: string | null;
}

/** What was known when the job ended. */
export interface Ending {
  /** null: nobody knows how it ended. */
  readonly result: JobResult | Reported | null;
  /** How its sandbox ended; null if that is the result itself, or unknown. */
  readonly exit: Exit | null;
  /** Whether it had a memory limit of its own. Without one, the host has run out of memory. */
  readonly memoryLimited: boolean;
  /** That limit in bytes, if it is known. */
  readonly memoryLimit?: number | null | undefined;
  /** Whether its sandbox was made from its own recipe, and whether its client chose the image. */
  readonly ownRecipe: boolean;
  readonly ownImage: boolean;
  /** Its time limit, ms, if that is known. */
  readonly timeLimit?: number | null | undefined;
}

/** What the proof after its agent found on its devices, a line each. */
export interface DeviceEvidence {
  /** Faults of the hardware or driver. */
  readonly faults: readonly string[];
  /** Errors that are not known to be anybody's. */
  readonly doubts: readonly string[];
  /** Errors that programs cause. */
  readonly errors: readonly string[];
}

export function judgeEnding(ending: Ending, { faults, doubts, errors }: DeviceEvidence): Verdict {
  const verdict = judgeResult(ending);
  // A card may fail under a job that did not need it. Nobody has to look for what did not go wrong.
  if (verdict.kind === 'passed' || verdict.kind === 'cancelled') return verdict;
  const evidence = [...verdict.evidence, ...faults, ...doubts, ...errors];
  const [fault] = faults;
  if (fault !== undefined) return { kind: 'infrastructure', why: `a device of the job failed: ${fault}`, evidence };
  if (doubts[0] !== undefined && verdict.kind === 'code')
    return { kind: 'unknown', why: `${verdict.why}, and a device reported an error: ${doubts[0]}`, evidence };
  return { ...verdict, evidence };
}

function judgeResult(ending: Ending): Verdict {
  const { result, exit } = ending;
  if (result === null) return { kind: 'unknown', why: 'nobody reported how the job ended', evidence: [] };
  switch (result.kind) {
    case 'reported':
      return judgeReport(result, ending, exit);
    case 'cancelled':
      return { kind: 'cancelled', why: 'the job was cancelled', evidence: [] };
    case 'timeout':
      return { kind: 'code', why: 'the job ran past its time limit', evidence: [limitText(ending)] };
    case 'disk':
      return { kind: 'code', why: "the job's files took more space than its pool allows", evidence: ['disk limit'] };
    case 'unstartable': {
      const { failure } = result;
      const own = failure.code === 'E_JOB_REQUEST' || (ending.ownImage && imageCodes.has(failure.code));
      // As with an Engine that is away: something is not there that every job of the pool needs, whatever it asks for.
      const isUnfit = ['E_NO_CONTAINERS', 'E_OCI_RUNTIME'].includes(failure.code);
      const isAway = isEngineAway(failure) || isUnfit || failure.code === 'E_REGISTRY_UNREACHABLE';
      // With a recipe of its own, a limit, a volume or the pool may be at fault; so may be anybody if its files cannot be put into it.
      const isEithers = (ending.ownRecipe || isJobsOwn(failure)) && !isAway;
      const kind = own ? 'code' : isEithers ? 'unknown' : isOwnersToMend(failure) ? 'configuration' : 'infrastructure';
      const why = isUnfit ? 'the configuration of its pool does not fit this host' : 'the job could not be started';
      return { kind, why, evidence: [`${failure.code}: ${failure.message}`] };
    }
    default:
      return judgeExit(result, ending);
  }
}

function limitText({ timeLimit = null }: Ending): string {
  return timeLimit === null ? 'time limit' : `time limit ${formatDuration(timeLimit)}`;
}

/** Faults of an image on any host. */
const imageCodes: ReadonlySet<string> = new Set<ErrorCode>(['E_IMAGE_NOT_FOUND', 'E_NO_SHELL']);

/** Signals that others than the job may send; it raises the rest itself, such as SEGV. */
const sent: ReadonlySet<string> = new Set(['HUP', 'INT', 'QUIT', 'KILL', 'USR1', 'USR2', 'TERM', 'STOP', 'PWR']);

/** The signal of a code of a shell or runtime (128 and more) that somebody may have sent; null for any other code. */
function sentSignal(code: number): string | null {
  const name = Object.entries(constants.signals)
    .find(([, number]) => number === code - 128)?.[0]
    .slice('SIG'.length);
  return name !== undefined && sent.has(name) ? name : null;
}

function judgeExit(exit: Exit, { memoryLimited, memoryLimit = null }: Pick<Ending, 'memoryLimited' | 'memoryLimit'>): Verdict {
  switch (exit.kind) {
    case 'code': {
      const { code } = exit;
      const evidence = [`exit code ${code}`];
      if (code === 0) return { kind: 'passed', why: 'the job exited with 0', evidence };
      const signal = sentSignal(code);
      if (signal !== null) return { kind: 'unknown', why: `the job, or a command of it, was ended by ${signal}`, evidence };
      return { kind: 'code', why: `the job exited with ${code}`, evidence };
    }
    case 'signal': {
      const evidence = [`signal ${exit.signal}`];
      const isSent = sent.has(exit.signal.replace(/^SIG/, ''));
      return { kind: isSent ? 'unknown' : 'code', why: `the job was ended by ${exit.signal}`, evidence };
    }
    case 'oom': {
      const evidence = oomEvidence(exit);
      if (!memoryLimited) return { kind: 'unknown', why: 'the host ran out of memory, and the job had no memory limit', evidence };
      const than = memoryLimit === null ? 'its agent is allowed to' : `its limit of ${formatBytes(memoryLimit)}`;
      return { kind: 'code', why: `the job used more memory than ${than}`, evidence };
    }
    case 'lost':
      // Its owner did it, which says nothing about the host. The job itself may have been about to pass or to fail.
      if (exit.reason === stoppedWithJob) return { kind: 'unknown', why: stoppedWithJob, evidence: [stoppedWithJob] };
      return { kind: 'infrastructure', why: `its agent was lost: ${exit.reason}`, evidence: ['agent lost'] };
  }
}

function oomEvidence({ peak }: Extract<Exit, { kind: 'oom' }>): readonly string[] {
  return ['OOM kill', ...(peak === undefined ? [] : [`${formatBytes(peak)} of memory at most`])];
}

function judgeReport({ word, outcome, failedIn, note }: Reported, ending: Ending, exit: Exit | null): Verdict {
  const said = `its CI service reports "${word}"`;
  const evidence = [`result ${word}`, ...(note === null ? [] : [note])];
  switch (outcome) {
    case 'passed':
      return { kind: 'passed', why: said, evidence };
    case 'cancelled':
      return { kind: 'cancelled', why: said, evidence };
    case 'lost':
      // A job can take its agent down, by memory or by a signal.
      if (exit?.kind === 'oom') return { ...judgeExit(exit, ending), evidence: [...evidence, ...oomEvidence(exit)] };
      if (exit?.kind === 'lost') return { ...judgeExit(exit, ending), evidence: [...evidence, 'agent lost'] };
      return { kind: 'unknown', why: `${said}: its agent was lost`, evidence };
    case null:
      return { kind: 'unknown', why: said, evidence };
    case 'failed': {
      // An agent ends with 0 or with its job's code. What else ends it also ends its job.
      const isItsOwn = exit === null || (exit.kind === 'code' && sentSignal(exit.code) === null);
      if (!isItsOwn) {
        const ended = judgeExit(exit, ending);
        return { ...ended, evidence: [...evidence, ...ended.evidence] };
      }
      if (failedIn === 'script') return { kind: 'code', why: said, evidence };
      const where = failedIn === 'runner' ? 'it failed outside of its script' : 'nobody says whether its script failed';
      return { kind: 'unknown', why: `${said}, but ${where}`, evidence };
    }
  }
}
