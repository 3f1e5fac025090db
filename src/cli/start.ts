/**
 * Starts a temporary daemon: a process of its own that outlives us, its words in `daemon.log` in the state directory. It
 * ends by itself when its last job and its last client are gone.
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
import { fromErrorView } from '../api/http-errors.ts';
import type { ErrorView } from '../api/schema.ts';
import { probeSocket } from '../api/sockets.ts';
import { OnejobError } from '../errors.ts';
import { leaderOf } from '../store/lead.ts';
import type { Place, Session } from './session.ts';

/** Above this size the log of earlier daemons is dropped, in bytes. */
const logLimit = 1 << 20;
/** ms between attempts while another daemon that leads the state directory is on its way in or out. */
const retryAfter = 100;

/** What a start is about. */
export interface StartOptions {
  readonly place: Place;
  /** Whether a daemon answers by now; whose it is does not matter. */
  readonly reachable: () => Promise<boolean>;
  /** ms it may take. */
  readonly patience: number;
  readonly signal: AbortSignal;
}

/**
 * Resolves once a daemon is reachable.
 * @throws OnejobError what the daemon said when it ended, or E_DAEMON_START; the signal's reason when it aborts.
 */
export async function startTemporary(session: Session, { place, reachable, patience, signal }: StartOptions): Promise<void> {
  prepare(place);
  const deadline = performance.now() + patience;
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
        const message = `The daemon that was started did not come up within ${patience / 1000} s.`;
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
    : `Its socket may have been removed. Type "kill -9 ${pid}", then "onejob up": its jobs go on, and are taken over.`;
  const message = `A daemon (pid ${pid}) leads ${stateDir} and listens at ${its}, ${isOther ? `not at ${socket}` : 'but nobody answers there'}.`;
  return new OnejobError('E_DAEMON_ELSEWHERE', message, { hint });
}

interface Child {
  readonly log: string;
  readonly ended: Promise<void>;
  /** Why it ended, as far as it said. */
  error(): ErrorView;
}

function launch({ context, flags }: Session, place: Place): Child {
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
export interface SocketWatch extends Disposable {
  /** Resolves when something happened beside the socket since the last call, after `limit` ms, or when `signal` aborts. */
  change(limit: number, signal: AbortSignal): Promise<void>;
}

/** Watches the directory of `path`, which must be there, or else only time passes. */
export function socketWatch(path: string): SocketWatch {
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
