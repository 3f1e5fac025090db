/**
 * Reaches the daemon, and starts a temporary one where a command asks for that and none is there. Of two that start one
 * at the same moment, the state directory's lock lets one live; both end up connected to it.
 */
import type { Client } from '../api/client.ts';
import { probeSocket, type SocketState } from '../api/sockets.ts';
import { OnejobError } from '../errors.ts';
import { leaderOf } from '../store/lead.ts';
import type { Connection, Place, Session } from './session.ts';
import { socketWatch, startTemporary, unreachableLeader } from './start.ts';
import { formatAge } from './units.ts';

/** ms in which a temporary daemon must be reachable: beyond that it hangs. */
const startPatience = 60_000;
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
  const reachable = async () => (await locate(place)).state === 'listening';
  const begin = async () => {
    session.output.progress('starting a daemon');
    await startTemporary(session, { place, reachable, patience: startPatience, signal });
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

/** Waits for a daemon that was lost, up to `patience` ms; starts a temporary one again if it was one. */
export async function reconnect(session: Session, lost: Client, options: ReconnectOptions): Promise<Connection> {
  const { signal, temporary } = options;
  if (temporary) return connect(session, { start: true, signal });
  const place = await session.place();
  const deadline = performance.now() + options.patience;
  const { createClient } = await import('../api/client.ts');
  using watch = socketWatch(lost.socket);
  for (;;) {
    try {
      return await hold(createClient({ socket: (await locate(place)).socket, version: session.version }), signal);
    } catch (error) {
      signal.throwIfAborted();
      const left = deadline - performance.now();
      if (!isGone(error)) throw error;
      if (left <= 0) throw gaveUp(lost.socket, options.patience, error);
      await watch.change(Math.min(left, 1_000), signal);
    }
  }
}

export interface ReconnectOptions {
  readonly temporary: boolean;
  /** ms a daemon that is not ours to start is waited for. */
  readonly patience: number;
  readonly signal: AbortSignal;
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
    `No daemon is running: nothing listens at ${socket}${waiting.map((each) => `; ${each}`).join('')}.`,
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
  return new OnejobError('E_DAEMON_ABSENT', `Gave up after ${formatAge(patience)}: no daemon has come back at ${socket}.`, {
    hint: 'Start it with "onejob up".',
    retry: true,
    cause,
  });
}
