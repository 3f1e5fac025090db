/**
 * `onejob run`: submits one command, shows its output, fetches its artifacts, and exits as it did.
 *
 * An accepted job belongs to the daemon. A closed terminal, a second Ctrl-C or kill -9 here never ends it: only the first INT or
 * TERM does, or an output that nobody reads any more.
 */

import { randomBytes } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { join, resolve } from 'node:path';
import type { Client } from '../api/client.ts';
import { abortable } from '../base/abortable.ts';
import { attempt, hasCode, OnejobError } from '../base/errors.ts';
import { formatBytes } from '../base/units.ts';
import type { JobView, StatusView } from '../contract/schema.ts';
import { leaderOf } from '../store/lead.ts';
import { afterInBackground, systemClock } from '../system/system-clock.ts';
import type { PackedWorkspace } from '../workspace/pack.ts';
import { bringBack } from './artifacts.ts';
import { connect, isGone } from './connect.ts';
import { exitCodes, hear, missingCommand, type Said, type Script, verdict } from './exit.ts';
import { jobPrinter, Lasting } from './follow.ts';
import { findJob } from './jobs.ts';
import { checkNamedConfig } from './named-config.ts';
import { OutputClosed } from './output.ts';
import type { JobRunOptions } from './request.ts';
import type { Session } from './session.ts';
import { formatAge, plural } from './text.ts';
import { codeOf, untilEnded } from './wait.ts';

/** The exit code. @throws OnejobError when the job could not be submitted */
export async function runJob(session: Session, options: JobRunOptions): Promise<number> {
  const { context, output } = session;
  const interrupts = new Interrupts();
  const { signal } = interrupts;
  const release = context.process.onSignal((signal) => interrupts.notice(signal));
  // It lists files while the daemon is found or started.
  const packing = options.workspace === null ? null : pack(session, options.workspace);
  packing?.catch(() => {});
  let lasting: Lasting | null = null;
  let submitted: string | null = null;
  try {
    const connection = await connect(session, { start: true, named: true, signal });
    // The status says it too, unless the daemon is gone before.
    const temporary = session.remote === null && leaderOf((await session.place()).stateDir)?.temporary === true;
    lasting = new Lasting(session, connection, { temporary, mayStart: true, signal, patience: options.patience });
    const jobs = await interrupts.orStop(submit(session, lasting, options, packing));
    const [job] = jobs;
    if (job === undefined) throw new RangeError('no job was submitted');
    submitted = job.array?.id ?? job.id;
    if (options.detach) {
      if (output.json) await output.value(options.array === null ? job : jobs);
      else await output.print(job.array?.id ?? job.id);
      return exitCodes.ok;
    }
    if (job.array !== undefined) return await attendArray(session, lasting, jobs, interrupts);
    if (output.json) await output.value({ event: 'submitted', job });
    return await attend(session, lasting, job, interrupts, options);
  } catch (error) {
    if (submitted !== null && hasCode(error, 'E_OUTPUT')) output.say(`${submitted} was submitted, and continues`);
    if (!signal.aborted) throw error;
    await output.flush();
    return context.process.exit(interrupts.code);
  } finally {
    release();
    output.progress(null);
    lasting?.connection.close();
    packing?.then(({ stream }) => stream.destroy()).catch(() => {});
  }
}

async function pack({ context, output }: Session, dir: string): Promise<PackedWorkspace> {
  const { packWorkspace } = await import('../workspace/pack.ts');
  return packWorkspace(resolve(context.cwd, dir), { warn: (text) => output.say(text) });
}

/** Submits the job, also to a daemon that is started again meanwhile: all of it may be done twice. */
async function submit(
  session: Session,
  lasting: Lasting,
  options: JobRunOptions,
  packing: Promise<PackedWorkspace> | null,
): Promise<JobView[]> {
  // With an id from here, a job is not accepted twice if the daemon went away after it had accepted the job.
  const id = randomBytes(6).toString('hex');
  let packed = packing;
  let workspace: string | null = null;
  let isUnsure = false;
  try {
    return await lasting.persist(`job ${id} is submitted again`, async ({ client }) => {
      // A daemon that has the job already must say so, whatever it has read.
      if (!isUnsure) await checkNamedConfig(session, client);
      const sending = workspace === null && options.workspace !== null ? (packed ?? pack(session, options.workspace)) : null;
      // A stream that was partly sent cannot be used again.
      packed = null;
      const needs = await Promise.all(options.needs.map((need) => needNamed(client, need)));
      const [status, sent] = await Promise.all([
        client.status(),
        sending === null ? workspace : sendWhenSound(session, client, { ...options.request, needs }, sending),
      ]);
      workspace = sent;
      lasting.temporary = status.temporary;
      const request = { ...options.request, id, workspace, needs };
      try {
        const jobs =
          options.array === null
            ? [await client.submit(request)]
            : await client.call('POST /v1/job-arrays', { body: { job: request, indices: [...options.array] } });
        sayOf(session, status, jobs[0]?.pool ?? '', options.detach);
        return jobs;
      } catch (error) {
        isUnsure ||= hasCode(error, 'E_DAEMON_CUT');
        throw error;
      }
    });
  } catch (error) {
    if (!(error instanceof OnejobError) || !isGone(error)) throw error;
    const known = isUnsure
      ? `It is unknown whether job ${id} was submitted; type "onejob jobs ${id}" once a daemon runs.`
      : `Job ${id} was not submitted.`;
    throw new OnejobError(error.code, `${error.message} ${known}`, { hint: error.hint, retry: true, cause: error });
  }
}

/** The daemon knows whole ids of jobs and arrays. */
async function needNamed(client: Client, id: string): Promise<string> {
  return /^[0-9a-f]{12}$/.test(id) ? id : ((await findJob(client, id))?.id ?? id);
}

/** What concerns the host or the job's pool; what concerns only other pools is for `status`. */
function sayOf({ output }: Session, { pools, problems, configChanged }: StatusView, pool: string, detach: boolean): void {
  const notes = pools.find(({ name }) => name === pool)?.notes ?? [];
  const ofPools = new Set(pools.flatMap((one) => one.notes ?? []));
  const about = problems.filter((problem) => notes.includes(problem) || !ofPools.has(problem));
  const rest = detach ? [] : notes.filter((note) => !problems.includes(note));
  for (const line of [...rest, configChanged, ...about]) if (line !== null) output.say(line);
}

/** Checks the request first, so that a mistake in it is reported before gigabytes are sent. */
async function sendWhenSound(
  { context, output, remote }: Session,
  client: Client,
  request: JobRunOptions['request'],
  packing: Promise<PackedWorkspace>,
): Promise<string> {
  await client.call('POST /v1/jobs/check', { body: { ...request, id: null, workspace: null } });
  const [packed, { sendWorkspace }] = await Promise.all([packing, import('./send-workspace.ts')]);
  const id = await sendWorkspace(packed, {
    client,
    cacheHome: context.environment.cacheHome,
    // Hosts may share the folder of a user.
    daemon: remote?.shown ?? `${hostname()} ${client.socket}`,
    warn: (text) => output.say(text),
    progress: (sent, of) => output.progress(`sending the workspace: ${formatBytes(sent)} of ${formatBytes(of)}`),
  });
  output.progress(null);
  return id;
}

/** Waits until the jobs of an array are done, a line for each; their output is for `logs`. */
async function attendArray(session: Session, lasting: Lasting, jobs: readonly JobView[], interrupts: Interrupts): Promise<number> {
  const { output } = session;
  const array = jobs[0]?.array?.id ?? '';
  if (output.json) await output.value({ event: 'submitted', jobs });
  else {
    const files = jobs[0]?.artifacts.length ? ', "onejob artifacts JOB" brings back its files' : '';
    output.say(`array ${array} of ${plural(jobs.length, 'job')}; "onejob logs JOB" shows the output of one${files}`);
  }
  interrupts.on(
    () => {
      output.say(`cancelling array ${array}; press Ctrl-C again to leave it to the daemon`);
      // The command waits for the end of the jobs also if this fails.
      lasting
        .persist(`array ${array} keeps running`, ({ client }) => client.cancelArray(array))
        .catch((error: unknown) => interrupts.signal.aborted || output.fail(error));
    },
    () => output.say(`array ${array} is left to the daemon; "onejob wait ${array}" waits for it, "onejob cancel ${array}" ends it`),
  );
  const ended = await untilEnded(session, lasting, jobs, interrupts.signal);
  if (output.json) await output.value({ event: 'ended', jobs: ended, exit: codeOf(ended) });
  return codeOf(ended);
}

/** Follows an accepted job until it is done. */
async function attend(
  session: Session,
  lasting: Lasting,
  job: JobView,
  interrupts: Interrupts,
  { request, workspace }: JobRunOptions,
): Promise<number> {
  const { output } = session;
  const printer = jobPrinter(output);
  const cancel = (why: string) => {
    output.say(why);
    // Even if this fails, the command waits for the end of the job.
    lasting.persist(`job ${job.id} keeps running`, ({ client }) => client.cancel(job.id)).catch(() => {});
  };
  interrupts.on(
    () => cancel(`cancelling job ${job.id}; press Ctrl-C again to leave it to the daemon`),
    () => leave(session, job.id),
  );
  const stopWatching = watchQueue(session, () => lasting.connection.client, job.id);
  let closed = false;
  /** Streams that cannot be written: a full disk ends neither the job nor the other stream. */
  const failed = new Set<string>();
  const said: Said = { stdout: '', lines: 0 };
  try {
    const done = await lasting.followJob(job.id, async (piece) => {
      stopWatching();
      hear(said, piece);
      if (closed || failed.has(piece.stream)) return;
      try {
        await interrupts.orStop(printer.show(piece));
      } catch (error) {
        if (hasCode(error, 'E_OUTPUT')) {
          failed.add(piece.stream);
          output.fail(error);
          return output.say(`job ${job.id} continues; "onejob logs ${job.id}" shows all of its output`);
        }
        if (!(error instanceof OutputClosed)) throw error;
        closed = true;
        cancel(`the reader of the output is gone; cancelling job ${job.id}`);
      }
    });
    stopWatching();
    const { code, line } = verdict(done, request.timeout ?? null);
    const wanted = request.artifacts ?? [];
    const isWhole = wanted.length === 0 || (await fetchArtifacts(session, lasting, done.id, wanted));
    // What happened apart from the result: missing artifacts, an agent that was lost before.
    if (done.reason !== null && line?.includes(done.reason) !== true) output.say(done.reason);
    if (line !== null) output.say(line);
    if (done.held != null) {
      const left = formatAge(Math.max(0, done.held.until - systemClock.wall()));
      output.say(`the files of job ${job.id} are held for ${left}: "onejob shell ${job.id}" opens a terminal in them`);
    }
    if (code === exitCodes.notFound || code === exitCodes.notExecutable) {
      const image = request.image ?? (await imageOf(lasting, job.pool));
      const hint = missingCommand(done, said, {
        workspace: workspace !== null,
        image,
        script: workspace === null ? null : scriptOf(resolve(session.context.cwd, workspace), request.command),
      });
      if (hint !== null) output.say(hint);
    }
    // Scripts return codes on purpose, and read what is said here; a person may wonder.
    if (done.result?.kind === 'code' && code !== exitCodes.ok && output.isTerminal('stderr') && !output.json)
      output.say(`job ${job.id} ended with exit code ${code}; "onejob jobs ${job.id}" says what is known about it`);
    // Nobody should take a part of the output or of the artifacts for the whole.
    const isMissing = failed.size > 0 || !isWhole;
    const exit = isMissing && code === exitCodes.ok ? exitCodes.failed : code;
    if (output.json && !closed && failed.size === 0) await output.value({ event: 'ended', job: done, exit });
    return closed ? exitCodes.outputClosed : exit;
  } catch (error) {
    if (!isGone(error)) throw error;
    output.fail(error);
    leave(session, job.id);
    return exitCodes.notRun;
  } finally {
    stopWatching();
  }
}

/** The command as a script in the folder that was sent; null for any other command. */
function scriptOf(folder: string, [first = '']: readonly string[]): Script | null {
  if (!first.includes('/') || first.startsWith('/')) return null;
  return attempt(() => {
    const path = join(folder, first);
    const stats = statSync(path);
    if (!stats.isFile()) return null;
    // Scripts are short.
    const [firstLine = ''] = stats.size > 2 ** 20 ? [] : readFileSync(path, 'latin1').split('\n', 1);
    return { firstLine, isExecutable: (stats.mode & 0o111) !== 0 };
  });
}

/** The image of a pool's agents; null if it is unknown. */
async function imageOf({ connection }: Lasting, pool: string): Promise<string | null> {
  const status = await connection.client.status().catch(() => null);
  return status?.pools.find(({ name }) => name === pool)?.image ?? null;
}

/** Whether all that was kept is here. */
async function fetchArtifacts(session: Session, lasting: Lasting, id: string, wanted: readonly string[]): Promise<boolean> {
  const files = await lasting.persist(`job ${id} keeps running`, ({ client }) => client.artifacts(id));
  return files === null || bringBack(session, id, files, wanted);
}

function leave({ output }: Session, id: string): void {
  output.say(`job ${id} is left to the daemon; follow it with "onejob logs -f ${id}", end it with "onejob cancel ${id}"`);
}

/** Handles INT and TERM: before there is a job the first ends everything; afterwards the first cancels, and the second leaves. */
class Interrupts {
  #handlers: { first(): void; second(): void } | null = null;
  #count = 0;
  readonly #stop = new AbortController();
  /** Aborts when the command should wait for nothing any more. */
  readonly signal = this.#stop.signal;
  /** Exit code of the command once the signal has aborted. */
  code: number = exitCodes.cancelled;

  on(first: () => void, second: () => void): void {
    this.#handlers = { first, second };
  }

  notice(signal: 'SIGINT' | 'SIGTERM'): void {
    this.#count += 1;
    if (this.#count === 1 && this.#handlers !== null) {
      this.#handlers.first();
      return;
    }
    this.#handlers?.second();
    if (signal === 'SIGTERM') this.code = 143;
    this.#stop.abort();
  }

  /** For work that cannot be cancelled. @throws the reason of `signal` */
  orStop<T>(work: Promise<T>): Promise<T> {
    return abortable(work, this.signal);
  }
}

/** When it will probably start, in words; null if nobody knows. */
export function startText({ startsIn }: JobView): string | null {
  if (startsIn === undefined) return null;
  const [from, to] = [formatAge(startsIn.from), formatAge(startsIn.to)];
  if (to === '0s') return 'at once';
  if (from === '0s') return `within ${to}`;
  return from === to ? `in about ${to}` : `in ${from} to ${to}`;
}

/** ms between two looks: often at first, for a job that soon begins; then rarely, since hundreds of jobs may wait. */
const firstLook = 1_000;
const longestWait = 5_000;

/**
 * Shows the job's place in its queue until the returned function is called. Without a terminal, as in the log of another CI system,
 * it reports each reason to wait once.
 */
export function watchQueue({ output }: Session, client: () => Client, id: string): () => void {
  let stopped = false;
  const said = new Set<string>();
  const look = async () => {
    try {
      const job = await client().job(id);
      // The slot knows what its sandbox is doing, such as a pull.
      const note = job.state === 'reserved' ? await noteOf(client(), job.pool) : null;
      if (stopped) return;
      const line = waitingLine(job, note);
      if (output.showsProgress) output.progress(line);
      else if (job.state === 'queued' && job.reason !== null && line !== null && !said.has(job.reason)) {
        said.add(job.reason);
        output.say(line);
      }
      if (job.state === 'running') stop();
    } catch {
      // The code that follows the job reports a lost daemon.
    }
  };
  let cancel = (): void => {};
  const lookIn = (ms: number): void => {
    cancel = afterInBackground(ms, async () => {
      await look();
      if (!stopped) lookIn(Math.min(ms * 1.5, longestWait));
    });
  };
  lookIn(firstLook);
  const stop = () => {
    if (stopped) return;
    stopped = true;
    cancel();
    output.progress(null);
  };
  return stop;
}

async function noteOf(client: Client, name: string): Promise<string | null> {
  const { pools } = await client.status();
  const slots = pools.find((pool) => pool.name === name)?.slots ?? [];
  return slots.find((slot) => slot.note !== null)?.note ?? null;
}

/** What a job that has not begun waits for, in words; null if it has begun. `note`: what its slot does. */
export function waitingLine(job: JobView, note: string | null): string | null {
  const why = job.reason ?? note;
  const reason = why === null ? '' : `: ${why}`;
  if (job.state === 'reserved') return `an agent is being prepared for job ${job.id}${reason}`;
  if (job.state !== 'queued') return null;
  const { ahead } = job;
  const when = startText(job);
  // A job that needs others has no place yet.
  const place = ahead === undefined ? '' : ahead === 0 ? ', next in line' : `, ${ahead} before it`;
  return `job ${job.id} is waiting in pool ${job.pool}${place}${when === null ? '' : `, starts ${when}`}${reason}`;
}
