/** Handing a frame to a gate: standard input only, on a connection of its own that is closed as soon as all was taken. */

import { once } from 'node:events';
import type { Socket } from 'node:net';
import { deadline, sleep } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { attachPath } from './doors.ts';
import type { Engine } from './engine.ts';
import { messageOf, translate } from './failures.ts';
import { silence, upgrade } from './wire.ts';

/** How long handing over may take before something seems wrong, in ms; 3 ms are usual. */
const expected = 50;
/** How long Podman gets to take what was written, in ms. */
const settling = 300;

/**
 * Writes `frame` to the container's standard input and waits until the Engine has passed it on. Closing our side does not
 * close the container's, because it was made without StdinOnce.
 */
export async function writeInput(
  engine: Engine,
  id: string,
  frame: Uint8Array,
  signal: AbortSignal,
  { podman = false, door = null }: { readonly podman?: boolean; readonly door?: Socket | null } = {},
): Promise<void> {
  // A container that has ended takes an attach and stays silent for ever (Engine 20.10), so it is looked at. Not at once:
  // a gate that waits has taken the frame long before.
  const stop = new AbortController();
  const either = AbortSignal.any([signal, stop.signal]);
  const look = async () => {
    const container = await engine.inspect(id, either);
    if (container === null) throw gateEnded('is gone');
    const { Running, Status, ExitCode } = container.State;
    if (!Running) throw gateEnded(Status === 'created' ? 'was never started' : `has ended with exit code ${ExitCode}`);
  };
  // Podman makes a container that has ended ready to run again when it is attached to.
  if (podman) await look();
  const writing = write(engine, id, frame, either, podman, door);
  const looking = sleep(engine.clock, expected, either).then(look);
  try {
    await Promise.race([writing, looking.then(() => writing)]);
  } finally {
    stop.abort();
    await Promise.allSettled([writing, looking]);
  }
}

/** A gate that cannot be reached any more; nothing has run. */
export function gateEnded(what: string): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Cannot release the agent: its sandbox ${what}.`, {
    hint: 'Another standby takes the script.',
    retry: true,
  });
}

async function write(
  engine: Engine,
  id: string,
  frame: Uint8Array,
  caller: AbortSignal,
  podman: boolean,
  door: Socket | null,
): Promise<void> {
  using limit = deadline(engine.clock, engine.limits.late, caller);
  const { signal } = limit;
  const doing = `release the agent in container ${id.slice(0, 12)}`;
  try {
    const socket = door ?? (await upgrade(engine.endpoint, attachPath(id), signal));
    if ('status' in socket) {
      if (socket.status === 404 || socket.status === 409) throw gateEnded(`takes no input (${socket.status})`);
      throw Object.assign(new Error(socket.body), {
        statusCode: socket.status,
        json: { message: messageOf(new Error(socket.body)) },
      });
    }
    const closed = once(socket, 'close', { signal });
    const abort = () => socket.destroy();
    signal.addEventListener('abort', abort, { once: true });
    socket.resume();
    try {
      // Podman passes input on, but never hangs up by itself.
      if (podman) await new Promise<void>((resolve) => socket.write(frame, () => resolve()));
      else socket.end(frame);
      if (podman) await Promise.race([closed, sleep(engine.clock, settling, signal)]);
      else await closed;
    } finally {
      signal.removeEventListener('abort', abort);
      socket.destroy();
    }
  } catch (error) {
    caller.throwIfAborted();
    if (limit.passed) throw await silence(doing, engine.endpoint, engine.limits.late, engine.limits.ping, caller, engine.clock);
    throw translate(error, doing, engine.endpoint);
  }
}
