/** Exit codes of commands, and the end of a job as an exit code and a sentence. */
import { constants } from 'node:os';
import { OnejobError } from '../base/errors.ts';
import { formatDuration } from '../base/units.ts';
import { detailOf, endText, outcomeIn } from '../contract/outcome.ts';
import type { JobView } from '../contract/schema.ts';

export const exitCodes = {
  ok: 0,
  failed: 1,
  usage: 2,
  /** The job ran past its time limit, as `timeout(1)` says it. */
  timeout: 124,
  /** The job could not run, or was lost: nothing is known of the command itself. */
  notRun: 125,
  /** A shell, or onejob's gate, could not execute the job's command. */
  notExecutable: 126,
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

/** The error for a command that was typed in a wrong way. */
export function wrongUsage(message: string, hint?: string): OnejobError {
  return new OnejobError('E_USAGE', message, { hint });
}

/** The error for what would reach a job as other bytes. */
export function notUtf8(what: string): OnejobError {
  const hint = 'Write it in UTF-8, or let the job make the bytes: sh -c \'printf "\\351"\'.';
  return wrongUsage(`Cannot pass on ${what}: it is not UTF-8.`, hint);
}

/** `line`: why, if the code alone does not say; else null. `limit`: ms, as given with the job; null: the limit of its pool. */
export function verdict(job: JobView, limit: number | null): { readonly code: number; readonly line: string | null } {
  const { code, line } = endOf(job, limit);
  // What was lost or could not start says so itself.
  const isTold = job.result?.kind === 'lost' || job.result?.kind === 'unstartable';
  if (job.verdict?.kind !== 'infrastructure' || isTold) return { code, line };
  const blame = `the infrastructure is to blame, not the job: ${job.verdict.why}`;
  return { code, line: line === null ? `job ${job.id} failed, but ${blame}` : `${line}; ${blame}` };
}

function endOf(job: JobView, limit: number | null): { readonly code: number; readonly line: string | null } {
  const { result, id } = job;
  switch (result?.kind) {
    case 'code': {
      const { code } = result;
      const signal = signalOf(code);
      const means = `exit code ${code} means that signal ${code - 128} (${signal}) ended a command of the job`;
      return { code, line: signal === null ? null : means };
    }
    case 'signal': {
      const numbers: Readonly<Record<string, number>> = constants.signals;
      const number = numbers[result.signal] ?? numbers[`SIG${result.signal}`] ?? 0;
      return { code: 128 + number, line: `job ${id} was ended by ${result.signal}` };
    }
    case 'oom': {
      // Its verdict names the limit, unless a device is to blame.
      const { kind = null, why = '' } = job.verdict ?? {};
      const known = kind === 'code' || kind === 'unknown' ? why.replace(/^the job /, 'it ') : null;
      return {
        code: exitCodes.outOfMemory,
        line: `job ${id} was killed because ${known ?? 'it used more memory than its agent is allowed to'}`,
      };
    }
    case 'timeout': {
      const its =
        limit === null ? "pool's time limit (timeout in the config)" : `time limit of ${formatDuration(limit)} (--timeout)`;
      return { code: exitCodes.timeout, line: `job ${id} ran past its ${its}` };
    }
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
      return { code: reportedCode(job), line: `job ${id} has ended, and its CI service reports: ${result.word}` };
    case undefined:
      return { code: exitCodes.notRun, line: `job ${id} ended without a result` };
  }
}

/** The end of a job that its service reports in a word, as far as that is understood. */
function reportedCode(job: JobView): number {
  const codes = { passed: exitCodes.ok, failed: exitCodes.failed, cancelled: exitCodes.cancelled, lost: exitCodes.notRun };
  const outcome = outcomeIn(job);
  return outcome === null ? exitCodes.notRun : codes[outcome];
}

/** The signal that an exit code of a shell stands for (128 and more), such as `SEGV`; null for any other code. */
function signalOf(code: number): string | null {
  const name = Object.entries(constants.signals).find(([, number]) => number === code - 128)?.[0];
  return name?.slice('SIG'.length) ?? null;
}

/** What a job has printed: the beginning of its standard output, and lines on both streams, of which more than two do not count. */
export type Said = { stdout: string; lines: number };

/** Characters of `Said.stdout`, at most. */
const saidLimit = 300;

/** Adds what was printed. */
export function hear(said: Said, { stream, bytes }: { readonly stream: string; readonly bytes: Uint8Array }): void {
  if (said.lines > 1 || (stream !== 'stdout' && stream !== 'stderr')) return;
  if (stream === 'stdout') said.stdout += Buffer.from(bytes.subarray(0, saidLimit - said.stdout.length)).toString('utf8');
  said.lines += bytes.filter((byte) => byte === 10).length;
}

/** A shell's words, on standard output where a runtime has one stream for both. */
const complaint = /not found|no such file|permission denied|cannot execute/i;

/** A script of the workspace as it is here. */
export interface Script {
  /** Its first line, without the newline. */
  readonly firstLine: string;
  readonly isExecutable: boolean;
}

/**
 * What to try when a job ended with 126 or 127 and printed at most one line, a shell's own complaint; else null. `image`: of its
 * agent; null if it is unknown or there is none. `script`: the command, if it is a file of the workspace.
 */
export function missingCommand(
  { result, command: [first = ''] }: JobView,
  said: Said,
  { workspace, image, script }: { readonly workspace: boolean; readonly image: string | null; readonly script: Script | null },
): string | null {
  const code = result?.kind === 'code' ? result.code : 0;
  const isShells = said.lines <= 1 && (said.stdout === '' || complaint.test(said.stdout));
  if ((code !== 127 && code !== 126) || !isShells) return null;
  if (script !== null && /^#!.*\r$/.test(script.firstLine)) {
    const fix = `type "sed -i 's/\\r$//' ${first}", and in git write "* text=auto eol=lf" into .gitattributes`;
    return `exit code ${code}: the first line of ${first} ends with a carriage return (CRLF), which became part of its interpreter's name: ${fix}`;
  }
  if (code === 126) {
    const what = 'exit code 126 means that a command could not be executed';
    if (script?.isExecutable === false)
      return `${what}: ${first} is not executable: type "chmod +x ${first}", and in git "git update-index --chmod=+x ${first}"`;
    return `${what}: check that it is executable ("chmod +x"), made for this processor, and not on a file system that is mounted noexec`;
  }
  let where = 'check that it is installed where the job ran';
  if (first.includes('/') && !first.startsWith('/')) {
    where = workspace
      ? `check that ${first} is among the files that were sent (files that git ignores are not), and that the interpreter in its first line exists`
      : `with --no-workspace the job starts in an empty folder, so there is no ${first}`;
  } else if (image !== null) where = `it may be missing from the image ${image}; --image chooses another`;
  return `exit code 127 means that a command was not found: ${where}`;
}

/** How a job ended, for tables: in the words of all services, and what else is known. */
export function resultWord(job: JobView): string {
  const detail = detailOf(job.result);
  const signal = job.result?.kind === 'code' ? signalOf(job.result.code) : null;
  return endText(outcomeIn(job), signal === null ? detail : `${detail}, ${signal}`);
}
