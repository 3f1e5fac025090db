/**
 * Whose fault the end of a job was: its own code's, the infrastructure's, or unknown. Pure. Unknown is an answer; a wrong one is
 * not, so whatever could have either cause is unknown.
 */
import type { Exit, JobResult } from '../core/slot.ts';
import { isJobsOwn } from '../errors.ts';

export const verdictKinds = ['passed', 'cancelled', 'code', 'infrastructure', 'unknown'] as const;
export type VerdictKind = (typeof verdictKinds)[number];

/** What the ends of jobs are compared by. */
export const historyAxes = ['pool', 'service', 'image', 'device', 'hour', 'day'] as const;
export type HistoryAxis = (typeof historyAxes)[number];

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

/** How a CI service says that its job ended; null: it did not say, or in a word that onejob does not know. */
export type Outcome = 'passed' | 'failed' | 'cancelled' | 'lost';

/** The end of a job of a service that keeps its own jobs. `note`: what onejob knows of it; a sentence or null. */
interface Reported {
  readonly kind: 'reported';
  readonly word: string;
  readonly outcome: Outcome | null;
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
  /** Whether its sandbox was made from its own recipe, such as an image that its client chose. */
  readonly ownRecipe: boolean;
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
      return { kind: 'code', why: 'the job ran past its time limit', evidence: ['time limit'] };
    case 'disk':
      return { kind: 'code', why: "the job's files took more space than its pool allows", evidence: ['disk limit'] };
    case 'unstartable': {
      const { failure } = result;
      const own = failure.code === 'E_JOB_REQUEST' || (ending.ownRecipe && !failure.retry);
      // A missing workspace or files that cannot be unpacked may be anybody's.
      const kind = own ? 'code' : isJobsOwn(failure) ? 'unknown' : 'infrastructure';
      return { kind, why: 'the job could not be started', evidence: [`${failure.code}: ${failure.message}`] };
    }
    default:
      return judgeExit(result, ending);
  }
}

function judgeExit(exit: Exit, { memoryLimited }: Pick<Ending, 'memoryLimited'>): Verdict {
  switch (exit.kind) {
    case 'code': {
      const { code } = exit;
      const evidence = [`exit code ${code}`];
      if (code === 0) return { kind: 'passed', why: 'the job exited with 0', evidence };
      // A shell's code for SIGKILL, which a job rarely sends itself; so does the kernel when the host runs out of memory.
      if (code === 137) return { kind: 'unknown', why: 'somebody killed a command of the job', evidence };
      return { kind: 'code', why: `the job exited with ${code}`, evidence };
    }
    case 'signal': {
      const evidence = [`signal ${exit.signal}`];
      // Others than the job may send these; it raises the rest itself, such as SEGV.
      const isSent = /^(SIG)?(KILL|TERM|HUP|INT|QUIT|STOP|PWR|USR[12])$/.test(exit.signal);
      return { kind: isSent ? 'unknown' : 'code', why: `the job was ended by ${exit.signal}`, evidence };
    }
    case 'oom':
      return memoryLimited
        ? { kind: 'code', why: 'the job used more memory than its agent is allowed to', evidence: ['OOM kill'] }
        : { kind: 'unknown', why: 'the host ran out of memory, and the job had no memory limit', evidence: ['OOM kill'] };
    case 'lost':
      return { kind: 'infrastructure', why: `its agent was lost: ${exit.reason}`, evidence: ['agent lost'] };
  }
}

function judgeReport({ word, outcome, note }: Reported, ending: Ending, exit: Exit | null): Verdict {
  const said = `its CI service reports "${word}"`;
  const evidence = [`result ${word}`, ...(note === null ? [] : [note])];
  switch (outcome) {
    case 'passed':
      return { kind: 'passed', why: said, evidence };
    case 'cancelled':
      return { kind: 'cancelled', why: said, evidence };
    case 'lost':
      // Its sandbox may say that the job itself took its agent down.
      if (exit?.kind === 'oom') return { ...judgeExit(exit, ending), evidence: [...evidence, 'OOM kill'] };
      return { kind: 'infrastructure', why: `${said}: its agent was lost`, evidence };
    case null:
      return { kind: 'unknown', why: said, evidence };
    case 'failed': {
      // An agent ends with 0 or with its job's code. What else ends it also ends its job.
      if (exit === null || exit.kind === 'code') return { kind: 'code', why: said, evidence };
      const ended = judgeExit(exit, ending);
      return { ...ended, evidence: [...evidence, ...ended.evidence] };
    }
  }
}
