/** `onejob jobs`, `jobs prune`, `logs`, `cancel` and `move`. */
import type { Client } from '../api/client.ts';
import { hasCode, OnejobError } from '../base/errors.ts';
import { formatBytes, parseDuration } from '../base/units.ts';
import type { EndedFilter } from '../contract/history.ts';
import type { LogSource } from '../contract/manager.ts';
import { detailOf, outcomeIn } from '../contract/outcome.ts';
import type { JobView, StatusView } from '../contract/schema.ts';
import { varianceText } from '../contract/variance.ts';
import { isFailure, type VerdictKind } from '../contract/verdict.ts';
import { outcomes } from '../core/job-end.ts';
import { systemClock } from '../system/system-clock.ts';
import { newEvidence } from '../verdict/shown.ts';
import type { Archive, JobReader } from './archive.ts';
import { findDaemon, withDaemon } from './connect.ts';
import { exitCodes, hear, missingCommand, resultWord, type Said, verdict, wrongUsage } from './exit.ts';
import { agentLogPrinter, foreignPrinter, type JobPrinter, jobPrinter, Lasting, plainPrinter } from './follow.ts';
import { titleOf } from './job-title.ts';
import type { Session } from './session.ts';
import { type Colors, cut, formatAge, plural, printable, titledTable, wrap } from './text.ts';
import { timeAgo } from './time-ago.ts';

export interface ListFlags {
  readonly all?: boolean;
  readonly limit?: number;
  readonly pool?: string;
  readonly user?: string;
  readonly state?: string;
  readonly wide?: boolean;
  // Each of these asks for jobs that have ended.
  readonly since?: string;
  readonly until?: string;
  readonly failed?: boolean;
  readonly verdict?: VerdictKind;
  readonly service?: string;
  readonly image?: string;
  readonly device?: string;
}

/** How many jobs `jobs --all` shows without `--limit`. */
const shownAtMost = 1_000;

/**
 * `only`: the id of an array, or a job's, or at least its first four letters; null: all jobs.
 * @throws OnejobError E_JOB_UNKNOWN when there is no job or array of that id; E_POOL_UNKNOWN
 */
export async function listJobs(session: Session, only: string | null, flags: ListFlags): Promise<number> {
  const { limit = null, pool = null, user = null, state = null, wide = false } = flags;
  const { output } = session;
  if (only !== null) return listOnly(session, only);
  const ended = endedFilter(flags, systemClock.wall());
  const all = flags.all === true || ended !== null || (state !== null && !statesBefore.has(state));
  const most = limit ?? (all ? shownAtMost : null);
  // One more than is shown tells whether there are more; to filter by user or state, all jobs are read.
  const isFiltered = user !== null || state !== null;
  const atMost = isFiltered ? (all ? 999_999 : undefined) : most === null ? undefined : most + 1;
  const [unsorted, places] = await withReader(session, async (reader) => {
    const read = await (ended === null
      ? reader.jobs({ all, pool, limit: atMost })
      : reader.endedJobs({ ...ended, pool, limit: atMost ?? 999_999 }));
    if (read.length === 0) await refuseUnknownPool(reader, pool);
    return [read, wide ? placesIn(await reader.status()) : null];
  });
  const found = unsorted.filter((job) => (user === null || job.user === user) && (state === null || isIn(job, state)));
  if (found.length === 0 && state !== null && !isState(state)) {
    const states = [...statesBefore, ...endings].join(', ');
    throw wrongUsage(`Invalid --state "${state}": there is no such state.`, `States are ${states}.`);
  }
  const jobs = most === null ? found : found.slice(-most);
  const isNarrow = all || pool !== null || isFiltered;
  const nothing = isNarrow ? 'No jobs.' : 'No jobs wait or run; "onejob jobs --all" shows those that ended.';
  await output.result(jobs, () =>
    jobs.length === 0 ? [nothing] : jobTable(jobs, output.colors, output.width, systemClock.wall(), { places }),
  );
  if (jobs.length < found.length) output.say(`only the newest ${jobs.length} are listed; --limit N lists more`);
  return exitCodes.ok;
}

/**
 * For a question that found nothing. Pools of the past, whose jobs are in the history, are known too; without a daemon, all are.
 * @throws OnejobError E_POOL_UNKNOWN
 */
export async function refuseUnknownPool(reader: JobReader, pool: string | null): Promise<void> {
  if (pool === null) return;
  const names = (await reader.status()).pools.map(({ name }) => name);
  if (names.length === 0 || names.includes(pool)) return;
  const ever = { by: 'pool', pool, since: null, until: null, service: null, image: null, device: null } as const;
  if ((await reader.history(ever)).length > 0) return;
  throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${pool}".`, { hint: `The pools are: ${names.join(', ')}.` });
}

/** null if no option asks for jobs that have ended. @throws OnejobError E_USAGE for an invalid time */
function endedFilter(
  { since, until, failed, verdict: kind, service, image, device }: ListFlags,
  now: number,
): Partial<EndedFilter> | null {
  const filter = {
    ...(since !== undefined && { since: timeAgo('--since', since, now) }),
    ...(until !== undefined && { until: timeAgo('--until', until, now) }),
    ...(failed === true && { failed }),
    ...(kind !== undefined && { kind }),
    ...(service !== undefined && { service }),
    ...(image !== undefined && { image }),
    ...(device !== undefined && { device }),
  };
  return Object.keys(filter).length === 0 ? null : filter;
}

/** States of a job before it ends. */
const statesBefore: ReadonlySet<string> = new Set(['waiting', 'queued', 'reserved', 'assigned', 'running', 'settling']);

/** How a job may have ended. A CI service has words of its own for its jobs. */
const endings = [...outcomes, 'ended', 'timeout', 'oom', 'disk', 'unstartable'] as const;

/** Words of CI services, and of earlier versions, for the same. */
const synonyms = new Map([
  ...['ok', 'success', 'succeeded'].map((word) => [word, 'passed'] as const),
  ['failure', 'failed'],
  ['canceled', 'cancelled'],
]);

function isState(word: string): boolean {
  return (
    statesBefore.has(word) || synonyms.has(word) || endings.some((each) => each === word) || /^(exit \d.*|[A-Z0-9]+)$/.test(word)
  );
}

/** Whether a job is in a state, or ended in it: in the words of the column STATE, or in the part of them in parentheses. */
function isIn(job: JobView, state: string): boolean {
  if (job.state !== 'done') return job.state === state;
  const outcome = outcomeIn(job) ?? 'ended';
  return (synonyms.get(state) ?? state) === outcome || state === resultWord(job) || state === detailOf(job.result);
}

/** By agent: its slot and devices. */
type Places = ReadonlyMap<string, { readonly slot: string; readonly devices: readonly string[] }>;

function placesIn({ pools }: Pick<StatusView, 'pools'>): Places {
  const slots = pools.flatMap((pool) => pool.slots);
  return new Map(
    slots.flatMap(({ key, agent, devices }) => (agent.agent === null ? [] : [[agent.agent, { slot: key, devices }] as const])),
  );
}

async function listOnly(session: Session, only: string): Promise<number> {
  const { output } = session;
  const { jobs, hints } = await withReader(session, async (reader) => {
    const found = await jobsNamed(reader, only);
    return { jobs: found, hints: output.json ? [] : await missingIn(reader, found) };
  });
  if (jobs.length === 0) {
    throw new OnejobError('E_JOB_UNKNOWN', `There is no job or array ${only}.`, {
      hint: `See "onejob jobs --all"; a short id needs at least ${leastOfId} letters.`,
    });
  }
  await output.result(jobs, () => {
    const [job] = jobs;
    const why =
      job === undefined || jobs.length > 1
        ? []
        : [
            ...noteLines(job),
            ...verdictLines(job),
            ...cardLines(job),
            ...hints,
            ...elsewhereLines(job),
            ...heldLines(job, systemClock.wall()),
          ];
    return [...jobTable(jobs, output.colors, output.width, systemClock.wall()), ...(why.length === 0 ? [] : ['', ...why])];
  });
  return exitCodes.ok;
}

async function jobsNamed(reader: JobReader, id: string): Promise<JobView[]> {
  const job = await tryJob(reader, id);
  if (job !== null) return [job];
  const array = await reader.arrayJobs(id);
  return array.length > 0 ? array : jobsBegun(reader, id);
}

/** What to try if the only job found its command missing, as `run` says it. */
async function missingIn(reader: JobReader, [job, ...more]: readonly JobView[]): Promise<string[]> {
  const code = job?.result?.kind === 'code' ? job.result.code : 0;
  if (job === undefined || more.length > 0 || job.about !== null) return [];
  if (code !== exitCodes.notFound && code !== exitCodes.notExecutable) return [];
  const said: Said = { stdout: '', lines: 0 };
  try {
    // More lines than one are not a shell's complaint.
    for await (const piece of reader.logs({ job: job.id }, { follow: false, tail: 2 })) hear(said, piece);
  } catch {
    return [];
  }
  const hint = missingCommand(job, said, { workspace: true, image: job.image ?? null, script: null });
  return hint === null ? [] : [printable(hint)];
}

/** Asks the daemon, or reads the store if none runs: looking at jobs starts nothing. */
export async function withReader<T>(session: Session, work: (reader: JobReader) => Promise<T>): Promise<T> {
  return withDaemon(session, work, async () => {
    using archive = await archiveOf(session);
    const result = await work(archive.reader);
    session.output.say(`${['no daemon is running', ...archive.waiting].join('; ')}; start it with "onejob up"`);
    return result;
  });
}

/** The store, for when no daemon runs. */
async function archiveOf(session: Session): Promise<Archive> {
  const { stateDir } = await session.place();
  return (await import('./archive.ts')).openArchive(stateDir);
}

/** In a pipe each line says why its job waits. At a terminal each reason is below the table, once for all jobs. */
export function jobTable(
  jobs: readonly JobView[],
  colors: Colors,
  width: number | null,
  now: number,
  { places = null, hostOf = null }: { readonly places?: Places | null; readonly hostOf?: ReadonlyMap<JobView, string> | null } = {},
): string[] {
  const nameOf = shortNames(jobs, width);
  const hasBranches = jobs.some(({ about }) => (about?.branch ?? null) !== null);
  const hasUsers = jobs.some(({ user }) => user != null);
  const hasFailed = jobs.some(({ verdict }) => verdict != null && isFailure(verdict.kind));
  const haveEnded = jobs.some(({ startedAt, endedAt }) => startedAt !== null && endedAt !== null);
  const rows = jobs.map((job) => {
    const state = job.state === 'done' ? printable(resultWord(job)) : job.state;
    const outcome = job.state === 'done' ? outcomeIn(job) : null;
    const bad = outcome !== null && outcome !== 'passed' && (outcome !== 'cancelled' || job.about === null);
    const paint = bad ? colors.red : job.state === 'running' ? colors.green : (text: string) => text;
    const since = job.endedAt ?? job.startedAt ?? job.submittedAt;
    const reason = width !== null || reasonOf(job) === null ? '' : colors.yellow(` — ${reasonOf(job)}`);
    const branch = cut(printable(job.about?.branch ?? '-'), width === null ? null : widestBranch);
    const took = job.startedAt === null || job.endedAt === null ? '-' : formatAge(job.endedAt - job.startedAt);
    const where = places?.get(job.agent ?? '');
    return {
      ...(hostOf !== null && { HOST: hostOf.get(job) ?? '-' }),
      JOB: nameOf(job),
      POOL: job.pool || '-',
      ...(hasUsers && { USER: printable(job.user ?? '-') }),
      STATE: paint(state),
      ...(hasFailed && { VERDICT: job.verdict == null || !isFailure(job.verdict.kind) ? '-' : verdictWords[job.verdict.kind] }),
      SINCE: since === null ? '' : formatAge(now - since),
      ...(haveEnded && { TOOK: took }),
      ...(places !== null && { SLOT: where?.slot ?? '-', DEVICES: where?.devices.join(',') || '-' }),
      ...(hasBranches && { BRANCH: branch }),
      COMMAND: printable(titleOf(job)) + reason,
    };
  });
  const lines = titledTable(rows, { colors, width });
  if (width === null) return lines;
  const reasons = [...Map.groupBy(jobs, reasonOf)].flatMap(([reason, held]) => {
    if (reason === null) return [];
    const who = held.length > namedAtMost ? `${held.length} jobs` : held.map(nameOf).join(', ');
    const [first = '', ...more] = wrap(`${who}: ${reason}`, Math.max(1, width - 2));
    return [first, ...more.map((line) => `  ${line}`)].map(colors.yellow);
  });
  return reasons.length === 0 ? lines : [...lines, '', ...reasons];
}

function cardLines({ variance }: JobView): string[] {
  return variance == null ? [] : [printable(`card: ${varianceText(variance)}`)];
}

/** A verdict as people read it. */
const verdictWords: Readonly<Record<VerdictKind, string>> = {
  passed: 'passed',
  cancelled: 'cancelled',
  code: 'your code',
  infrastructure: 'infrastructure',
  configuration: 'configuration',
  unknown: 'unknown',
};

/** Whose fault the end of a job was, with the evidence; empty if it passed. */
function verdictLines({ verdict, reason }: JobView): string[] {
  if (verdict == null || !isFailure(verdict.kind)) return [];
  // Its reason stands below the table.
  const evidence = newEvidence(verdict).filter((line) => line !== reason);
  return [`${verdictWords[verdict.kind]}: ${verdict.why}`, ...evidence.map((line) => `  ${line}`)].map(printable);
}

/** What else is known about how a job ended, such as which job it needed; empty if its row says so already. */
function noteLines(job: JobView): string[] {
  const why = endedBecause(job);
  return why === null || why === reasonOf(job) ? [] : [why];
}

/** Where the output of a job is if `logs` has only what its agent said; empty for others. */
function elsewhereLines({ id, about, outputElsewhere }: JobView): string[] {
  if (about === null || outputElsewhere !== true) return [];
  const where = about.link === null ? 'its CI service has it' : printable(about.link);
  return [`output: ${where}; "onejob logs ${id}" shows what its agent said`];
}

/** Until when its files are kept, and how to see them; empty if they are not. */
function heldLines({ id, held }: JobView, now: number): string[] {
  if (held == null) return [];
  return [
    `its files are held for ${formatAge(Math.max(0, held.until - now))}: "onejob shell ${id}" looks at them, "onejob unhold ${id}" removes them`,
  ];
}

/** Columns of a branch at a terminal. */
const widestBranch = 24;
const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** At a terminal a UUID is shortened to its first letters if they are unique: every command takes them. */
function shortNames(jobs: readonly JobView[], width: number | null): (job: JobView) => string {
  const short = (id: string): string => (width !== null && uuid.test(id) ? id.slice(0, 8) : id);
  const many = new Set(jobs.map(({ id }) => short(id)).filter((name, at, all) => all.indexOf(name) !== at));
  return ({ id }) => (many.has(short(id)) ? id : short(id));
}

/** If more jobs wait for the same reason, they are counted instead of named. */
const namedAtMost = 3;

/** Why a job of the own queue waits if nothing but other jobs keeps it from an agent; the daemon gives no reason then. */
export const agentsBusy = 'all agents are busy';

/** Why a job waits, or was lost or could not start. */
function reasonOf(job: JobView): string | null {
  const isOver = job.about === null && job.result !== null;
  const reason = isOver ? lostBecause(job) : (job.reason ?? (job.about === null && job.state === 'queued' ? agentsBusy : null));
  return reason === null ? null : printable(reason);
}

/** What is known about how a job ended, besides its result, such as which job it needed; null: nothing, or it has not ended. */
export function endedBecause(job: JobView): string | null {
  const reason = job.state === 'done' ? (lostBecause(job) ?? job.reason) : null;
  return reason === null ? null : printable(reason);
}

function lostBecause({ result }: JobView): string | null {
  return result?.kind === 'lost' ? result.reason : result?.kind === 'unstartable' ? result.failure.message : null;
}

export interface LogsFlags {
  readonly follow?: boolean;
  readonly previous?: boolean;
  readonly agent?: boolean;
  readonly raw?: boolean;
  readonly tail?: number;
}

/** Without a daemon 1 when `--follow` was given and the job has not ended. */
export async function showLogs(session: Session, target: string, flags: LogsFlags): Promise<number> {
  const { follow = false, previous = false, agent: own = false, tail = null } = flags;
  const { output } = session;
  const printer = printerFor(session, flags);
  let isEmpty = true;
  const show: typeof printer.show = (piece) => {
    isEmpty = false;
    return printer.show(piece);
  };
  /** `lasting`: null without a daemon. */
  const print = async (reader: JobReader, lasting: Lasting | null): Promise<LogSource> => {
    const source = await findSource(reader, target, previous);
    await orUnknown(source, target, async () => {
      // After a restart another agent may work in a slot, so only a job or an agent is followed across one.
      if (follow && lasting !== null && !('slot' in source)) {
        const what = `${'job' in source ? 'job' : 'agent'} ${target} keeps running`;
        await lasting.followLogs({ what, source, tail }, show);
      } else {
        for await (const piece of reader.logs(source, { follow: follow && lasting !== null, own, tail })) await show(piece);
      }
      await printer.end?.();
    });
    return source;
  };
  const connection = await findDaemon(session);
  if (connection === null) {
    using archive = await archiveOf(session);
    const source = await print(archive.reader, null);
    const job = 'job' in source ? await archive.reader.job(source.job) : null;
    if (job?.state === 'done') {
      await sayEnd(session, archive.reader, job.id, false);
      return exitCodes.ok;
    }
    const rest =
      job?.state === 'queued' ? 'the job is waiting for one' : 'output that has not been read yet appears once a daemon runs';
    output.say(`no daemon is running; ${rest}; start it with "onejob up"`);
    return follow ? exitCodes.failed : exitCodes.ok;
  }
  const { signal } = new AbortController();
  const lasting = new Lasting(session, connection, { temporary: false, mayStart: false, signal });
  try {
    const source = await print(connection.client, lasting);
    if ('job' in source) await sayEnd(session, lasting.connection.client, source.job, isEmpty);
  } finally {
    lasting.connection.close();
  }
  return exitCodes.ok;
}

function printerFor({ output }: Session, { agent, raw }: LogsFlags): JobPrinter {
  if (agent) return agentLogPrinter(output);
  return plainPrinter(output, raw ? jobPrinter(output) : foreignPrinter(output));
}

/** An unknown agent may have been meant as a job, so the error names both. */
async function orUnknown(source: LogSource, target: string, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!('agent' in source) || !hasCode(error, 'E_AGENT_UNKNOWN')) throw error;
    throw new OnejobError('E_AGENT_UNKNOWN', `There is no job or agent ${target}.`, {
      hint: error.hint ?? 'See "onejob status" and "onejob jobs --all".',
      cause: error,
    });
  }
}

/** Says what the output does not: why the job was lost, which artifacts are missing, or why a refused job has no output at all. */
async function sayEnd({ output }: Session, client: Pick<Client, 'job'>, id: string, isEmpty: boolean): Promise<void> {
  // The daemon may have ended too.
  const job = await client.job(id).catch(() => null);
  if (job !== null && job.about !== null && job.outputElsewhere === true) {
    const where =
      job.about.link === null
        ? 'its CI service has the output of the job'
        : `the output of the job is at ${printable(job.about.link)}`;
    output.say(`this is what the agent of job ${id} said; ${where}`);
  }
  const line = job === null || lostBecause(job) === null ? null : verdict(job, null).line;
  if (line !== null) output.say(printable(line));
  else if (job?.state === 'done' && job.about === null && job.agent !== null && job.reason !== null)
    output.say(printable(job.reason));
  else if (isEmpty && job?.agent === null && job.reason !== null) output.say(`job ${id} has no output: ${printable(job.reason)}`);
}

export type CancelFlags = { readonly end?: boolean; readonly waiting?: boolean; readonly all?: boolean; readonly pool?: string };

/** 1 when one could not be cancelled. `ids`: of jobs or arrays, or beginnings of jobs' ids; none with `--waiting` or `--all`. @throws OnejobError E_USAGE */
export async function cancelJobs(session: Session, ids: readonly string[], flags: CancelFlags): Promise<number> {
  const { output } = session;
  const which = flags.waiting === true ? 'waiting' : flags.all === true ? 'all' : null;
  const { pool = null } = flags;
  if (ids.length > 0 === (which !== null) || (pool !== null && which === null)) {
    const message = 'Missing jobs to cancel: give their ids, or --waiting or --all, with or without --pool.';
    throw wrongUsage(message, 'See "onejob cancel --help".');
  }
  const failures: unknown[] = [];
  let isOne = ids.length === 1;
  const cancelled = await withDaemon(session, async (client) => {
    const done: JobView[] = [];
    if (which === 'all' && flags.end !== true && !(await mayEndAll(session, client, pool))) return null;
    for (const id of which === null ? ids : await chosen(client, which, pool)) {
      try {
        const isArray = which === null && (await client.arrayJobs(id)).length > 0;
        isOne &&= !isArray;
        // The daemon's own error is shown for an id that does not exist.
        if (isArray) done.push(...(await client.cancelArray(id)));
        else if (which === null) done.push(await client.cancel((await findJob(client, id))?.id ?? id));
        else done.push(await client.cancel(id, { onlyWaiting: which === 'waiting' }));
      } catch (error) {
        if (ids.length === 1 || !(error instanceof OnejobError) || error.retry) throw error;
        failures.push(error);
      }
    }
    return done;
  });
  if (cancelled === null) {
    output.say('nothing was ended');
    return exitCodes.cancelled;
  }
  if (output.json) await output.value(isOne ? cancelled[0] : cancelled);
  else if (which === null) await output.print(...cancelled.map(toldToEnd));
  else await output.print(cancelled.length === 0 ? noneToCancel(which, pool) : toldAllToEnd(cancelled, which));
  for (const error of failures) output.fail(error);
  return failures.length === 0 ? exitCodes.ok : exitCodes.failed;
}

/** Asks a person at a terminal whether jobs that run are to end. */
async function mayEndAll(session: Session, client: Client, pool: string | null): Promise<boolean> {
  const [{ askFor, isAsked, runningText }, { Interrupted }] = await Promise.all([
    import('./ask-before-ending.ts'),
    import('./init/ask.ts'),
  ]);
  if (!isAsked(session)) return true;
  const running = (await client.jobs({ all: false, pool })).filter(({ about, state }) => about === null && state !== 'queued');
  if (running.length === 0) return true;
  const said = runningText(
    running.map(({ user = null, startedAt }) => ({ user, startedAt })),
    systemClock.wall(),
  );
  try {
    const text = `${said} End ${running.length === 1 ? 'it' : 'them'}?`;
    return (await askFor(session, { text, words: ['no', 'yes'], command: 'cancel' })) === 'yes';
  } catch (error) {
    if (error instanceof Interrupted) return false;
    throw error;
  }
}

async function chosen(client: Client, which: 'waiting' | 'all', pool: string | null): Promise<string[]> {
  const jobs = await client.jobs({ all: false, pool });
  return jobs.filter(({ about, state }) => about === null && (which === 'all' || state === 'queued')).map(({ id }) => id);
}

function noneToCancel(which: 'waiting' | 'all', pool: string | null): string {
  return `No job ${which === 'waiting' ? 'waits' : 'waits or runs'}${pool === null ? '' : ` in pool ${pool}`}.`;
}

function toldToEnd(job: JobView): string {
  const { id, state } = job;
  if (state === 'done') return `Job ${id} has ended (${resultWord(job)}).`;
  // It has its result; only artifacts may still come.
  return state === 'settling'
    ? `Job ${id} has ended (${resultWord(job)}), and onejob no longer waits for its artifacts.`
    : `Job ${id} was told to end.`;
}

function toldAllToEnd(jobs: readonly JobView[], which: 'waiting' | 'all'): string {
  const begun = jobs.filter(({ state }) => state !== 'done').length;
  const [told, left] = which === 'all' ? [begun, 0] : [0, begun];
  const before = jobs.length - begun;
  const parts = [
    ...(before > 0 ? [`${counted(before)} cancelled before ${before === 1 ? 'it' : 'they'} began.`] : []),
    ...(told > 0 ? [`${counted(told)} told to end.`] : []),
    ...(left > 0 ? [`${counted(left)} left alone, as ${left === 1 ? 'it' : 'they'} had begun meanwhile.`] : []),
  ];
  return parts.join(' ');
}

function counted(jobs: number): string {
  return jobs === 1 ? 'One job was' : `${jobs} jobs were`;
}

export type MoveFlags = { readonly to: string; readonly waiting?: boolean; readonly pool?: string };

/**
 * 1 when one could not be moved. `ids`: of jobs or arrays, or beginnings of jobs' ids; none with `--waiting`. Of an array and with
 * `--waiting` only jobs that still wait are moved. @throws OnejobError E_USAGE, E_POOL_UNKNOWN
 */
export async function moveJobs(session: Session, ids: readonly string[], flags: MoveFlags): Promise<number> {
  const { output } = session;
  const { to, waiting = false, pool = null } = flags;
  if (ids.length > 0 === waiting || (pool !== null && !waiting)) {
    const message = 'Missing jobs to move: give their ids, or --waiting, with or without --pool.';
    throw wrongUsage(message, 'See "onejob move --help".');
  }
  const failures: unknown[] = [];
  const moved: JobView[] = [];
  await withDaemon(session, async (client) => {
    const named = await Promise.all(ids.map((id) => waitingNamed(client, id)));
    const all = waiting ? await chosen(client, 'waiting', pool) : named.flat();
    for (const id of all) {
      try {
        moved.push(await client.call('POST /v1/jobs/:id/move', { params: { id }, body: { pool: to } }));
      } catch (error) {
        if (all.length === 1 || !(error instanceof OnejobError) || error.retry || error.code === 'E_POOL_UNKNOWN') throw error;
        failures.push(error);
      }
    }
  });
  const [only] = moved;
  await output.result(moved, () => {
    if (moved.length === 0 || only === undefined) return failures.length > 0 ? [] : [noneToCancel('waiting', pool)];
    return [moved.length === 1 ? `Job ${only.id} now waits in pool ${to}.` : `${moved.length} jobs now wait in pool ${to}.`];
  });
  for (const error of failures) output.fail(error);
  return failures.length === 0 ? exitCodes.ok : exitCodes.failed;
}

/** A job by its id or the beginning of it, or those of an array that wait. The daemon's own error is shown for one that does not exist. */
async function waitingNamed(client: Client, id: string): Promise<string[]> {
  const array = await client.arrayJobs(id);
  if (array.length > 0) return array.filter(({ state }) => state === 'queued').map((job) => job.id);
  return [(await findJob(client, id))?.id ?? id];
}

export type PruneFlags = { readonly olderThan: string; readonly dryRun?: boolean };

/** @throws OnejobError E_USAGE */
export async function pruneJobs(session: Session, { olderThan, dryRun = false }: PruneFlags): Promise<number> {
  const { output } = session;
  const parsed = parseDuration(/^0+$/.test(olderThan) ? '0s' : olderThan);
  if (!parsed.ok) throw wrongUsage(`--older-than: ${parsed.why}.`, 'Write for example 0, 30m, 2h or 7d.');
  const found = await withDaemon(session, (client) =>
    client.call('POST /v1/jobs/prune', { body: { olderThan: parsed.value, dryRun } }),
  );
  const { jobs, agents, bytes } = found;
  const what = `${plural(jobs, 'job')} and the logs of ${plural(agents, 'agent')}, ${formatBytes(bytes)}`;
  await output.result(found, () => [dryRun ? `That would remove ${what}.` : `Removed ${what}.`]);
  return exitCodes.ok;
}

/** An agent's name at a CI service: its name in the config, eight digits of the installation, its id. */
const nameElsewhere = /-[0-9a-f]{8}-([0-9a-z]+)$/;
/** Letters that the beginning of a job's id needs. */
const leastOfId = 4;
/** Ids that the error names when several jobs begin with what was typed. */
const idsNamed = 5;

/** A slot has a slash in its name; what is not a job is taken for an agent. @throws OnejobError E_USAGE */
export async function findSource(client: JobReader, target: string, previous: boolean): Promise<LogSource> {
  if (target.includes('/')) return { slot: target, previous };
  if (previous) {
    const message = `--previous shows the agent before the current one, so it needs a slot, and ${target} is not a slot.`;
    throw wrongUsage(message, 'Slots are named like default/1; "onejob status" lists them.');
  }
  const job = await tryJob(client, target);
  if (job !== null) return { job: job.id };
  // Before beginnings of ids are tried: the name of a slot is given whole.
  const slot = await slotNamed(client, target);
  if (slot !== null) return { slot, previous: false };
  const begun = onlyOne(target, await jobsBegun(client, target));
  return begun === null ? { agent: nameElsewhere.exec(target)?.[1] ?? target } : { job: begun.id };
}

/** Jobs, ended or not, whose id begins with at least four letters. */
async function jobsBegun(client: JobReader, start: string): Promise<JobView[]> {
  if (start.length < leastOfId) return [];
  return (await client.jobs({ all: true, pool: null })).filter(({ id }) => id.startsWith(start.toLowerCase()));
}

async function tryJob(client: JobReader, id: string): Promise<JobView | null> {
  try {
    return await client.job(id);
  } catch (error) {
    if (hasCode(error, 'E_JOB_UNKNOWN')) return null;
    throw error;
  }
}

/** The job with this id, or the only one whose id begins with it. @throws OnejobError E_USAGE when there are several */
export async function findJob(client: JobReader, id: string): Promise<JobView | null> {
  return (await tryJob(client, id)) ?? onlyOne(id, await jobsBegun(client, id));
}

function onlyOne(start: string, found: readonly JobView[]): JobView | null {
  if (found.length < 2) return found[0] ?? null;
  const ids = found.slice(-idsNamed).map(({ id }) => id);
  const more = found.length > ids.length ? ` and ${found.length - ids.length} more` : '';
  throw wrongUsage(`${found.length} jobs begin with ${start}: ${ids.join(', ')}${more}.`, 'Type more of the id.');
}

async function slotNamed(client: JobReader, name: string): Promise<string | null> {
  const { pools } = await client.status();
  return pools.flatMap(({ slots }) => slots).find((slot) => slot.name === name)?.key ?? null;
}
