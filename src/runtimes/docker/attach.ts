/** Writes a frame to a gate: standard input only, on a connection that is closed once the Engine has taken everything. */
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { OnejobError } from '../../base/errors.ts';
import { deadline, sleep } from '../../core/clock.ts';
import { silence } from '../engine/call.ts';
import type { Engine } from '../engine/engine.ts';
import { statusOf, translate } from '../engine/failures.ts';

/** ms until a slow hand-over looks wrong; it usually takes 3 ms. */
const expected = 50;
/** ms that Podman gets to take what was written, and that the end of a connection gets to be seen. */
const settling = 300;

/**
 * Writes `frame` to the container's standard input and waits until the Engine has passed it on. Closing our side does not close
 * the container's, because it was created without StdinOnce.
 */
export async function writeInput(
  engine: Engine,
  id: string,
  frame: Uint8Array,
  signal: AbortSignal,
  { podman = false, connection = null }: { readonly podman?: boolean; readonly connection?: Socket | null } = {},
): Promise<void> {
  // A container that has ended accepts an attach and stays silent forever (Engine 20.10), so its state is inspected. Not at once:
  // a waiting gate takes the frame within milliseconds.
  const stop = new AbortController();
  const either = AbortSignal.any([signal, stop.signal]);
  const look = async () => {
    const container = await engine.inspect(id, either);
    if (container === null) throw gateEnded('is gone');
    const { Running, Status, ExitCode } = container.State;
    if (Running) return;
    // It may have ended because its script was quick: then the connection is closed, too, and that may not have been seen yet. In
    // two parts: after a pause of the whole machine a timer fires before data that arrived meanwhile.
    for (let part = 0; part < 2; part += 1) await sleep(engine.clock, settling / 2, either);
    throw gateEnded(Status === 'created' ? 'was never started' : `has ended with exit code ${ExitCode}`);
  };
  const send = async (socket: Socket, limit: AbortSignal): Promise<void> => {
    const closed = once(socket, 'close', { signal: limit });
    const abort = () => socket.destroy();
    limit.addEventListener('abort', abort, { once: true });
    socket.resume();
    try {
      // Podman passes input on, but never closes the connection.
      if (podman) await new Promise<void>((resolve) => socket.write(frame, () => resolve()));
      else socket.end(frame);
      await (podman ? Promise.race([closed, sleep(engine.clock, settling, limit)]) : closed);
    } finally {
      limit.removeEventListener('abort', abort);
      socket.destroy();
    }
  };
  const write = async (): Promise<void> => {
    const { endpoint, limits, clock } = engine;
    using limit = deadline(clock, limits.late, either);
    const doing = `release the agent in container ${id.slice(0, 12)}`;
    try {
      await send(connection ?? (await engine.upgrade(attachPath(id), doing, limit.signal)), limit.signal);
    } catch (error) {
      either.throwIfAborted();
      if (limit.passed) throw await silence(engine, doing, limits.late, either);
      const status = statusOf(error);
      if (status === 404 || status === 409) throw gateEnded(`accepts no input (${status})`);
      throw translate(error, doing, endpoint);
    }
  };
  // Attaching to an ended container makes Podman prepare it to run again.
  if (podman) await look();
  const writing = write();
  const looking = sleep(engine.clock, expected, either).then(look);
  try {
    await Promise.race([writing, looking.then(() => writing)]);
  } finally {
    stop.abort();
    await Promise.allSettled([writing, looking]);
  }
}

/** The error for a gate that cannot be reached any more; nothing has run. */
export function gateEnded(what: string): OnejobError {
  const hint = 'Another standby runs the script.';
  return new OnejobError('E_GATE_ENDED', `Cannot release the agent: its sandbox ${what}.`, { hint, retry: true });
}

/** Connections to gates, opened ahead so that a release is one write. If one breaks, the release opens its own. */
export class Inputs {
  readonly #engine: Engine;
  /** By container; without a socket while it is being opened. */
  readonly #inputs = new Map<string, { readonly abort: AbortController; socket: Socket | null }>();
  #isClosed = false;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** Opens a connection to this container in the background. Failures do not matter. */
  async ahead(id: string): Promise<void> {
    // A connection would keep the process from ending.
    if (this.#isClosed || this.#inputs.has(id)) return;
    const input = { abort: new AbortController(), socket: null as Socket | null };
    this.#inputs.set(id, input);
    using limit = deadline(this.#engine.clock, this.#engine.limits.soon, input.abort.signal);
    const socket = await this.#engine
      .upgrade(attachPath(id), `attach to container ${id.slice(0, 12)}`, limit.signal)
      .catch(() => null);
    const forget = () => this.#inputs.get(id) === input && this.#inputs.delete(id);
    if (socket === null) {
      forget();
      return;
    }
    // A release came first and has opened its own.
    if (this.#inputs.get(id) !== input) {
      socket.destroy();
      return;
    }
    input.socket = socket;
    // The connection also closes when the Engine stops or the container ends.
    socket.once('close', forget);
    socket.once('error', () => socket.destroy());
    socket.resume();
  }

  /** Returns the connection, which then belongs to the caller; null if there is none. */
  take(id: string): Socket | null {
    const socket = this.#remove(id);
    return socket === null || socket.destroyed || !socket.writable ? null : socket;
  }

  /** Closes the connection, because nobody will use it. */
  drop(id: string): void {
    this.#remove(id)?.destroy();
  }

  close(): void {
    this.#isClosed = true;
    for (const { abort, socket } of this.#inputs.values()) {
      abort.abort();
      socket?.destroy();
    }
    this.#inputs.clear();
  }

  #remove(id: string): Socket | null {
    const socket = this.#inputs.get(id)?.socket ?? null;
    this.#inputs.delete(id);
    return socket;
  }
}

/** Attaches to standard input only. */
export function attachPath(id: string): string {
  return `/containers/${id}/attach?stream=1&stdin=1`;
}
