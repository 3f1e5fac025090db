/**
 * An Engine, by default the machine's, behind a socket that holds up one kind of call: for what happens while the Engine is at it. What was held
 * reaches the Engine when it is let go, also when its caller has gone, as a call does that an Engine had begun.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { machineSocket } from './engine-http.ts';

export interface HeldEngine extends Disposable {
  readonly socket: string;
  /** `DOCKER_HOST`. */
  readonly url: string;
  /** The next call like this is held; resolves when there is one, with what lets it go. */
  hold(call: RegExp): Promise<Held>;
}

export interface Held {
  /** Hands the call on; resolves when the Engine has answered. */
  letGo(): Promise<void>;
}

/** `call` is tried on `METHOD path`, with the query. */
export async function heldEngine(socket = machineSocket): Promise<HeldEngine> {
  const path = join(tmpdir(), `onejob-held-${randomUUID().slice(0, 8)}.sock`);
  const open = new Set<Socket>();
  let waiting: { readonly call: RegExp; readonly held: (one: Held) => void } | null = null;
  const server = createServer({ allowHalfOpen: true }, (client) => {
    const engine = connect({ path: socket, allowHalfOpen: true });
    let isHeld = false;
    for (const [one, other] of [
      [client, engine],
      [engine, client],
    ] as const) {
      open.add(one);
      one.on('error', () => {});
      one.once('end', () => isHeld || other.end());
      one.once('close', () => {
        open.delete(one);
        if (!isHeld) other.destroy();
      });
    }
    engine.pipe(client, { end: false });
    client.on('data', (bytes: Buffer) => {
      const head = bytes.subarray(0, 2_000).toString('latin1').split(' HTTP/')[0] ?? '';
      if (waiting === null || isHeld || !waiting.call.test(head)) {
        engine.write(bytes);
        return;
      }
      const { held } = waiting;
      waiting = null;
      isHeld = true;
      engine.cork();
      engine.write(bytes);
      held({
        async letGo() {
          const answered = once(engine, 'data');
          engine.uncork();
          await answered;
          isHeld = false;
          if (client.destroyed) engine.destroy();
        },
      });
    });
  });
  server.listen(path);
  await once(server, 'listening');
  return {
    socket: path,
    url: `unix://${path}`,
    hold: (call) =>
      new Promise((held) => {
        waiting = { call, held };
      }),
    [Symbol.dispose]() {
      server.close();
      for (const one of open) one.destroy();
    },
  };
}
