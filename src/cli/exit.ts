/** What became of a job, as an exit code and a sentence. */
import { constants } from 'node:os';
import type { JobView } from '../api/schema.ts';
import { formatDuration } from '../config/units.ts';

export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  /** The job ran past its time limit, as `timeout(1)` says it. */
  timeout: 124,
  /** The job could not be run, or was lost: nothing is known of the command itself. */
  notRun: 125,
  /** A shell, or onejob's gate, did not find the job's command. */
  notFound: 127,
  cancelled: 130,
  /** Killed for memory: 128 + KILL. */
  outOfMemory: 137,
  /** Ended for its files on disk: 128 + XFSZ. */
  outOfDisk: 153,
  /** Nobody reads our output any more: 128 + PIPE. */
  outputClosed: 141,
} as const;

/** `line`: why, when the code alone does not say; null when it does. `limit`: the time limit that was asked for with the job, ms; null: its pool's holds. */
export function verdict(job: JobView, limit: number | null): { readonly code: number; readonly line: string | null } {
  const { result, id } = job;
  switch (result?.kind) {
    case 'code':
      return { code: result.code, line: signalLine(result.code) };
    case 'signal': {
      const number = Object.entries(constants.signals).find(
        ([name]) => name === result.signal || name === `SIG${result.signal}`,
      )?.[1];
      return { code: 128 + (number ?? 0), line: `job ${id} was ended by ${result.signal}` };
    }
    case 'oom':
      return { code: exitCodes.outOfMemory, line: `job ${id} was killed because it used more memory than its agent is allowed to` };
    case 'timeout':
      return { code: exitCodes.timeout, line: `job ${id} ran past ${limitText(limit)}` };
    case 'disk':
      return {
        code: exitCodes.outOfDisk,
        line: `job ${id} was ended because its files took more disk space than its pool allows (disk in the config)`,
      };
    case 'cancelled':
      return { code: exitCodes.cancelled, line: `job ${id} was cancelled` };
    case 'lost':
      return { code: exitCodes.notRun, line: `job ${id} was lost: ${result.reason}` };
    case 'unstartable':
      return { code: exitCodes.notRun, line: `job ${id} could not be started: ${result.failure.message} (${result.failure.code})` };
    case 'reported':
      return { code: exitCodes.notRun, line: `job ${id} has ended, and its CI service reports: ${result.word}` };
    case undefined:
      return { code: exitCodes.notRun, line: `job ${id} ended without a result` };
  }
}

function limitText(limit: number | null): string {
  return limit === null
    ? "its pool's time limit (timeout in the config)"
    : `its time limit of ${formatDuration(limit)} (--timeout)`;
}

/** The signal that a shell tells of in an exit code of 128 and more, such as `SEGV`; null for any other code. */
function signalOf(code: number): string | null {
  const name = Object.entries(constants.signals).find(([, number]) => number === code - 128)?.[0];
  return name?.slice('SIG'.length) ?? null;
}

function signalLine(code: number): string | null {
  const signal = signalOf(code);
  return signal === null ? null : `exit code ${code} means that signal ${code - 128} (${signal}) ended a command of the job`;
}

/** What a job has said so far, as far as it matters for what is said of its end. */
export interface Said {
  /** Bytes on standard output. */
  stdout: number;
  /** Lines on standard error. */
  stderr: number;
}

/**
 * What to try when a job ended with 127 before it said anything but a shell's own complaint of one line; else null.
 * `image`: of its agent; null where that is not known, or there is none.
 */
export function missingCommand(
  { result, command }: JobView,
  said: Said,
  { workspace, image }: { readonly workspace: boolean; readonly image: string | null },
): string | null {
  if (result?.kind !== 'code' || result.code !== 127 || said.stdout > 0 || said.stderr > 1) return null;
  const [first = ''] = command;
  const isOwn = first.includes('/') && !first.startsWith('/');
  const where = isOwn
    ? workspace
      ? `check that ${first} is among the files that were sent (files that git ignores are not), and that the interpreter in its first line exists`
      : `with --no-workspace the job starts in an empty folder, so there is no ${first}`
    : image === null
      ? 'check that it is installed where the job ran'
      : `it may be missing from the image ${image}; --image chooses another`;
  return `exit code 127 means that a command was not found: ${where}`;
}

/** A result in a word or two, for tables. */
export function resultWord(job: JobView): string {
  const { result } = job;
  if (result === null) return 'ended';
  if (result.kind === 'reported') return result.word;
  if (result.kind === 'code') {
    const signal = signalOf(result.code);
    return result.code === 0 ? 'ok' : `exit ${result.code}${signal === null ? '' : ` (${signal})`}`;
  }
  return result.kind === 'signal' ? result.signal : result.kind;
}
