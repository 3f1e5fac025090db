/** What became of a job, as an exit code and a sentence. */
import { constants } from 'node:os';
import type { JobView } from '../api/schema.ts';

export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  /** The job ran past its time limit, as `timeout(1)` says it. */
  timeout: 124,
  /** The job could not be run, or was lost: nothing is known of the command itself. */
  notRun: 125,
  cancelled: 130,
  /** Killed for memory: 128 + KILL. */
  outOfMemory: 137,
  /** Nobody reads our output any more: 128 + PIPE. */
  outputClosed: 141,
} as const;

export interface Verdict {
  readonly code: number;
  /** Why, when the code alone does not say; null when it does. */
  readonly line: string | null;
}

export function verdict(job: JobView): Verdict {
  const { result, id } = job;
  switch (result?.kind) {
    case 'code':
      return { code: result.code, line: null };
    case 'signal': {
      const number = Object.entries(constants.signals).find(
        ([name]) => name === result.signal || name === `SIG${result.signal}`,
      )?.[1];
      return { code: 128 + (number ?? 0), line: `job ${id} was ended by ${result.signal}` };
    }
    case 'oom':
      return { code: exitCodes.outOfMemory, line: `job ${id} was killed because it used more memory than its agent may` };
    case 'timeout':
      return { code: exitCodes.timeout, line: `job ${id} ran past its time limit` };
    case 'cancelled':
      return { code: exitCodes.cancelled, line: `job ${id} was cancelled` };
    case 'lost':
      return { code: exitCodes.notRun, line: `job ${id} was lost: ${result.reason}` };
    case 'unstartable':
      return { code: exitCodes.notRun, line: `job ${id} could not be started: ${result.failure.message} (${result.failure.code})` };
    case 'reported':
      return { code: exitCodes.notRun, line: `job ${id} has ended, and its CI service says: ${result.word}` };
    case undefined:
      return { code: exitCodes.notRun, line: `job ${id} ended without a result` };
  }
}

/** A result in a word or two, for tables. */
export function resultWord(job: JobView): string {
  const { result } = job;
  if (result === null) return 'ended';
  if (result.kind === 'reported') return result.word;
  if (result.kind === 'code') return result.code === 0 ? 'ok' : `exit ${result.code}`;
  return result.kind === 'signal' ? result.signal : result.kind;
}
