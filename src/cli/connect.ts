/**
 * Reaches the daemon, and starts a temporary one where a command asks for that and none is there. Of two that start one
 * at the same moment, the state directory's lock lets one live; both end up connected to it.
 */
import { type Client, createClient } from '../api/client.ts';
import { probeSocket } from '../api/sockets.ts';
import { OnejobError } from '../errors.ts';
import type { Connection, Session } from './session.ts';
import { startTemporary } from './start.ts';
import { socketWatch } from './watch.ts';

/** ms in which a temporary daemon must be reachable: beyond that it hangs. */
const startPatience = 60_000;

export async function connect(session: Session, options: { readonly start: boolean }): Promise<Connection> {
  const place = await session.place();
  const socket = await chooseSocket(place.socket, place.systemSocket);
  const client = createClient({ socket, version: session.version });
  try {
    return await hold(client);
  } catch (error) {
    // A daemon that hangs up at once is on its way out; its place will be free.
    const mayStart = options.start && socket === place.socket && isGone(error);
    if (!mayStart) throw error;
    session.output.progress('starting a daemon');
    await startTemporary(session, place, () => probeSocket(socket).then((state) => state === 'listening'), startPatience);
    session.output.progress(null);
    return await hold(client);
  }
}

/** Waits for a daemon that was lost, up to `patience` ms; starts a temporary one again if it was one. */
export async function reconnect(session: Session, lost: Client, temporary: boolean, patience: number): Promise<Connection> {
  const deadline = performance.now() + patience;
  if (temporary) {
    for (;;) {
      try {
        return await connect(session, { start: true });
      } catch (error) {
        if (!isGone(error) || performance.now() > deadline) throw error;
      }
    }
  }
  const client = createClient({ socket: lost.socket, version: session.version });
  using watch = socketWatch(lost.socket);
  for (;;) {
    try {
      return await hold(client);
    } catch (error) {
      const left = deadline - performance.now();
      if (!isGone(error) || left <= 0) throw error;
      await watch.change(Math.min(left, 1_000));
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

async function hold(client: Client): Promise<Connection> {
  const held = await client.hold();
  return {
    client,
    gone: held.ended,
    close: () => held.release(),
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
