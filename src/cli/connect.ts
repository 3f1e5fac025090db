/**
 * Reaches the daemon, and starts a temporary one where a command asks for that and none is there. Of two that start one
 * at the same moment, the state directory's lock lets one live; both end up connected to it.
 */
import type { Client } from '../api/client.ts';
import { probeSocket } from '../api/sockets.ts';
import { OnejobError } from '../errors.ts';
import type { Connection, Session } from './session.ts';
import { startTemporary } from './start.ts';
import { socketWatch } from './watch.ts';

/** ms in which a temporary daemon must be reachable: beyond that it hangs. */
const startPatience = 60_000;
/** ms in which a daemon that takes nothing more is usually gone; one that is not is drained, and may be so for hours. */
const closePatience = 10_000;

/**
 * Connects to the daemon that leads here; with `start`, to a temporary one when there is none. Without, one that is about to
 * close is waited for up to `patience` ms, and then is not there.
 * @throws OnejobError E_DAEMON_ABSENT, E_SOCKET_DENIED, E_DAEMON_START, or what the daemon said; the reason of `signal`.
 */
export async function connect(
  session: Session,
  options: { readonly start: boolean; readonly signal?: AbortSignal; readonly patience?: number },
): Promise<Connection> {
  const { start, signal = new AbortController().signal, patience = closePatience } = options;
  const place = await session.place();
  const socket = await chooseSocket(place.socket, place.systemSocket);
  const mayStart = start && socket === place.socket;
  const reachable = async () => (await probeSocket(socket)) === 'listening';
  const begin = async () => {
    session.output.progress('starting a daemon');
    await startTemporary(session, { place, reachable, patience: startPatience, signal });
    session.output.progress(null);
  };
  // One that we may not use is there all the same: a second one in its place is not what anybody wants.
  const there = await probeSocket(socket);
  // What the client needs is loaded while the daemon does the same on another core.
  const starting = mayStart && there !== 'listening' && there !== 'denied' ? begin() : null;
  const loading = import('../api/client.ts');
  if (starting !== null) await Promise.all([starting, loading, import('../api/schema.ts')]);
  const { createClient } = await loading;
  const client = createClient({ socket, version: session.version });
  for (let isFirst = true; ; isFirst = false) {
    try {
      return await hold(client, signal);
    } catch (error) {
      // A daemon that hangs up at once is on its way out; its place will be free.
      if (!isGone(error) || !(mayStart || isFirst)) throw error;
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

/** As `withDaemon`, but starts a temporary daemon when there is none. */
export async function withAnyDaemon<T>(session: Session, work: (client: Client) => Promise<T>): Promise<T> {
  const connection = await connect(session, { start: true });
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
  const deadline = performance.now() + options.patience;
  const { createClient } = await import('../api/client.ts');
  const client = createClient({ socket: lost.socket, version: session.version });
  using watch = socketWatch(lost.socket);
  for (;;) {
    try {
      return await hold(client, signal);
    } catch (error) {
      const left = deadline - performance.now();
      if (!isGone(error) || left <= 0) throw error;
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

/**
 * Our own daemon when it is there; else the system's, also when we may not use it, because a second one beside it would
 * compete for the same host; else our own again, to be started.
 */
async function chooseSocket(own: string, system: string | null): Promise<string> {
  if (system === null || system === own || (await probeSocket(own)) === 'listening') return own;
  const state = await probeSocket(system);
  return state === 'listening' || state === 'denied' ? system : own;
}
