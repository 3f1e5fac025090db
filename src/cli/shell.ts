/** `onejob shell` and `unhold`: look at the files of a failed job that its pool holds, and remove them. */
import type { Client } from '../api/client.ts';
import type { RemoteShell } from '../api/shell-client.ts';
import { OnejobError } from '../base/errors.ts';
import type { JobView } from '../contract/schema.ts';
import { systemClock } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { titleOf } from './job-title.ts';
import { findJob } from './jobs.ts';
import type { Session } from './session.ts';
import { formatAge, terminalSize } from './text.ts';

export type ShellFlags = { readonly terminal?: boolean };

/**
 * The exit code of the shell. Whatever it prints is shown as it is: it is the user's own.
 * @throws OnejobError E_JOB_UNKNOWN, E_NOT_HELD, E_SHELL, E_DAEMON_*, E_USAGE
 */
export async function openShell(session: Session, id: string, command: readonly string[], flags: ShellFlags): Promise<number> {
  const { context, output } = session;
  const { stdout } = context;
  const stdin = context.stdin();
  const isTerminal = stdin.isTTY === true && stdout.isTTY === true;
  if (flags.terminal === true && !isTerminal)
    throw wrongUsage(
      '--terminal needs a terminal, and this command does not have one for input and output.',
      'Leave it out to run a command without one.',
    );
  const terminal = isTerminal && (command.length === 0 || flags.terminal === true) ? terminalOf(session) : null;
  return withDaemon(session, async (client) => {
    const job = await jobNamed(client, id);
    const shell = await client.shell(job.id, { command: command.length === 0 ? null : [...command], terminal });
    let ending: number | null = null;
    const end = (code: number) => {
      ending = code;
      shell.close();
    };
    const releases = [
      context.process.onSignal((signal) => end(signal === 'SIGTERM' ? 143 : exitCodes.cancelled)),
      context.process.onHangup(() => end(129)),
      ...(terminal === null ? [] : [lend(session, shell)]),
    ];
    if (terminal !== null && job.held != null)
      output.say(
        `job ${job.id} ran: ${titleOf(job)}; its files are held for ${formatAge(Math.max(0, job.held.until - systemClock.wall()))}`,
      );
    const typing = forward(stdin, shell);
    try {
      if (terminal !== null) stdin.setRawMode?.(true);
      return await shell.run(output.write);
    } catch (error) {
      if (ending !== null) return ending;
      throw error;
    } finally {
      if (terminal !== null) stdin.setRawMode?.(false);
      typing();
      for (const release of releases) release();
      shell.close();
    }
  });
}

function terminalOf({ context: { stdout, variables } }: Session) {
  const { TERM: term = '' } = variables;
  return { ...terminalSize(stdout), term: /^[\w.+-]{1,64}$/.test(term) ? term : 'xterm' };
}

/** Tells the shell of each new size of the terminal, until the returned function is called. */
function lend({ context: { stdout } }: Session, shell: RemoteShell): () => void {
  const resized = () => shell.resize(terminalSize(stdout));
  stdout.on('resize', resized);
  return () => void stdout.off('resize', resized);
}

/** Sends what is typed, or comes by a pipe, until the returned function is called. */
function forward(stdin: ReturnType<Session['context']['stdin']>, shell: RemoteShell): () => void {
  const send = (bytes: Buffer | string): void => {
    stdin.pause();
    void shell.write(Buffer.from(bytes)).then(() => isOpen && stdin.resume());
  };
  let isOpen = true;
  const end = () => shell.end();
  stdin.on('data', send).once('end', end);
  return () => {
    isOpen = false;
    stdin.off('data', send).off('end', end).pause();
    // A pipe that somebody keeps open would keep this process.
    if (stdin.isTTY !== true) stdin.destroy();
  };
}

async function jobNamed(client: Client, id: string): Promise<JobView> {
  const job = await findJob(client, id);
  if (job !== null) return job;
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'See "onejob jobs --all".' });
}

/** 1 when one could not be removed. */
export async function unholdJobs(session: Session, ids: readonly string[]): Promise<number> {
  const { output } = session;
  const failures: unknown[] = [];
  const jobs = await withDaemon(session, async (client) => {
    const done: JobView[] = [];
    for (const id of ids) {
      try {
        done.push(await client.unhold((await jobNamed(client, id)).id));
      } catch (error) {
        if (ids.length === 1 || !(error instanceof OnejobError) || error.retry) throw error;
        failures.push(error);
      }
    }
    return done;
  });
  if (output.json) await output.value(ids.length === 1 ? jobs[0] : jobs);
  else await output.print(...jobs.map((job) => `The files of job ${job.id} were removed.`));
  for (const error of failures) output.fail(error);
  return failures.length === 0 ? exitCodes.ok : exitCodes.failed;
}
