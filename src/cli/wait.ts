/** `onejob wait`: until jobs or arrays have ended; `run --array` waits in the same way. */
import type { Client } from '../api/client.ts';
import { OnejobError } from '../base/errors.ts';
import type { JobView } from '../contract/schema.ts';
import { findDaemon } from './connect.ts';
import { exitCodes, resultWord, verdict } from './exit.ts';
import { Lasting } from './follow.ts';
import { endedBecause, findJob } from './jobs.ts';
import type { Session } from './session.ts';
import { formatAge, plural, printable } from './text.ts';

/**
 * The exit code of the job; of several: 0 if all passed, else 1. Ctrl-C ends only the waiting.
 * @throws OnejobError E_JOB_UNKNOWN, E_USAGE for an ambiguous id, E_DAEMON_ABSENT
 */
export async function waitForJobs(session: Session, ids: readonly string[]): Promise<number> {
  const { context, output } = session;
  const stop = new AbortController();
  let code: number = exitCodes.cancelled;
  const release = context.process.onSignal((signal) => {
    if (signal === 'SIGTERM') code = 143;
    stop.abort();
  });
  const connection = await findDaemon(session);
  if (connection === null) {
    release();
    throw new OnejobError('E_DAEMON_ABSENT', 'Cannot wait: no daemon is running.', { hint: 'Start it with "onejob up".' });
  }
  const lasting = new Lasting(session, connection, { temporary: false, mayStart: false, signal: stop.signal });
  try {
    const { client } = lasting.connection;
    const jobs: JobView[] = [];
    for (const id of ids) jobs.push(...(await jobsNamed(client, id)));
    const ended = await untilEnded(session, lasting, jobs, stop.signal);
    if (output.json) await output.value(ended);
    return codeOf(ended);
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    return code;
  } finally {
    release();
    output.progress(null);
    lasting.connection.close();
  }
}

/** A job, or all jobs of an array. @throws OnejobError E_JOB_UNKNOWN, E_USAGE */
async function jobsNamed(client: Client, id: string): Promise<JobView[]> {
  const array = await client.arrayJobs(id);
  if (array.length > 0) return array;
  const job = await findJob(client, id);
  if (job !== null) return [job];
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job or array ${id}.`, { hint: 'See "onejob jobs --all".' });
}

/** Waits for one after the other, so that a thousand jobs need one connection; prints a line for each. */
export async function untilEnded(
  session: Session,
  lasting: Lasting,
  jobs: readonly JobView[],
  signal: AbortSignal,
): Promise<JobView[]> {
  const { output } = session;
  const ended: JobView[] = [];
  for (const { id } of jobs) {
    output.progress(
      jobs.length === 1 ? `waiting for job ${id}` : `waiting for job ${id}, ${ended.length} of ${jobs.length} have ended`,
    );
    const job = await lasting.persist(`job ${id} keeps running`, ({ client }) => client.settled(id, signal));
    ended.push(job);
    output.progress(null);
    if (!output.json) await output.print(endedLine(job));
  }
  const failed = ended.filter((job) => verdict(job, null).code !== 0).length;
  if (jobs.length > 1 && !output.json) {
    const rest = failed === 0 ? 'all passed' : `${plural(failed, 'job')} did not pass`;
    output.say(`${plural(jobs.length, 'job')} ended, ${rest}`);
  }
  return ended;
}

/** As `waitForJobs` says. */
export function codeOf(ended: readonly JobView[]): number {
  const codes = ended.map((job) => verdict(job, null).code);
  return codes.length === 1 ? (codes[0] ?? exitCodes.ok) : codes.every((code) => code === 0) ? exitCodes.ok : exitCodes.failed;
}

function endedLine(job: JobView): string {
  const { id, array, startedAt, endedAt } = job;
  const place = array === undefined ? '' : ` [${array.index}]`;
  const took = startedAt === null || endedAt === null ? '' : ` after ${formatAge(endedAt - startedAt)}`;
  const why = endedBecause(job);
  return `${id}${place}: ${printable(resultWord(job))}${took}${why === null ? '' : ` — ${why}`}`;
}
