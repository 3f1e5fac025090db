/** `onejob pause`, `resume`, `drain` and `down`. */
import { readdirSync } from 'node:fs';
import { attempt } from '../base/errors.ts';
import { quoted } from '../base/quoted.ts';
import type { DownRequest, ForgottenView, ResumeView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import { agentsOf, jobsIn } from '../core/slot.ts';
import { startOf } from '../store/lead.ts';
import { systemClock } from '../system/system-clock.ts';
import { askFor, fateQuestion, fates, isAsked, runningJobs } from './ask-before-ending.ts';
import { type Connection, findDaemon, withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import { Interrupted } from './init/ask.ts';
import type { Session } from './session.ts';
import { plural, printable } from './text.ts';

export async function pausePools(session: Session, what: 'pause' | 'drain', pool: string | null, reason: string): Promise<number> {
  await withDaemon(session, (client) => (what === 'drain' ? client.drain(pool) : client.pause(pool, reason)));
  const { output } = session;
  const who = pool === null ? 'all pools' : `pool ${pool}`;
  const said = {
    pause: `Paused ${who}: nothing new starts.`,
    drain: `Draining ${who}: running jobs finish, and nothing new starts.`,
  };
  await output.result({ done: what, pool, reason: what === 'drain' ? null : reason }, () => [said[what]]);
  return exitCodes.ok;
}

/** 1 when another pause remains. */
export async function resumePools(session: Session, pool: string | null, reason: string): Promise<number> {
  const { changed, held } = await withDaemon(session, (client) => client.resume(pool, reason));
  const { output } = session;
  const isHeld = held.some(({ by }) => by.length > 0);
  const resumed = pool === null ? 'Resumed all pools.' : `Resumed pool ${pool}.`;
  const none = pool === null ? 'No pool was paused.' : `Pool ${pool} was not paused.`;
  const lines = () => [...(isHeld ? [] : [changed ? resumed : none]), ...held.flatMap(heldLines)];
  await output.result({ done: 'resume', pool, reason, changed, held }, lines);
  return isHeld ? exitCodes.failed : exitCodes.ok;
}

function heldLines({ pool, by, because }: ResumeView['held'][number]): string[] {
  const people = by.map(
    (reason) =>
      `Pool ${pool} is still paused by ${printable(reason)}: type "onejob resume ${pool} --reason ${quoted(printable(reason))}".`,
  );
  const others = because.map((why) => `Pool ${pool} still starts nothing: ${printable(why).replace(/\.$/, '')}.`);
  return [...people, ...others];
}

/** `asks`: a person at a terminal first says whether running jobs are to end. Returns when the daemon has ended, or at once after an INT. 1 without a daemon, or when something could not be forgotten. */
export async function down(session: Session, request: DownRequest, asks = false): Promise<number> {
  const { output } = session;
  const connection = await findDaemon(session);
  if (connection !== null) return await end(session, connection, request, asks);
  const left = request.forget ? await leftBehind(session) : null;
  const running = await leftRunning(session);
  const lines = () => [
    'No daemon runs here, so nothing was ended.',
    ...leftLines(running),
    ...(left ?? []).flatMap(forgottenLines),
  ];
  const more = { ...(running.agents.length > 0 && { left: running }), ...(left !== null && { forgotten: left }) };
  await output.result({ stopped: false, jobs: 0, ...more }, lines);
  if (left === null || left.length === 0) return exitCodes.failed;
  output.say(
    'only a daemon can remove them: start one the same way as before (the same config, or the same "onejob azure …"), then type "onejob down --forget" in another terminal; or remove them by hand',
  );
  return exitCodes.failed;
}

/** What becomes of running jobs; by default they keep running. @throws Interrupted */
async function howToEnd(session: Session, { client }: Connection, request: DownRequest): Promise<DownRequest> {
  if (!isAsked(session)) return request;
  const running = await runningJobs(client);
  if (running.length === 0) return request;
  const asked = { text: fateQuestion(running, systemClock.wall()), shown: fates(running.length), command: 'down' };
  // What is at services can only be forgotten once nothing runs.
  const how = request.forget
    ? await askFor(session, { ...asked, words: ['drain', 'end'] })
    : await askFor(session, { ...asked, words: ['leave', 'drain', 'end'] });
  return { ...request, how };
}

async function end(session: Session, connection: Connection, asked: DownRequest, asks: boolean): Promise<number> {
  const { output, context } = session;
  const { client } = connection;
  let request = asked;
  try {
    if (asks) request = await howToEnd(session, connection, asked);
  } catch (error) {
    connection.close();
    if (!(error instanceof Interrupted)) throw error;
    output.say('nothing was ended');
    return exitCodes.cancelled;
  }
  const interrupted = Promise.withResolvers<'interrupted'>();
  const release = context.process.onSignal(() => interrupted.resolve('interrupted'));
  try {
    const { pid, pools } = await client.status();
    const started = startOf(pid);
    const jobs = pools.flatMap(({ slots }) => slots).filter(({ agent }) => agent.job !== null).length;
    // Requested first: once told to end, the daemon may be gone at once.
    const forgotten = request.forget ? client.forgotten().catch(() => null) : [];
    await client.down(request);
    if (jobs > 0 && request.how === 'end' && request.grace === null)
      output.say(`ending ${count(jobs)}, each within the "stop_grace" of its pool; "onejob down --now" kills them`);
    output.progress(request.how === 'drain' ? 'waiting for the running jobs to end' : 'waiting for the daemon to end');
    if ((await Promise.race([connection.gone, interrupted.promise])) === 'interrupted') {
      output.say('the daemon continues to stop');
      return exitCodes.cancelled;
    }
    const told = await forgotten;
    // A process of another host cannot be seen from here.
    const hasEnded = session.remote !== null || (await untilEnded({ pid, started }, lastSteps));
    output.progress(null);
    if (!hasEnded) {
      output.say(`the daemon has closed its socket, but its process ${pid} still ends: start no other before that is gone`);
      return exitCodes.failed;
    }
    const became = { end: 'It ended', drain: 'It waited for', leave: 'It left' }[request.how];
    const [they, them] = jobs === 1 ? ['It continues', 'it'] : ['They continue', 'them'];
    const next = `${they} without a daemon; "onejob up" takes ${them} over, and then "onejob down --end" ends ${them}.`;
    const ended = jobs === 0 ? [] : [`${became} ${count(jobs)}.`, ...(request.how === 'leave' ? [next] : [])];
    // Of an Engine or a service that does not answer.
    if (request.how !== 'leave') ended.push(...leftLines(await leftRunning(session)));
    const lines = () => ['The daemon has ended.', ...ended, ...(told ?? []).flatMap(forgottenLines)];
    await output.result({ stopped: true, jobs, ...(request.forget ? { forgotten: told } : {}) }, lines);
    if (told === null) output.say('the daemon did not report what it removed; "onejob down --forget" lists what is left');
    return told === null || told.some(({ problem }) => problem !== null) ? exitCodes.failed : exitCodes.ok;
  } finally {
    release();
    connection.close();
  }
}

function count(jobs: number): string {
  return jobs === 1 ? 'one running job' : `${jobs} running jobs`;
}

interface Left {
  readonly agents: readonly string[];
  readonly jobs: readonly string[];
}

/** Agents that the last daemon here left, and their jobs, as the store has them: nobody has looked whether they still run. */
async function leftRunning(session: Session): Promise<Left> {
  // The store of another host is not here.
  if (session.remote !== null) return { agents: [], jobs: [] };
  const { stateDir } = await session.place();
  const { openToRead } = await import('../store/open-to-read.ts');
  // Of a store that cannot be read, "up" says why.
  using store = attempt(() => openToRead(stateDir));
  const slots = (attempt(() => store?.slots()) ?? []).map(({ slot }) => slot);
  return { agents: slots.flatMap(agentsOf), jobs: slots.flatMap(jobsIn) };
}

function leftLines({ agents, jobs }: Left): string[] {
  if (agents.length === 0) return [];
  const of = jobs.length === 0 ? 'without a job' : `with ${plural(jobs.length, 'job')} (${jobs.join(', ')})`;
  return [
    `The last daemon left ${plural(agents.length, 'agent')} ${of}, which may still run: ${agents.join(', ')}.`,
    'To end what runs, start a daemon with "onejob up", then type "onejob down --end".',
  ].map(printable);
}

/** Registrations in the store that no daemon can remove now. */
async function leftBehind(session: Session): Promise<ForgottenView[]> {
  const { stateDir } = await session.place();
  const { registrationsLeft } = await import('../store/open-to-read.ts');
  const byService = Map.groupBy(registrationsLeft(stateDir), ({ service }) => service);
  return [...byService].map(([service, left]) => ({
    service,
    removed: [],
    left: left.map(({ name }) => name),
    problem: 'no daemon runs here',
  }));
}

function forgottenLines({ service, removed, left, problem }: ForgottenView): string[] {
  const lines: string[] = [];
  if (removed.length > 0) lines.push(`${service}: removed ${removed.join(', ')}.`);
  if (left.length > 0)
    lines.push(`${service}: still there: ${left.join(', ')}${problem === null ? '' : ` (${problem.replace(/\.$/, '')})`}.`);
  if (lines.length === 0) lines.push(`${service}: nothing was left to remove.`);
  return lines.map(printable);
}

/** ms that a daemon may take to end after it has closed its socket. */
const lastSteps = 60_000;

/**
 * Whether a process ends within `patience` ms. A daemon closes its socket before it releases its state, and must be gone for
 * `onejob down && onejob up`. It is not a child of this process, so this has to poll. `started`: as `startOf` said before.
 */
export async function untilEnded(
  daemon: { readonly pid: number; readonly started: string | null },
  patience: number,
): Promise<boolean> {
  for (const until = systemClock.now() + patience; isThere(daemon); await sleep(systemClock, 10))
    if (systemClock.now() > until) return false;
  return true;
}

/** While one of its threads is there, so are its files and sockets, even if its first thread has ended. Its pid may be another's by now. */
function isThere({ pid, started }: { readonly pid: number; readonly started: string | null }): boolean {
  const now = startOf(pid);
  return now === null ? (attempt(() => readdirSync(`/proc/${pid}/task`)) ?? []).length > 1 : now === started;
}
