/** Handing a frame to a gate: standard input only, on a connection of its own that is closed as soon as all was taken. */

import { once } from 'node:events';
import type { Socket } from 'node:net';
import { deadline, sleep } from '../../core/clock.ts';
import { silence, upgrade } from '../../engine/call.ts';
import type { Engine } from '../../engine/engine.ts';
import { Refusal, translate } from '../../engine/failures.ts';
import { OnejobError } from '../../errors.ts';

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
    hint: 'Another standby runs the script.',
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
      if (socket.status === 404 || socket.status === 409) throw gateEnded(`accepts no input (${socket.status})`);
      throw new Refusal(socket.status, socket.body);
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

/**
 * Connections to the standard input of sandboxes that wait at the gate, opened while nobody is in a hurry: a release is then one
 * write. One that broke meanwhile is simply not there, and the release opens its own.
 */
export function createDoors(engine: Engine) {
  const open = new Map<string, Socket>();
  const opening = new Map<string, AbortController>();
  let isClosed = false;

  return {
    /** Opens one for this container. Nothing waits for it, and no failure matters. */
    async ahead(id: string): Promise<void> {
      // One more would keep the process from its end.
      if (isClosed || open.has(id) || opening.has(id)) return;
      const abort = new AbortController();
      opening.set(id, abort);
      const callOff = engine.clock.after(engine.limits.soon, () => abort.abort());
      const socket = await upgrade(engine.endpoint, attachPath(id), abort.signal).catch(() => null);
      callOff();
      // Taken meanwhile: the release has opened its own.
      const isWanted = opening.delete(id);
      if (socket === null || 'status' in socket) return;
      if (!isWanted) {
        socket.destroy();
        return;
      }
      open.set(id, socket);
      // An Engine that goes away ends it; so does the end of the container.
      socket.once('close', () => open.get(id) === socket && open.delete(id));
      socket.once('error', () => socket.destroy());
      socket.resume();
    },
    /** Hands it over; null when there is none. */
    take(id: string): Socket | null {
      opening.delete(id);
      const socket = open.get(id);
      open.delete(id);
      return socket === undefined || socket.destroyed || !socket.writable ? null : socket;
    },
    /** Nobody will come through it. */
    drop(id: string): void {
      opening.delete(id);
      open.get(id)?.destroy();
      open.delete(id);
    },
    close(): void {
      isClosed = true;
      for (const abort of opening.values()) abort.abort();
      opening.clear();
      for (const socket of open.values()) socket.destroy();
      open.clear();
    },
  };
}

/** Standard input only. */
function attachPath(id: string): string {
  return `/containers/${id}/attach?stream=1&stdin=1`;
}
