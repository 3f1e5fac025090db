/**
 * Connections to the standard input of sandboxes that wait at the gate, opened while nobody is in a hurry: a release is then one
 * write. One that broke meanwhile is simply not there, and the release opens its own.
 */
import type { Socket } from 'node:net';
import type { Engine } from './engine.ts';
import { upgrade } from './wire.ts';

export type Doors = ReturnType<typeof createDoors>;

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

/** Standard input only; see `attach.ts`. */
export function attachPath(id: string): string {
  return `/containers/${id}/attach?stream=1&stdin=1`;
}
