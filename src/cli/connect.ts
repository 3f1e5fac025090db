/**
 * Connects to the daemon, and starts a temporary one if a command asks for that and none is running. If two commands start one at
 * the same moment, the lock of the state directory lets one live, and both connect to it.
 */
import { spawn } from 'node:child_process';
import { chmodSync, closeSync, fstatSync, ftruncateSync, mkdirSync, openSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Client } from '../api/client.ts';
import { socketDenied } from '../api/socket-access.ts';
import { checkSocketOwner, probeSocket, type SocketState } from '../api/sockets.ts';
import { abortable } from '../base/abortable.ts';
import { attempt, hasCode, messageOf, OnejobError } from '../base/errors.ts';
import { personSocket } from '../config/paths.ts';
import { fromErrorView } from '../contract/http-errors.ts';
import type { ErrorView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import { leaderOf } from '../store/lead.ts';
import { jsonOf } from '../system/json.ts';
import { systemClock } from '../system/system-clock.ts';
import { checkNamedConfig } from './named-config.ts';
import type { Remote } from './remote.ts';
import type { DaemonPlace, Session } from './session.ts';
import { formatAge } from './text.ts';

/** ms in which a temporary daemon must be reachable. */
const startPatience = 60_000;
/** Bytes above which the log of earlier daemons is dropped. */
const logLimit = 1 << 20;
/** ms between two looks for a daemon that this process has started. */
const startPoll = 10;
/** ms between two looks for any other daemon. */
const poll = 100;
/** ms in which a stopping daemon has usually ended; one that drains may take hours. */
const closePatience = 10_000;

/**
 * Connects to the daemon that leads here; with `start`, to a temporary one if there is none. Without `start` it waits up to
 * `patience` ms for a stopping daemon to end, which is then absent. On another host it starts none. With `named`, the daemon has the
 * config that the command names: a temporary one with another config that is about to end is waited for.
 * @throws OnejobError E_HOST, E_DAEMON_ABSENT, E_DAEMON_ELSEWHERE, E_SOCKET_DENIED, E_SOCKET_FOREIGN, E_DAEMON_START, or what the daemon
 * said; with `named` as `checkNamedConfig`; the reason of `signal`.
 */
export async function connect(
  session: Session,
  options: { readonly start: boolean; readonly named?: boolean; readonly signal?: AbortSignal; readonly patience?: number },
): Promise<Connection> {
  const { start, named = false, signal = new AbortController().signal, patience = closePatience } = options;
  if (session.remote !== null) {
    const connection = await connectRemote(session, session.remote, signal);
    return named ? withNamedConfig(session, connection, false) : connection;
  }
  const place = await session.place();
  const there = await locate(place);
  const mayStart = start && !there.isSystem;
  const begin = async () => {
    session.output.progress('starting a daemon');
    await startTemporary(session, place, signal);
    session.output.progress(null);
  };
  const elsewhere = there.state === 'listening' ? null : await unreachableLeader(place);
  if (elsewhere !== null) throw elsewhere;
  // A daemon that this user may not use must not get a second one next to it. The client is loaded while the daemon starts.
  const starting = mayStart && there.state !== 'listening' && there.state !== 'denied' ? begin() : null;
  const loading = import('../api/client.ts');
  if (starting !== null) await Promise.all([starting, loading]);
  const { createClient } = await loading;
  for (let isFirst = true; ; isFirst = false) {
    const { socket } = isFirst && starting === null ? there : await locate(place);
    try {
      const connection = await hold(createClient({ socket, version: session.version, trusting: true }), signal);
      return named ? await withNamedConfig(session, connection, isFirst) : connection;
    } catch (error) {
      // A daemon that hangs up at once is stopping; its place will be free.
      if (!isGone(error)) throw error;
      if (!mayStart && !isFirst) throw isStopping(error) ? error : await nobodyHere(place, error);
      // One that was about to end may get a job meanwhile, and is then refused for its config.
      if (isStopping(error)) await untilClosed(socket, signal, mayStart && !named ? Infinity : patience);
    }
    if (mayStart) await begin();
  }
}

/**
 * The connection, if the daemon has the config that the command names; else it is closed, because it keeps a temporary daemon alive.
 * @throws OnejobError as `checkNamedConfig`; with `mayWait` E_DAEMON_STOPPING for a temporary daemon without a job, which ends once
 * no command needs it
 */
async function withNamedConfig(session: Session, connection: Connection, mayWait: boolean): Promise<Connection> {
  const { client } = connection;
  try {
    await checkNamedConfig(session, client);
    return connection;
  } catch (error) {
    using _ = connection;
    if (!mayWait || !hasCode(error, 'E_DAEMON_CONFIG')) throw error;
    const [{ temporary }, jobs] = await Promise.all([client.status(), client.jobs({ all: false, pool: null })]);
    if (!temporary || jobs.length > 0) throw error;
    throw new OnejobError('E_DAEMON_STOPPING', 'A temporary daemon with another config is about to end.', {
      retry: true,
      cause: error,
    });
  }
}

async function connectRemote(session: Session, remote: Remote, signal: AbortSignal): Promise<Connection> {
  const [dial, { createClient }] = await Promise.all([remote.dial(signal), import('../api/client.ts')]);
  return hold(createClient({ socket: remote.shown, version: session.version, dial }), signal);
}

/** Where the daemon of this host listens, at a socket of this user or root. @throws OnejobError as `connect` */
export async function daemonSocket(session: Session): Promise<string> {
  const place = await session.place();
  const { socket, state } = await locate(place);
  if (state === 'listening') {
    checkSocketOwner(socket);
    return socket;
  }
  if (state === 'denied') throw socketDenied(socket);
  throw (await unreachableLeader(place)) ?? (await nobodyHere(place, undefined));
}

/** Connects to the running daemon; null if no daemon runs here. @throws OnejobError as `connect`; for another host also if none runs */
export async function findDaemon(session: Session): Promise<Connection | null> {
  return connect(session, { start: false }).catch((error: unknown) => {
    if (session.remote === null && hasCode(error, 'E_DAEMON_ABSENT')) return null;
    throw error;
  });
}

/**
 * Runs `work` with a connection to a daemon that must be there already, or else `alone`, which gets the error. `alone` is for this
 * host only.
 */
export async function withDaemon<T>(
  session: Session,
  work: (client: Client) => Promise<T>,
  alone?: (absent: OnejobError) => Promise<T>,
  { named = false }: { readonly named?: boolean } = {},
): Promise<T> {
  try {
    using connection = await connect(session, { start: false, named });
    return await work(connection.client);
  } catch (error) {
    if (alone === undefined || session.remote !== null || !hasCode(error, 'E_DAEMON_ABSENT')) throw error;
    return await alone(error);
  }
}

/** Waits for a daemon that was lost, up to `patience` ms; one that was temporary, and so is ours to start, is started again. */
export async function reconnect(
  session: Session,
  lost: Client,
  { temporary, patience, signal }: { readonly temporary: boolean; readonly patience: number; readonly signal: AbortSignal },
): Promise<Connection> {
  const { remote } = session;
  if (temporary && remote === null) return connect(session, { start: true, signal });
  const deadline = systemClock.now() + patience;
  const { createClient } = await import('../api/client.ts');
  for (;;) {
    try {
      if (remote !== null) return await connectRemote(session, remote, signal);
      const { socket } = await locate(sameAs(lost.socket, await session.place()));
      return await hold(createClient({ socket, version: session.version, trusting: true }), signal);
    } catch (error) {
      signal.throwIfAborted();
      if (!isGone(error) && !(hasCode(error, 'E_HOST') && error.retry)) throw error;
      if (systemClock.now() >= deadline)
        throw absent(`Gave up after ${formatAge(patience)}: no daemon has come back on ${lost.socket}.`, error);
    }
    await pause(poll, signal);
  }
}

/** The place without the daemon that was not the lost one: while the user's own is away, the system's does not have its jobs. */
function sameAs(lost: string, place: DaemonPlace): DaemonPlace {
  const { socket, systemSocket } = place;
  const uid = process.geteuid?.() ?? 0;
  const found =
    [systemSocket, socket].find((path) => path !== null && (lost === path || lost === personSocket(path, uid))) ?? socket;
  return { ...place, systemSocket: null, ...(found === systemSocket && { socket: found, isSocketNamed: true }) };
}

/** Whether an error says that no daemon is there any more, or not yet. */
export function isGone(error: unknown): boolean {
  return hasCode(error, 'E_DAEMON_ABSENT', 'E_DAEMON_CUT', 'E_DAEMON_STOPPING');
}

/** Whether an error says that a daemon is there and will soon not be. */
export function isStopping(error: unknown): boolean {
  return hasCode(error, 'E_DAEMON_STOPPING');
}

/** Waits up to `patience` ms until nobody listens any more: a daemon that is started earlier finds its place taken. */
async function untilClosed(socket: string, signal: AbortSignal, patience: number): Promise<void> {
  const deadline = systemClock.now() + patience;
  while ((await probeSocket(socket)) === 'listening' && systemClock.now() < deadline) await pause(poll, signal);
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return abortable(sleep(systemClock, ms), signal);
}

/** A connection to a daemon, which keeps a temporary daemon alive. */
export interface Connection extends Disposable {
  readonly client: Client;
  /** Settles when the daemon has gone; `reloads`: it said that it reads a new config. */
  readonly gone: Promise<{ readonly reloads: boolean }>;
  close(): void;
}

async function hold(client: Client, signal: AbortSignal): Promise<Connection> {
  const held = await client.hold(signal);
  const close = () => {
    held.release();
    client.close();
  };
  return {
    client,
    gone: held.ended,
    close,
    [Symbol.dispose]: close,
  };
}

type Found = { readonly socket: string; readonly state: SocketState; readonly isSystem: boolean };

/**
 * The user's own daemon, wherever it says that it listens: a service may have another environment than a login. Else the system's,
 * also if this user may not use it, because a second daemon would compete for the same host. Else the user's own place.
 */
async function locate({ stateDir, socket, isSocketNamed, systemSocket }: DaemonPlace): Promise<Found> {
  const told = isSocketNamed ? null : (leaderOf(stateDir)?.socket ?? null);
  let own: Found = { socket, state: 'absent', isSystem: false };
  for (const path of new Set([told ?? socket, socket])) {
    own = await probe(path);
    if (own.state === 'listening') return own;
  }
  if (systemSocket === null || systemSocket === socket) return own;
  const system = await probe(systemSocket);
  return system.state === 'listening' || system.state === 'denied' ? { ...system, isSystem: true } : own;
}

/** A daemon of root's has a socket for each user whom its config lets in. */
async function probe(path: string): Promise<Found> {
  const state = await probeSocket(path);
  const uid = process.geteuid?.();
  if (state !== 'denied' || uid === undefined) return { socket: path, state, isSystem: false };
  const own = personSocket(path, uid);
  const isThere = (await probeSocket(own)) === 'listening';
  return isThere ? { socket: own, state: 'listening', isSystem: true } : { socket: path, state, isSystem: false };
}

/** The error of a command that starts no daemon; it also says what waits for one. */
async function nobodyHere({ stateDir, socket }: DaemonPlace, cause: unknown): Promise<OnejobError> {
  const { openToRead } = await import('../store/open-to-read.ts');
  // If the store belongs to another user or is of another version, the command itself reports that.
  const waiting = attempt(() => {
    using store = openToRead(stateDir);
    return waitingWords(store.jobs.open());
  });
  return absent(`No daemon is running: nothing listens on ${socket}${(waiting ?? []).map((each) => `; ${each}`).join('')}.`, cause);
}

function absent(message: string, cause: unknown): OnejobError {
  return new OnejobError('E_DAEMON_ABSENT', message, { hint: 'Start it with "onejob up".', retry: true, cause });
}

/** What waits for a daemon, in clauses. */
export function waitingWords(jobs: readonly { readonly progress: { readonly state: string } }[]): string[] {
  const waiting = jobs.filter(({ progress }) => progress.state === 'queued').length;
  const begun = jobs.length - waiting;
  const words = [
    [waiting, waiting === 1 ? 'one job is waiting' : `${waiting} jobs are waiting`],
    [begun, begun === 1 ? 'one job was left running' : `${begun} jobs were left running`],
  ] as const;
  return words.flatMap(([count, text]) => (count === 0 ? [] : [text]));
}

/**
 * Starts a temporary daemon: a detached process that writes to `daemon.log` in the state directory and ends by itself after its
 * last job and client. Resolves once a daemon is reachable, no matter who started it.
 * @throws OnejobError what the daemon said when it ended, or E_DAEMON_START; the signal's reason when it aborts.
 */
async function startTemporary(session: Session, place: DaemonPlace, signal: AbortSignal): Promise<void> {
  prepare(place);
  const reachable = async () => (await locate(place)).state === 'listening';
  const deadline = systemClock.now() + startPatience;
  for (;;) {
    const child = launch(session, place);
    for (;;) {
      signal.throwIfAborted();
      if (await reachable()) return;
      if (child.hasEnded()) break;
      if (systemClock.now() >= deadline) {
        const message = `The daemon that was started was not ready within ${startPatience / 1000} s.`;
        throw new OnejobError('E_DAEMON_START', message, { hint: `See ${child.log}.` });
      }
      await pause(startPoll, signal);
    }
    const error = await child.error();
    // Another daemon leads: it is either starting, so that its socket will appear, or ending, so that its place will be free.
    const taken = error.code === 'E_STATE_LED' || error.code === 'E_SOCKET_TAKEN';
    do {
      if (!taken || systemClock.now() > deadline) throw fromErrorView(error);
      await pause(poll, signal);
      if (await reachable()) return;
      const elsewhere = await unreachableLeader(place);
      if (elsewhere !== null) throw elsewhere;
    } while (leaderOf(place.stateDir)?.isAlive === true);
  }
}

/**
 * The error about a daemon that leads the state directory and says that it listens, but elsewhere, or does not answer there. Null
 * if there is none, also for one that started or began to close meanwhile.
 */
export async function unreachableLeader({ stateDir, socket, isSocketNamed }: DaemonPlace): Promise<OnejobError | null> {
  const leader = leaderOf(stateDir);
  if (leader?.socket == null || !leader.isAlive) return null;
  const { pid, socket: its } = leader;
  const isOther = isSocketNamed && its !== socket;
  const state = isOther ? 'absent' : await probeSocket(its);
  if (state === 'listening' || state === 'denied') return null;
  // A daemon withdraws its address before it closes its socket: only one that still says so is out of reach.
  const now = leaderOf(stateDir);
  if (now?.pid !== pid || now.socket !== its || !now.isAlive) return null;
  const hint = isOther
    ? `Leave out --socket and ONEJOB_SOCKET, or give --socket ${its}.`
    : `Its socket may have been removed. Type "kill -9 ${pid}", then "onejob up": its jobs continue, and the new daemon takes them over.`;
  const message = `A daemon (pid ${pid}) leads ${stateDir} and listens on ${its}, ${isOther ? `not on ${socket}` : 'but does not answer there'}.`;
  return new OnejobError('E_DAEMON_ELSEWHERE', message, { hint });
}

/** `error` says why it ended. */
function launch({ context, flags }: Session, place: DaemonPlace) {
  const log = join(place.stateDir, 'daemon.log');
  const file = openSync(log, 'a', 0o600);
  const from = fstatSync(file).size;
  const [program = '', ...args] = context.self;
  const config = flags.config === undefined ? [] : ['--config', flags.config];
  const up = ['up', '--temporary', '--json', '--state-dir', place.stateDir, '--socket', place.socket, ...config];
  const child = spawn(program, [...args, ...up], {
    cwd: place.stateDir,
    env: { ...context.variables },
    detached: true,
    stdio: ['ignore', file, file],
  });
  closeSync(file);
  child.unref();
  let how: string | null = null;
  child.once('error', (error) => {
    how = `could not be started: ${error.message}`;
  });
  child.once('exit', (code, signal) => {
    how = signal === null ? `ended with exit code ${code}` : `was ended by ${signal}`;
  });
  return { log, hasEnded: () => how !== null, error: () => lastError(log, from, how ?? 'ended') };
}

async function lastError(log: string, from: number, how: string): Promise<ErrorView> {
  const { errorView } = await import('../contract/schema.ts');
  const said = readFileSync(log).subarray(from).toString().trim().split('\n');
  const view = said.flatMap((line) => errorView.safeParse(jsonOf(line)).data ?? []).at(-1);
  if (view !== undefined) return view;
  // The stack of an uncaught exception stays in the log.
  const last = said.findLast((line) => /^\w*Error\b/.test(line)) ?? said.slice(-5).join('\n').trim();
  const message = `The daemon that was started ${how}${last === '' ? '.' : `:\n${last}`}`;
  return { code: 'E_DAEMON_START', message, hint: `Its log is ${log}.`, retry: false };
}

function prepare({ stateDir, socket }: DaemonPlace): void {
  try {
    mkdirSync(dirname(stateDir), { recursive: true });
    mkdirSync(stateDir, { recursive: true, mode: 0o700 });
    // The daemon would take a directory with a log in it for somebody else's.
    if (readdirSync(stateDir).length === 0) chmodSync(stateDir, 0o700);
    mkdirSync(dirname(socket), { recursive: true, mode: process.geteuid?.() === 0 ? 0o755 : 0o700 });
    const log = openSync(join(stateDir, 'daemon.log'), 'a', 0o600);
    if (fstatSync(log).size > logLimit) ftruncateSync(log);
    closeSync(log);
  } catch (error) {
    throw new OnejobError('E_DAEMON_START', `Cannot start a daemon with its state in ${stateDir}: ${messageOf(error)}.`, {
      hint: 'Choose another directory with --state-dir DIR.',
      cause: error,
    });
  }
}
