/** `onejob jobs`, `jobs prune`, `logs` and `cancel`. */
import type { Client } from '../api/client.ts';
import type { LogSource } from '../api/manager.ts';
import type { JobView, StatusView } from '../api/schema.ts';
import { parseDuration } from '../config/units.ts';
import { OnejobError } from '../errors.ts';
import type { Archive, JobReader } from './archive.ts';
import { connect, withDaemon } from './connect.ts';
import { exitCodes, resultWord, verdict } from './exit.ts';
import { followLogs, type Lasting } from './follow.ts';
import { agentLogPrinter, foreignPrinter, type JobPrinter, jobPrinter, plainPrinter } from './pieces.ts';
import type { Connection, Session } from './session.ts';
import { type Colors, cut, formatAge, formatBytes, plural, printable, table, wrap } from './text.ts';

export interface ListFlags {
  /** Also jobs that ended. */
  readonly all?: boolean;
  /** Left out: with `all` the newest 1,000, else every one. */
  readonly limit?: number;
  readonly pool?: string;
  readonly user?: string;
  /** As the column says it, or of a job that ended how. */
  readonly state?: string;
  /** Also in which slot a job is, with which devices. */
  readonly wide?: boolean;
}

/** How many `jobs --all` shows when nobody says otherwise. */
const shownAtMost = 1_000;

/**
 * `only`: a job's id, or at least the first four letters of it: only these, over or not; null: all.
 * @throws OnejobError E_JOB_UNKNOWN when only one is asked for that is not there
 */
export async function listJobs(session: Session, only: string | null, flags: ListFlags): Promise<number> {
  const { limit = null, pool = null, user = null, state = null, wide = false } = flags;
  const { output } = session;
  if (only !== null) return listOnly(session, only);
  const all = flags.all === true || (state !== null && !statesBefore.has(state));
  const most = limit ?? (all ? shownAtMost : null);
  // One more than is shown tells whether there are more; what is left out here must be read first.
  const some = user !== null || state !== null ? (all ? { limit: 999_999 } : {}) : most === null ? {} : { limit: most + 1 };
  const [unsorted, places] = await withReader(session, async (reader) => [
    await reader.jobs({ all, pool, ...some }),
    wide ? placesIn(await reader.status()) : null,
  ]);
  const found = unsorted.filter(
    (job) => (user === null || job.user === user) && (state === null || job.state === state || wordOf(job) === state),
  );
  if (found.length === 0 && state !== null && !isState(state)) {
    throw new OnejobError('E_USAGE', `Invalid --state "${state}": there is no such state.`, {
      hint: `States are ${[...statesBefore, ...endings].join(', ')}.`,
    });
  }
  const jobs = most === null ? found : found.slice(-most);
  if (output.json) await output.value(jobs);
  else if (jobs.length === 0)
    await output.print(
      all || pool !== null || user !== null || state !== null
        ? 'No jobs.'
        : 'No jobs wait or run; "onejob jobs --all" shows those that ended.',
    );
  else await output.print(...jobTable(jobs, output.colors, output.width, Date.now(), places));
  if (jobs.length < found.length) output.say(`only the newest ${jobs.length} are listed; --limit N lists more`);
  return exitCodes.ok;
}

/** What a job is before it ends; what else may be asked for is how it ended. */
const statesBefore: ReadonlySet<string> = new Set(['waiting', 'queued', 'reserved', 'assigned', 'running', 'settling']);

/** How one may have ended. A CI service has words of its own for its jobs. */
const endings = ['ok', 'failed', 'cancelled', 'timeout', 'oom', 'disk', 'lost', 'unstartable'] as const;

function isState(word: string): boolean {
  return statesBefore.has(word) || endings.some((each) => each === word) || /^(exit \d.*|[A-Z0-9]+)$/.test(word);
}

/** How a job ended: `ok`, `failed`, or what the column says of it. */
function wordOf(job: JobView): string | null {
  if (job.state !== 'done') return null;
  return job.result?.kind === 'code' && job.result.code !== 0 ? 'failed' : resultWord(job);
}

/** By agent: its slot, and what that has. */
type Places = ReadonlyMap<string, { readonly slot: string; readonly devices: readonly string[] }>;

function placesIn({ pools }: Pick<StatusView, 'pools'>): Places {
  const slots = pools.flatMap((pool) => pool.slots);
  return new Map(
    slots.flatMap(({ key, agent, devices }) => (agent.agent === null ? [] : [[agent.agent, { slot: key, devices }] as const])),
  );
}

async function listOnly(session: Session, only: string): Promise<number> {
  const { output } = session;
  const jobs = await withReader(session, async (reader) => {
    const job = await tryJob(reader, only);
    return job === null ? await jobsBegun(reader, only) : [job];
  });
  if (jobs.length === 0) {
    throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${only}.`, {
      hint: `See "onejob jobs --all"; a short id needs at least ${leastOfId} letters.`,
    });
  }
  if (output.json) await output.value(jobs);
  else await output.print(...jobTable(jobs, output.colors, output.width, Date.now()));
  return exitCodes.ok;
}

/** Asks the daemon, and where there is none what it has kept: to look at jobs starts nothing. */
async function withReader<T>(session: Session, work: (reader: JobReader) => Promise<T>): Promise<T> {
  try {
    return await withDaemon(session, work);
  } catch (error) {
    using archive = await archiveInstead(session, error);
    const result = await work(archive.reader);
    session.output.say(`${['no daemon is running', ...archive.waiting].join('; ')}; start it with "onejob up"`);
    return result;
  }
}

/** What is kept where no daemon runs. @throws `error` when that is not the reason */
async function archiveInstead(session: Session, error: unknown): Promise<Archive> {
  if (!(error instanceof OnejobError) || error.code !== 'E_DAEMON_ABSENT') throw error;
  const { stateDir } = await session.place();
  return (await import('./archive.ts')).openArchive(stateDir);
}

/** In a pipe each line says why its job waits. At a terminal that stands below, once for all jobs that wait for the same. */
export function jobTable(
  jobs: readonly JobView[],
  colors: Colors,
  width: number | null,
  now: number,
  places: Places | null = null,
): string[] {
  const nameOf = shortNames(jobs, width);
  const hasBranches = jobs.some(({ about }) => (about?.branch ?? null) !== null);
  const hasUsers = jobs.some(({ user }) => user != null);
  const haveEnded = jobs.some(({ startedAt, endedAt }) => startedAt !== null && endedAt !== null);
  const rows = jobs.map((job) => {
    const state = job.state === 'done' ? printable(resultWord(job)) : job.state;
    // What a word of another service means is not known here.
    const bad = job.state === 'done' && job.about === null && !(job.result?.kind === 'code' && job.result.code === 0);
    const paint = bad ? colors.red : job.state === 'running' ? colors.green : (text: string) => text;
    const since = job.endedAt ?? job.startedAt ?? job.submittedAt;
    const reason = width !== null || reasonOf(job) === null ? '' : colors.yellow(` — ${reasonOf(job)}`);
    const branch = hasBranches ? [cut(printable(job.about?.branch ?? '-'), width === null ? null : widestBranch)] : [];
    const command = job.name == null ? job.command.join(' ') : `${job.name}: ${job.command.join(' ')}`;
    const what = printable(job.about === null ? command : job.about.title);
    const user = hasUsers ? [printable(job.user ?? '-')] : [];
    const took = job.startedAt === null || job.endedAt === null ? '-' : formatAge(job.endedAt - job.startedAt);
    const place = places?.get(job.agent ?? '');
    const where = places === null ? [] : [place?.slot ?? '-', place === undefined ? '-' : place.devices.join(',') || '-'];
    const age = since === null ? '' : formatAge(now - since);
    return [
      nameOf(job),
      job.pool === '' ? '-' : job.pool,
      ...user,
      paint(state),
      age,
      ...(haveEnded ? [took] : []),
      ...where,
      ...branch,
      what + reason,
    ];
  });
  const names = [
    ...['JOB', 'POOL', ...(hasUsers ? ['USER'] : []), 'STATE', 'SINCE', ...(haveEnded ? ['TOOK'] : [])],
    ...[...(places === null ? [] : ['SLOT', 'DEVICES']), ...(hasBranches ? ['BRANCH'] : []), 'COMMAND'],
  ];
  const [head = '', ...lines] = table([names, ...rows], width);
  const reasons =
    width === null
      ? []
      : [...Map.groupBy(jobs, reasonOf)].flatMap(([reason, held]) => {
          if (reason === null) return [];
          const who = held.length > namedAtMost ? `${held.length} jobs` : held.map(nameOf).join(', ');
          const [first = '', ...more] = wrap(`${who}: ${reason}`, Math.max(1, width - 2));
          return [first, ...more.map((line) => `  ${line}`)].map(colors.yellow);
        });
  return [colors.dim(head), ...lines, ...(reasons.length === 0 ? [] : ['', ...reasons])];
}

/** Columns of a branch at a terminal: what the job is comes behind it. */
const widestBranch = 24;
const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** At a terminal the first letters have to do for a UUID, where they are one job's alone: every command takes them. */
function shortNames(jobs: readonly JobView[], width: number | null): (job: JobView) => string {
  const short = (id: string): string => (width !== null && uuid.test(id) ? id.slice(0, 8) : id);
  const many = new Set(jobs.map(({ id }) => short(id)).filter((name, at, all) => all.indexOf(name) !== at));
  return ({ id }) => (many.has(short(id)) ? id : short(id));
}

/** How many jobs are named that wait for the same reason; more are counted. */
const namedAtMost = 3;

/** Why a job waits, what was made of it, or why nothing is known of it. What else is said of one of our own that has ended is for `run`. */
function reasonOf(job: JobView): string | null {
  const isOver = job.about === null && job.result !== null;
  const reason = isOver ? lostBecause(job) : job.reason;
  return reason === null ? null : printable(reason);
}

function lostBecause({ result }: JobView): string | null {
  return result?.kind === 'lost' ? result.reason : result?.kind === 'unstartable' ? result.failure.message : null;
}

export interface LogsFlags {
  readonly follow?: boolean;
  readonly previous?: boolean;
  /** The logs that the agent itself keeps, instead of its output. */
  readonly agent?: boolean;
  /** Every byte as it is, also on a terminal. */
  readonly raw?: boolean;
  /** Only so many of the last lines of what there is so far. */
  readonly tail?: number;
}

export async function showLogs(session: Session, target: string, flags: LogsFlags): Promise<number> {
  let connection: Connection;
  try {
    connection = await connect(session, { start: false });
  } catch (error) {
    using archive = await archiveInstead(session, error);
    return await showKept(session, target, flags, archive.reader);
  }
  const printer = printerFor(session, flags);
  const { client } = connection;
  const { signal } = new AbortController();
  const lasting: Lasting = { connection, temporary: false, mayStart: false, mending: null, signal };
  let isEmpty = true;
  const show: typeof printer.show = (piece) => {
    isEmpty = false;
    return printer.show(piece);
  };
  try {
    const { follow = false, previous = false, agent = false, tail = null } = flags;
    const source = await findSource(client, target, previous);
    await orUnknown(source, target, async () => {
      // Who works in a slot after a restart may be somebody else, so only what has an id is followed across one.
      if (follow && !('slot' in source)) {
        const what = `${'job' in source ? 'job' : 'agent'} ${target} goes on without it`;
        await followLogs(session, lasting, { what, source, tail }, show);
      } else {
        for await (const piece of client.logs(source, { follow, own: agent, tail })) await show(piece);
      }
      await printer.end?.();
    });
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

/** 1 when more is to come, and was asked for. */
async function showKept(session: Session, target: string, flags: LogsFlags, reader: JobReader): Promise<number> {
  const { output } = session;
  const { follow = false, previous = false, agent: own = false, tail = null } = flags;
  const printer = printerFor(session, flags);
  const source = await findSource(reader, target, previous);
  await orUnknown(source, target, async () => {
    for await (const piece of reader.logs(source, { follow: false, own, tail })) await printer.show(piece);
    await printer.end?.();
  });
  const job = 'job' in source ? await reader.job(source.job) : null;
  if (job?.state === 'done') {
    await sayEnd(session, reader, job.id, false);
    return exitCodes.ok;
  }
  const rest =
    job?.state === 'queued' ? 'the job is waiting for one' : 'output that has not been read yet appears once a daemon runs';
  output.say(`no daemon is running; ${rest}; start it with "onejob up"`);
  return follow ? exitCodes.failed : exitCodes.ok;
}

/** What was typed was looked for among jobs first. */
async function orUnknown(source: LogSource, target: string, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (!('agent' in source) || !(error instanceof OnejobError) || error.code !== 'E_AGENT_UNKNOWN') throw error;
    throw new OnejobError('E_AGENT_UNKNOWN', `There is no job or agent ${target}.`, {
      hint: error.hint ?? 'See "onejob status" and "onejob jobs --all".',
      cause: error,
    });
  }
}

/**
 * What the output of a job cannot say: why it was lost, and what of its artifacts was left out. What never had an agent, such as a job that was refused, has no output,
 * and a reason that its service has for a log.
 */
async function sayEnd({ output }: Session, client: Pick<Client, 'job'>, id: string, isEmpty: boolean): Promise<void> {
  // The end of what was followed may have been that of the daemon.
  const job = await client.job(id).catch(() => null);
  const line = job === null || lostBecause(job) === null ? null : verdict(job, null).line;
  if (line !== null) output.say(printable(line));
  else if (job?.state === 'done' && job.about === null && job.agent !== null && job.reason !== null)
    output.say(printable(job.reason));
  else if (isEmpty && job?.agent === null && job.reason !== null) output.say(`job ${id} has no output: ${printable(job.reason)}`);
}

export interface CancelFlags {
  /** All jobs of the own queue that wait. */
  readonly waiting?: boolean;
  /** All jobs of the own queue that are not over. */
  readonly all?: boolean;
  /** With one of these: only those of this pool. */
  readonly pool?: string;
}

/**
 * 1 when one of them could not be told to end; the others are all the same. `ids`: or beginnings of them; none with a flag that says
 * which. @throws OnejobError E_USAGE
 */
export async function cancelJobs(session: Session, ids: readonly string[], flags: CancelFlags): Promise<number> {
  const { output } = session;
  const which = flags.waiting === true ? 'waiting' : flags.all === true ? 'all' : null;
  const { pool = null } = flags;
  if (ids.length > 0 === (which !== null) || (pool !== null && which === null)) {
    throw new OnejobError('E_USAGE', 'Missing jobs to cancel: give their ids, or --waiting or --all, with or without --pool.', {
      hint: 'See "onejob cancel --help".',
    });
  }
  const failures: unknown[] = [];
  const cancelled = await withDaemon(session, async (client) => {
    const done: JobView[] = [];
    for (const id of which === null ? ids : await chosen(client, which, pool)) {
      try {
        // What is no job is refused in the daemon's own words.
        done.push(await client.cancel((which === null ? await findJob(client, id) : null)?.id ?? id));
      } catch (error) {
        if (ids.length === 1 || !(error instanceof OnejobError) || error.retry) throw error;
        failures.push(error);
      }
    }
    return done;
  });
  if (output.json) await output.value(ids.length === 1 ? cancelled[0] : cancelled);
  else if (which === null) await output.print(...cancelled.map(toldToEnd));
  else await output.print(cancelled.length === 0 ? 'No such jobs.' : toldAllToEnd(cancelled));
  for (const error of failures) output.fail(error);
  return failures.length === 0 ? exitCodes.ok : exitCodes.failed;
}

async function chosen(client: Client, which: 'waiting' | 'all', pool: string | null): Promise<string[]> {
  const jobs = await client.jobs({ all: false, pool });
  return jobs.filter(({ about, state }) => about === null && (which === 'all' || state === 'queued')).map(({ id }) => id);
}

function toldToEnd(job: JobView): string {
  const { id, state } = job;
  if (state === 'done') return `Job ${id} has ended (${resultWord(job)}).`;
  // It has its result, and what may still come of it are artifacts.
  return state === 'settling'
    ? `Job ${id} has ended (${resultWord(job)}), and nothing waits for its artifacts any more.`
    : `Job ${id} was told to end.`;
}

function toldAllToEnd(jobs: readonly JobView[]): string {
  const told = jobs.filter(({ state }) => state !== 'done').length;
  const parts = [
    ...(jobs.length > told
      ? [`${counted(jobs.length - told)} cancelled before ${jobs.length - told === 1 ? 'it' : 'they'} began`]
      : []),
    ...(told > 0 ? [`${counted(told)} told to end`] : []),
  ];
  return parts.map((part) => `${part}.`).join(' ');
}

function counted(jobs: number): string {
  return jobs === 1 ? 'One job was' : `${jobs} jobs were`;
}

export interface PruneFlags {
  /** As typed, such as `2h`. */
  readonly olderThan: string;
  readonly dryRun?: boolean;
}

/** @throws OnejobError E_USAGE */
export async function pruneJobs(session: Session, { olderThan, dryRun = false }: PruneFlags): Promise<number> {
  const { output } = session;
  const parsed = parseDuration(/^0+$/.test(olderThan) ? '0s' : olderThan);
  if (!parsed.ok) throw new OnejobError('E_USAGE', `--older-than: ${parsed.why}.`, { hint: 'Write for example 0, 30m, 2h or 7d.' });
  const found = await withDaemon(session, (client) => client.pruneJobs({ olderThan: parsed.value, dryRun }));
  if (output.json) await output.value(found);
  else {
    const { jobs, agents, bytes } = found;
    const what = `${plural(jobs, 'job')} and the logs of ${plural(agents, 'agent')}, ${formatBytes(bytes)}`;
    await output.print(dryRun ? `That would remove ${what}.` : `Removed ${what}.`);
  }
  return exitCodes.ok;
}

/** An agent's name at a CI service that is told one of its own: its name in the config, eight digits of the installation, its id. */
const nameElsewhere = /-[0-9a-f]{8}-([0-9a-z]+)$/;
/** Letters that the beginning of a job's id needs. */
const leastOfId = 4;
/** How many ids are named where a beginning is of several. */
const idsNamed = 5;

/** Slots have a slash in them; what is no job is taken for an agent. @throws OnejobError E_USAGE */
async function findSource(client: JobReader, target: string, previous: boolean): Promise<LogSource> {
  if (target.includes('/')) return { slot: target, previous };
  if (previous) {
    throw new OnejobError(
      'E_USAGE',
      `--previous shows the agent before the current one, so it needs a slot, and ${target} is not a slot.`,
      {
        hint: 'Slots are named like default/1; "onejob status" lists them.',
      },
    );
  }
  const job = await tryJob(client, target);
  if (job !== null) return { job: job.id };
  // Before jobs are gone through: a name is whole, and a beginning could be of anything.
  const slot = await slotNamed(client, target);
  if (slot !== null) return { slot, previous: false };
  const begun = onlyOne(target, await jobsBegun(client, target));
  return begun === null ? { agent: nameElsewhere.exec(target)?.[1] ?? target } : { job: begun.id };
}

/** Jobs whose id begins so, over or not, as far as they are remembered; none for fewer than four letters that are no whole id. */
async function jobsBegun(client: JobReader, start: string): Promise<JobView[]> {
  if (start.length < leastOfId) return [];
  return (await client.jobs({ all: true, pool: null })).filter(({ id }) => id.startsWith(start.toLowerCase()));
}

async function tryJob(client: JobReader, id: string): Promise<JobView | null> {
  try {
    return await client.job(id);
  } catch (error) {
    if (error instanceof OnejobError && error.code === 'E_JOB_UNKNOWN') return null;
    throw error;
  }
}

/** The job with this id, or the only one whose id begins so. @throws OnejobError E_USAGE when there are several */
async function findJob(client: JobReader, id: string): Promise<JobView | null> {
  return (await tryJob(client, id)) ?? onlyOne(id, await jobsBegun(client, id));
}

function onlyOne(start: string, found: readonly JobView[]): JobView | null {
  if (found.length < 2) return found[0] ?? null;
  const ids = found.slice(-idsNamed).map(({ id }) => id);
  const more = found.length > ids.length ? ` and ${found.length - ids.length} more` : '';
  throw new OnejobError('E_USAGE', `${found.length} jobs begin with ${start}: ${ids.join(', ')}${more}.`, {
    hint: 'Type more of the id.',
  });
}

async function slotNamed(client: JobReader, name: string): Promise<string | null> {
  const { pools } = await client.status();
  return pools.flatMap(({ slots }) => slots).find((slot) => slot.name === name)?.key ?? null;
}
