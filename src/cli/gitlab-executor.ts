/**
 * `onejob gitlab-executor`: the driver of gitlab-runner's custom executor (GitLab's documentation, "The Custom executor"). A GitLab job
 * is an attended job of the own queue, whose id follows from what gitlab-runner says in each of its calls; nothing else is kept.
 *
 * It must never pass on what is secret in a job: its scripts go to the sandbox on a connection, and its variables nowhere.
 */
import { hash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { z } from 'zod';
import type { Client } from '../api/client.ts';
import { hasCode, messageOf, OnejobError } from '../base/errors.ts';
import type { JobView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import { jsonOf } from '../system/json.ts';
import { afterInBackground, systemClock, timeLimit } from '../system/system-clock.ts';
import { connect } from './connect.ts';
import { verdict, wrongUsage } from './exit.ts';
import { ending, noBash, ready, running, waiting } from './gitlab-scripts.ts';
import { OutputClosed } from './output.ts';
import type { Session } from './session.ts';

export interface DriverFlags {
  readonly pool?: string;
  readonly devices?: number;
  readonly jobImages?: boolean;
}

/** What gitlab-runner says of the job. */
export interface GitlabJob {
  /** Id of the own queue's job. */
  readonly id: string;
  readonly name: string;
  /** null: unknown, or the pipeline has set one too. */
  readonly user: string | null;
  readonly image: string | null;
  readonly services: readonly string[];
  /** ms. */
  readonly timeout: number;
  readonly codes: { readonly build: number; readonly system: number };
  /** Where to write the exit code of a script; null for a gitlab-runner that does not read it. */
  readonly codeFile: string | null;
}

type Variables = Readonly<Record<string, string | undefined>>;

const services = z.array(z.object({ name: z.string() }));

/**
 * What the server has answered: gitlab-runner keeps it in JOB_RESPONSE_FILE. Variables can be set by the pipeline, too, and then have
 * two values in it. Its token and variables are secret.
 */
const response = z.object({
  job_info: z.object({ name: z.string(), project_full_path: z.string() }),
  runner_info: z.object({ timeout: z.number() }).nullish().catch(null),
  variables: z.array(z.object({ key: z.string(), value: z.string() })).catch([]),
});
export type JobResponse = z.output<typeof response>;

/** null: gitlab-runner is too old to keep it, or it is not readable. */
export async function jobResponse({ JOB_RESPONSE_FILE: path = '' }: Variables): Promise<JobResponse | null> {
  if (path === '') return null;
  const text = await readFile(path, 'utf8').catch(() => '');
  return response.safeParse(jsonOf(text)).data ?? null;
}

/** ms: the limit of a job whose server names none, or an odd one; and the longest that GitLab allows. */
const [safeLimit, longestLimit] = [86_400_000, 31 * 86_400_000];

/** @throws OnejobError E_USAGE if no gitlab-runner has called */
export function gitlabJob(variables: Variables, answer: JobResponse | null = null): GitlabJob {
  const of = (name: string): string => variables[`CUSTOM_ENV_${name}`] ?? '';
  const number = of('CI_JOB_ID');
  if (number === '')
    throw wrongUsage(
      'gitlab-runner calls this command, and it has not: CUSTOM_ENV_CI_JOB_ID is not set.',
      'Write it into [runners.custom] of config.toml; see docs/ci/gitlab-executor.md.',
    );
  // gitlab-runner prepares a job up to three times, each with a file of its own, so an id is never used again.
  const { JOB_RESPONSE_FILE = '', TMPDIR = '' } = variables;
  const same = [of('CI_SERVER_URL'), of('CI_RUNNER_ID'), number, JOB_RESPONSE_FILE, TMPDIR];
  const path = answer?.job_info.project_full_path ?? `${of('CI_PROJECT_PATH')}, says the job`;
  const [user = '', ...others] = new Set(
    answer?.variables.flatMap(({ key, value }) => (key === 'GITLAB_USER_LOGIN' ? [value] : [])),
  );
  const code = (name: string, usual: number) => Number(variables[name] ?? usual);
  return {
    id: hash('sha256', JSON.stringify(same)).slice(0, 12),
    name: label(`GitLab job ${number} ${answer?.job_info.name ?? of('CI_JOB_NAME')} (${path})`, 100) ?? `GitLab job ${number}`,
    user: others.length > 0 ? null : label(user, 64),
    image: of('CI_JOB_IMAGE') || null,
    services: (services.safeParse(jsonOf(of('CI_JOB_SERVICES'))).data ?? []).map(({ name }) => name),
    timeout: limitOf(answer?.runner_info?.timeout ?? null, Number(of('CI_JOB_TIMEOUT'))),
    codes: { build: code('BUILD_FAILURE_EXIT_CODE', 1), system: code('SYSTEM_FAILURE_EXIT_CODE', 2) },
    codeFile: variables.BUILD_EXIT_CODE_FILE || null,
  };
}

/** ms. `theirs`: seconds, of the server. `jobs`: in the words of the job, which may only shorten what is safe. */
function limitOf(theirs: number | null, jobs: number): number {
  const within = (seconds: number, most: number) => (seconds > 0 && seconds * 1000 <= most ? seconds * 1000 : null);
  return theirs === null ? (within(jobs, safeLimit) ?? safeLimit) : (within(theirs, longestLimit) ?? safeLimit);
}

/** A line for lists; null if nothing is left of it. */
function label(text: string, most: number): string | null {
  const line = [...text.replace(/\p{Cc}+/gu, ' ').trim()].slice(0, most).join('');
  return line === '' ? null : line;
}

/** What gitlab-runner is told of the sandbox. */
export function driverConfig(version: string) {
  return {
    driver: { name: 'onejob', version },
    builds_dir: '/workspace/builds',
    cache_dir: '/workspace/cache',
    builds_dir_is_shared: false,
    shell: 'bash',
  };
}

/** Stages whose failure is not the failure of the job. */
const harmless = /^(after_script|restore_cache|archive_cache.*|cleanup_file_variables|upload_artifacts_on_failure)$/;

/** Time for what gitlab-runner does after it has ended a script for its own time limit, in ms. */
const afterTimeout = 600_000;

/** The exit code for gitlab-runner. Never throws: its reason is on standard error, which is the job's log. */
export async function gitlabExecutor(
  session: Session,
  step: 'config' | 'prepare' | 'run' | 'cleanup',
  given: { readonly script: string | undefined; readonly stage: string | undefined },
  flags: DriverFlags,
): Promise<number> {
  const { output, context } = session;
  const job = gitlabJob(context.variables, step === 'prepare' ? await jobResponse(context.variables) : null);
  if (step === 'config') {
    await output.value(driverConfig(session.version));
    return 0;
  }
  try {
    using connection = await connect(session, { start: false });
    const { client } = connection;
    if (step === 'cleanup') return await cleanUp(client, job.id);
    await using alone = untilAlone(context, client, job.id);
    if (step === 'prepare') return await prepare(session, client, job, flags, alone);
    return await runScript(session, client, job, given, alone);
  } catch (error) {
    output.fail(error);
    return job.codes.system;
  }
}

/** Ends the job when gitlab-runner has gone, and calls `asked` once gitlab-runner asks this process to end. */
function untilAlone(context: Session['context'], client: Client, id: string): Alone {
  const leave = new AbortController();
  let asked: (() => void) | null = null;
  let cancelled: Promise<unknown> | null = null;
  const cancel = () => {
    cancelled ??= client.cancel(id).catch(() => {});
    leave.abort();
  };
  const parent = process.ppid;
  // Nothing tells a process about the end of the one that has started it.
  let callOff = (): void => {};
  const look = (): void => {
    if (process.ppid !== parent) cancel();
    callOff = afterInBackground(1_000, look);
  };
  look();
  const release = context.process.onSignal(() => (asked ?? cancel)());
  return {
    signal: leave.signal,
    cancel,
    onSignal: (handler: () => void) => {
      asked = handler;
    },
    async [Symbol.asyncDispose]() {
      callOff();
      release();
      await cancelled;
    },
  };
}

/** Until gitlab-runner has gone. */
interface Alone extends AsyncDisposable {
  /** Aborts when the job is ended. */
  readonly signal: AbortSignal;
  /** Ends the job. */
  cancel(): void;
  /** What to do instead, once gitlab-runner asks this process to end. */
  onSignal(handler: () => void): void;
}

async function prepare(session: Session, client: Client, job: GitlabJob, flags: DriverFlags, alone: Alone): Promise<number> {
  const { output } = session;
  if (job.services.length > 0) {
    output.say(`cannot start the services of this job (${job.services.join(', ')}): onejob does not start service containers`);
    return job.codes.build;
  }
  const image = flags.jobImages === true ? job.image : null;
  if (image === null && job.image !== null)
    output.say(`the image of the pool is used; image "${job.image}" of the job would need --job-images in prepare_args`);
  const { pool = null, devices = null } = flags;
  const timeout = job.timeout + afterTimeout;
  const { id, name, user } = job;
  await client.submit({ id, ...waiting(), attended: true, pool, devices, image, name, user, timeout });
  try {
    const started = await untilRunning(session, client, id, alone.signal);
    if (started === null) {
      output.say('the job was cancelled while it waited for an agent');
      return job.codes.system;
    }
    const ended = started.state === 'done' ? started : await unlessReady(client, id);
    if (ended !== null) return notStarted(session, { ...job, image }, ended);
    output.say(`job ${id} runs in pool ${started.pool}${image === null ? '' : `, image ${image}`}`);
    return 0;
  } catch (error) {
    await client.cancel(id).catch(() => {});
    throw error;
  }
}

/** ms between two looks at a job that waits. */
const [firstLook, lastLook] = [50, 1_000];

/**
 * Resolves with the job once it runs, or has ended. Says what it waits for, and again whenever that, or its place, has changed.
 * null if `signal` has aborted.
 */
async function untilRunning({ output }: Session, client: Client, id: string, signal: AbortSignal): Promise<JobView | null> {
  let said = '';
  for (let wait = firstLook; !signal.aborted; wait = Math.min(wait * 1.5, lastLook)) {
    const job = await client.job(id);
    if (job.state === 'running' || job.state === 'done') return job;
    const { state, ahead, reason } = job;
    const about = JSON.stringify([state, ahead, reason]);
    if (wait >= lastLook / 2 && about !== said) {
      said = about;
      // Every call of gitlab-runner is a new process: it loads only what it needs.
      const line = (await import('./run.ts')).waitingLine(job, null);
      if (line !== null) output.say(line);
    }
    await sleep(systemClock, wait);
  }
  return null;
}

/** The job if it has ended instead of taking scripts; else null. @throws OnejobError E_SHELL if its runtime cannot run any */
async function unlessReady(client: Client, id: string): Promise<JobView | null> {
  const code = await inside(client, id, ready).catch((error: unknown) => {
    if (hasCode(error, 'E_SHELL', 'E_DAEMON_CUT')) throw error;
    return null;
  });
  if (code === 0) return null;
  return client.settled(id, timeLimit(endPatience)).catch(() => {
    throw silent(id);
  });
}

function notStarted({ output }: Session, { codes, image }: GitlabJob, ended: JobView): number {
  const { result } = ended;
  if (result?.kind === 'code' && result.code === noBash) {
    output.say('the image has no bash, which scripts of gitlab-runner need; it also needs git, and gitlab-runner for artifacts');
    return image === null ? codes.system : codes.build;
  }
  output.say(verdict(ended, null).line ?? `job ${ended.id} has ended already`);
  const isAbsent = result?.kind === 'unstartable' && result.failure.code === 'E_IMAGE_NOT_FOUND';
  return isAbsent && image !== null ? codes.build : codes.system;
}

async function runScript(
  session: Session,
  client: Client,
  job: GitlabJob,
  { script, stage = '' }: { readonly script: string | undefined; readonly stage: string | undefined },
  alone: Alone,
): Promise<number> {
  const { output } = session;
  if (script === undefined) throw wrongUsage('gitlab-runner gave no script to run.');
  const bytes = await readFile(script).catch((error: unknown) => {
    throw new OnejobError('E_USAGE', `Cannot read the script of gitlab-runner at ${script}: ${messageOf(error)}.`);
  });
  const code = await shell(session, client, job, bytes, !harmless.test(stage), alone).catch((error: unknown) => {
    // Nobody can read the output any more.
    if (error instanceof OutputClosed || hasCode(error, 'E_OUTPUT')) alone.cancel();
    return error instanceof OnejobError ? error : Promise.reject(error);
  });
  if (code === 0) return 0;
  // A sandbox that ends kills the script, too (137), or lets none begin (126).
  const isSure = typeof code === 'number' && (code < 126 || (await inside(client, job.id, ['true']).catch(() => 1)) === 0);
  if (!isSure) return lost(session, client, job, code);
  if (job.codeFile !== null) await writeFile(job.codeFile, `${code}\n`).catch((error: unknown) => output.fail(error));
  return job.codes.build;
}

async function shell(
  { output }: Session,
  client: Client,
  { id }: GitlabJob,
  script: Buffer,
  counts: boolean,
  alone: Alone,
): Promise<number> {
  const remote = await client.shell(id, { command: running(counts), terminal: null, running: true });
  alone.signal.addEventListener('abort', () => remote.close(), { once: true });
  if (alone.signal.aborted) remote.close();
  // The script gets time to end; a second signal does not wait.
  alone.onSignal(() => {
    alone.onSignal(() => remote.close());
    remote.end();
  });
  void remote.write(Buffer.concat([Buffer.from(`${script.length}\n`), script]));
  return remote.run(output.write);
}

/** ms in which the daemon learns that a sandbox has ended. */
const endPatience = 10_000;

/** Says what has become of the sandbox. */
async function lost({ output }: Session, client: Client, { id, codes }: GitlabJob, why: OnejobError | number): Promise<number> {
  const ended = await client.settled(id, timeLimit(endPatience)).catch(() => null);
  if (ended === null) {
    if (hasCode(why, 'E_DAEMON_CUT')) output.say('the daemon of onejob has ended, and with it the script');
    else output.fail(typeof why === 'number' ? silent(id) : why);
    return codes.system;
  }
  const early = `the sandbox of job ${id} has ended before its script: somebody has ended it, or the job its own first process`;
  output.say(ended.result?.kind === 'code' ? early : (verdict(ended, null).line ?? early));
  // What the job itself did is not tried again.
  return ['oom', 'timeout', 'disk'].includes(ended.result?.kind ?? '') ? codes.build : codes.system;
}

function silent(id: string): OnejobError {
  return new OnejobError('E_SANDBOX_LOST', `The sandbox of job ${id} does not answer.`);
}

/** Runs a constant program in the sandbox; its exit code. */
async function inside(client: Client, id: string, command: readonly string[]): Promise<number> {
  const remote = await client.shell(id, { command: [...command], terminal: null, running: true });
  remote.end();
  return remote.run(async () => {});
}

/** Ends the job, and waits until nothing of it runs. It may be called for a job that has ended, or never was. */
async function cleanUp(client: Client, id: string): Promise<number> {
  const job = await client.job(id).catch((error: unknown) => {
    if (hasCode(error, 'E_JOB_UNKNOWN')) return null;
    throw error;
  });
  if (job === null || job.state === 'done') return 0;
  // The sandbox may end before the program that has ended it.
  const asked = async () => inside(client, id, ending).catch((error: unknown) => (hasCode(error, 'E_SANDBOX_LOST') ? 137 : 1));
  const isAsked = job.state === 'running' && [0, 137].includes(await asked());
  const ended = isAsked ? await client.settled(id, timeLimit(endPatience)).catch(() => null) : null;
  if (ended !== null) return 0;
  await client.cancel(id);
  await client.settled(id);
  return 0;
}
