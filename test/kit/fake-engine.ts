/** An Engine that answers only what a test lets it: for what a real one cannot be made to do, such as to stay silent. */
import { rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Limits } from '../../src/runtimes/engine/call.ts';
import type { Endpoint } from '../../src/runtimes/engine/endpoint.ts';
import { Engine } from '../../src/runtimes/engine/engine.ts';

type Answer = (request: IncomingMessage, answer: ServerResponse) => void;

/** Listens from `start` or `connect` on; disposing ends all connections. Paths come without the query. */
export function fakeEngine(name: string, answer: (path: string, ...call: Parameters<Answer>) => void) {
  const socket = join(tmpdir(), `onejob-fake-${process.pid}-${name}.sock`);
  const endpoint: Endpoint = { kind: 'unix', path: socket, from: 'test' };
  const asked: string[] = [];
  const clients: Engine[] = [];
  let server: Server | null = null;
  const start = async (): Promise<void> => {
    server = createServer((request, reply) => {
      const path = request.url?.split('?')[0] ?? '';
      asked.push(path);
      answer(path, request, reply);
    });
    await new Promise<void>((done) => server?.listen(socket, done));
  };
  const stop = async (): Promise<void> => {
    for (const client of clients) client.close();
    const closed = Promise.withResolvers<void>();
    if (server === null) return;
    server.close(() => closed.resolve());
    server.closeAllConnections();
    server = null;
    await closed.promise;
    rmSync(socket, { force: true });
  };
  return {
    socket,
    endpoint,
    /** Paths of all calls so far. */
    asked,
    start,
    /** Starts it. The client is closed with it. */
    async connect(limits?: Limits): Promise<Engine> {
      await start();
      const client = new Engine(endpoint, limits);
      clients.push(client);
      return client;
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

/** One message of a log, as an Engine sends it. */
export function logMessage(stream: 'stdout' | 'stderr', stamp: string, text: string): Buffer {
  const body = Buffer.from(`${stamp} ${text}`);
  const head = Buffer.alloc(8);
  head[0] = stream === 'stdout' ? 1 : 2;
  head.writeUInt32BE(body.length, 4);
  return Buffer.concat([head, body]);
}
