/**
 * Reaches the daemon, and starts a temporary one where a command asks for that and none is there. Of two that start one
 * at the same moment, the state directory's lock lets one live; both end up connected to it.
 */
import { spawn } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  type FSWatcher,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  watch as watchDir,
} from 'node:fs';
import { dirname, join } from 'node:path';
import type { Client } from '../api/client.ts';
import { fromErrorView } from '../api/http-errors.ts';
import type { ErrorView } from '../api/schema.ts';
import { probeSocket, type SocketState } from '../api/sockets.ts';
import { OnejobError } from '../errors.ts';
import { leaderOf } from '../store/lead.ts';
import type { Connection, Place, Session } from './session.ts';
import { formatAge } from './text.ts';

/** ms in which a temporary daemon must be reachable: beyond that it hangs. */
const startPatience = 60_000;
/** Above this size the log of earlier daemons is dropped, in bytes. */
const logLimit = 1 << 20;
/** ms between attempts while another daemon that leads the state directory is on its way in or out. */
const retryAfter = 100;
/** ms in which a daemon that takes nothing more is usually gone; one that is not is drained, and may be so for hours. */
const closePatience = 10_000;

/**
 * Connects to the daemon that leads here; with `start`, to a temporary one when there is none. Without, one that is about to
 * close is waited for up to `patience` ms, and then is not there.
 * @throws OnejobError E_DAEMON_ABSENT, E_DAEMON_ELSEWHERE, E_SOCKET_DENIED, E_SOCKET_FOREIGN, E_DAEMON_START, or what the daemon said; the reason of `signal`.
 */
export async function connect(
  session: Session,
  options: { readonly start: boolean; readonly signal?: AbortSignal; readonly patience?: number },
): Promise<Connection> {
  const { start, signal = new AbortController().signal, patience = closePatience } = options;
  const place = await session.place();
  const there = await locate(place);
  const mayStart = start && there.socket !== place.systemSocket;
  const begin = async () => {
    session.output.progress('starting a daemon');
    await startTemporary(session, place, signal);
    session.output.progress(null);
  };
  if (there.state !== 'listening') await refuseUnreachable(place);
  // One that we may not use is there all the same: a second one in its place is not what anybody wants. What the client needs is loaded
  // while the daemon does the same on another core.
  const starting = mayStart && there.state !== 'listening' && there.state !== 'denied' ? begin() : null;
  const loading = import('../api/client.ts');
  if (starting !== null) await Promise.all([starting, loading, import('../api/schema.ts')]);
  const { createClient } = await loading;
  for (let isFirst = true; ; isFirst = false) {
    const { socket } = isFirst && starting === null ? there : await locate(place);
    try {
      return await hold(createClient({ socket, version: session.version }), signal);
    } catch (error) {
      // A daemon that hangs up at once is on its way out; its place will be free.
      if (!isGone(error)) throw error;
      if (!mayStart && !isFirst) throw isStopping(error) ? error : await nobodyHere(place, error);
      if (isStopping(error)) await untilClosed(socket, signal, mayStart ? Infinity : patience);
    }
    if (mayStart) await begin();
  }
}

/** Runs `work` with a connection to a daemon that must be there already. */
export async function withDaemon<T>(session: Session, work: (client: Client) => Promise<T>): Promise<T> {
  const connection = await connect(session, { start: false });
  try {
    return await work(connection.client);
  } finally {
    connection.close();
  }
}

/** Waits for a daemon that was lost, up to `patience` ms; one that was temporary, and so is ours to start, is started again. */
export async function reconnect(
  session: Session,
  lost: Client,
  { temporary, patience, signal }: { readonly temporary: boolean; readonly patience: number; readonly signal: AbortSignal },
): Promise<Connection> {
  if (temporary) return connect(session, { start: true, signal });
  const place = await session.place();
  const deadline = performance.now() + patience;
  const { createClient } = await import('../api/client.ts');
  using watch = socketWatch(lost.socket);
  for (;;) {
    try {
      return await hold(createClient({ socket: (await locate(place)).socket, version: session.version }), signal);
    } catch (error) {
      signal.throwIfAborted();
      const left = deadline - performance.now();
      if (!isGone(error)) throw error;
      if (left <= 0) throw gaveUp(lost.socket, patience, error);
      await watch.change(Math.min(left, 1_000), signal);
    }
  }
}

/** Whether an error says that no daemon is there any more, or not yet. */
export function isGone(error: unknown): boolean {
  return (
    error instanceof OnejobError &&
    (error.code === 'E_DAEMON_ABSENT' || error.code === 'E_DAEMON_CUT' || error.code === 'E_DAEMON_STOPPING')
  );
}

/** Whether an error says that a daemon is there and will soon not be. */
export function isStopping(error: unknown): boolean {
  return error instanceof OnejobError && error.code === 'E_DAEMON_STOPPING';
}

/** Waits until nobody listens any more, up to `patience` ms: what is started before that only finds its place taken. */
async function untilClosed(socket: string, signal: AbortSignal, patience: number): Promise<void> {
  const deadline = performance.now() + patience;
  using watch = socketWatch(socket);
  while ((await probeSocket(socket)) === 'listening') {
    signal.throwIfAborted();
    const left = deadline - performance.now();
    if (left <= 0) return;
    await watch.change(Math.min(left, 1_000), signal);
  }
}

async function hold(client: Client, signal: AbortSignal): Promise<Connection> {
  const held = await client.hold(signal);
  return {
    client,
    gone: held.ended,
    close() {
      held.release();
      client.close();
    },
  };
}

interface Found {
  readonly socket: string;
  readonly state: SocketState;
}

/**
 * Our own daemon when it is there, wherever it says that it listens: a service may have had another environment than a login. Else the
 * system's, also when we may not use it, because a second one beside it would compete for the same host; else our own place again.
 */
async function locate({ stateDir, socket, isSocketNamed, systemSocket }: Place): Promise<Found> {
  const told = isSocketNamed ? null : (leaderOf(stateDir)?.socket ?? null);
  let own: Found = { socket, state: 'absent' };
  for (const path of new Set([told ?? socket, socket])) {
    own = { socket: path, state: await probeSocket(path) };
    if (own.state === 'listening') return own;
  }
  if (systemSocket === null || systemSocket === socket) return own;
  const state = await probeSocket(systemSocket);
  return state === 'listening' || state === 'denied' ? { socket: systemSocket, state } : own;
}

/** @throws OnejobError E_DAEMON_ELSEWHERE when a daemon leads here that listens where we do not find it */
async function refuseUnreachable(place: Place): Promise<void> {
  const error = await unreachableLeader(place);
  if (error !== null) throw error;
}

/** What a command hears that starts no daemon, with what waits for one. */
async function nobodyHere({ stateDir, socket }: Place, cause: unknown): Promise<OnejobError> {
  const { openToRead } = await import('../store/open-to-read.ts');
  let waiting: string[] = [];
  try {
    using store = openToRead(stateDir);
    waiting = store === null ? [] : waitingWords(store.jobs.open());
  } catch {
    // Somebody else's, or of another version: what is asked for has its own words for that.
  }
  return new OnejobError(
    'E_DAEMON_ABSENT',
    `No daemon is running: nothing listens on ${socket}${waiting.map((each) => `; ${each}`).join('')}.`,
    {
      hint: 'Start it with "onejob up".',
      retry: true,
      cause,
    },
  );
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

function gaveUp(socket: string, patience: number, cause: unknown): OnejobError {
  return new OnejobError('E_DAEMON_ABSENT', `Gave up after ${formatAge(patience)}: no daemon has come back on ${socket}.`, {
    hint: 'Start it with "onejob up".',
    retry: true,
    cause,
  });
}

/**
 * Starts a temporary daemon: a process of its own that outlives us, its words in `daemon.log` in the state directory. It
 * ends by itself when its last job and its last client are gone. Resolves once a daemon is reachable, whose it is does not matter.
 * @throws OnejobError what the daemon said when it ended, or E_DAEMON_START; the signal's reason when it aborts.
 */
async function startTemporary(session: Session, place: Place, signal: AbortSignal): Promise<void> {
  prepare(place);
  const reachable = async () => (await locate(place)).state === 'listening';
  const deadline = performance.now() + startPatience;
  using watch = socketWatch(place.socket);
  for (;;) {
    const child = launch(session, place);
    let over = false;
    const ended = child.ended.then(() => {
      over = true;
    });
    for (;;) {
      signal.throwIfAborted();
      if (await reachable()) return;
      if (over) break;
      const left = deadline - performance.now();
      if (left <= 0) {
        const message = `The daemon that was started was not ready within ${startPatience / 1000} s.`;
        throw new OnejobError('E_DAEMON_START', message, { hint: `See ${child.log}.` });
      }
      await Promise.race([watch.change(left, signal), ended]);
    }
    const error = child.error();
    // Somebody else leads: either just coming up, so that its socket will appear, or just ending, so that its place will
    // be free. Neither can be waited for by the lock itself.
    const taken = error.code === 'E_STATE_LED' || error.code === 'E_SOCKET_TAKEN';
    do {
      if (!taken || performance.now() > deadline) throw fromErrorView(error);
      await watch.change(retryAfter, signal);
      if (await reachable()) return;
      const elsewhere = await unreachableLeader(place);
      if (elsewhere !== null) throw elsewhere;
    } while (leaderOf(place.stateDir)?.isAlive === true);
  }
}

/**
 * A daemon that leads the state directory and says that it listens, but not where it is looked for, or nobody answers there; null where
 * there is none, also for one that came or began to close while this looked.
 */
export async function unreachableLeader({ stateDir, socket, isSocketNamed }: Place): Promise<OnejobError | null> {
  const leader = leaderOf(stateDir);
  if (leader?.socket == null || !leader.isAlive) return null;
  const { pid, socket: its } = leader;
  const isOther = isSocketNamed && its !== socket;
  const state = isOther ? 'absent' : await probeSocket(its);
  if (state === 'listening' || state === 'denied') return null;
  // A daemon takes back what it wrote before it closes its socket: only one that still says so is out of reach.
  const now = leaderOf(stateDir);
  if (now?.pid !== pid || now.socket !== its || !now.isAlive) return null;
  const hint = isOther
    ? `Leave out --socket and ONEJOB_SOCKET, or give --socket ${its}.`
    : `Its socket may have been removed. Type "kill -9 ${pid}", then "onejob up": its jobs go on, and the new daemon takes them over.`;
  const message = `A daemon (pid ${pid}) leads ${stateDir} and listens on ${its}, ${isOther ? `not on ${socket}` : 'but does not answer there'}.`;
  return new OnejobError('E_DAEMON_ELSEWHERE', message, { hint });
}

/** `error` says why it ended, as far as it said. */
function launch({ context, flags }: Session, place: Place) {
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
  let how = 'ended';
  const ended = new Promise<void>((resolve) => {
    child.once('error', (error) => {
      how = `could not be started: ${error.message}`;
      resolve();
    });
    child.once('exit', (code, signal) => {
      how = signal === null ? `ended with exit code ${code}` : `was ended by ${signal}`;
      resolve();
    });
  });
  return { log, ended, error: () => lastError(log, from, how) };
}

function lastError(log: string, from: number, how: string): ErrorView {
  const said = readFileSync(log).subarray(from).toString().trim().split('\n');
  for (const line of said.toReversed()) {
    const view = asError(line);
    if (view !== null) return view;
  }
  // Of an uncaught exception the stack is for the log.
  const last = said.findLast((line) => /^\w*Error\b/.test(line)) ?? said.slice(-5).join('\n').trim();
  const message = `The daemon that was started ${how}${last === '' ? '.' : `:\n${last}`}`;
  return { code: 'E_DAEMON_START', message, hint: `Its log is ${log}.`, retry: false };
}

function asError(line: string): ErrorView | null {
  try {
    const { code, message, hint, retry }: Partial<Record<string, unknown>> = JSON.parse(line);
    if (typeof code !== 'string' || typeof message !== 'string') return null;
    return { code, message, hint: typeof hint === 'string' ? hint : null, retry: retry === true };
  } catch {
    return null;
  }
}

function prepare({ stateDir, socket }: Place): void {
  try {
    mkdirSync(dirname(stateDir), { recursive: true });
    mkdirSync(stateDir, { recursive: true, mode: 0o700 });
    // An empty directory becomes ours here, since with a log in it the daemon would take it for somebody else's.
    if (readdirSync(stateDir).length === 0) chmodSync(stateDir, 0o700);
    mkdirSync(dirname(socket), { recursive: true, mode: process.geteuid?.() === 0 ? 0o755 : 0o700 });
    const log = openSync(join(stateDir, 'daemon.log'), 'a', 0o600);
    const large = fstatSync(log).size > logLimit;
    closeSync(log);
    if (large) closeSync(openSync(join(stateDir, 'daemon.log'), 'w', 0o600));
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new OnejobError('E_DAEMON_START', `Cannot start a daemon with its state in ${stateDir}: ${why}.`, {
      hint: 'Choose another directory with --state-dir DIR.',
      cause: error,
    });
  }
}

/** Waiting for a socket to appear, without asking again and again. */
interface SocketWatch extends Disposable {
  /** Resolves when something happened beside the socket since the last call, after `limit` ms, or when `signal` aborts. */
  change(limit: number, signal: AbortSignal): Promise<void>;
}

/** Watches the directory of `path`, which must be there, or else only time passes. */
function socketWatch(path: string): SocketWatch {
  let pending = false;
  // A caller may have lost interest in an earlier wait: each has a timer, and none may outlive the watch.
  const waiting = new Set<() => void>();
  const wakeAll = () => {
    for (const wake of [...waiting]) wake();
  };
  const happened = () => {
    pending = true;
    wakeAll();
  };
  const watcher = tryWatch(dirname(path), happened);
  return {
    async change(limit, signal) {
      if (!pending && !signal.aborted) {
        const { promise, resolve } = Promise.withResolvers<void>();
        // Without inotify (its watches are a limited resource) looking again now and then is what is left.
        const timer = setTimeout(resolve, watcher === null ? Math.min(limit, 50) : limit);
        waiting.add(resolve);
        signal.addEventListener('abort', () => resolve(), { once: true });
        await promise;
        clearTimeout(timer);
        waiting.delete(resolve);
      }
      pending = false;
    },
    [Symbol.dispose]() {
      watcher?.close();
      wakeAll();
    },
  };
}

function tryWatch(dir: string, happened: () => void): FSWatcher | null {
  try {
    const watcher = watchDir(dir, happened);
    watcher.on('error', () => watcher.close());
    return watcher;
  } catch {
    return null;
  }
}
