/** An Engine that answers only what a test lets it: for what a real one cannot be made to do, such as to stay silent. */
import { rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Limits } from '../../src/runtimes/engine/call.ts';
import type { Endpoint } from '../../src/runtimes/engine/endpoint.ts';
import { Engine } from '../../src/runtimes/engine/engine.ts';

type Answer = (request: IncomingMessage, answer: ServerResponse) => void;

export interface FakeOptions {
  /** Of its API. */
  readonly api?: string | null;
  /** Its version, if it is Podman. */
  readonly podman?: string;
  /** Whether it answers pings by itself. Default true. */
  readonly pings?: boolean;
}

/** Listens from `start` or `connect` on; disposing ends all connections. Paths come without the version and the query. */
export function fakeEngine(
  name: string,
  answer: (path: string, ...call: Parameters<Answer>) => void,
  { api = '1.41', podman, pings = true }: FakeOptions = {},
) {
  const socket = join(tmpdir(), `onejob-fake-${process.pid}-${name}.sock`);
  const endpoint: Endpoint = { kind: 'unix', path: socket, from: 'test' };
  const asked: string[] = [];
  const clients: Engine[] = [];
  let server: Server | null = null;
  const start = async (): Promise<void> => {
    server = createServer((request, reply) => {
      const path = withoutVersion(request.url?.split('?')[0] ?? '');
      // As a real one does with each answer.
      if (api !== null) reply.setHeader('Api-Version', api);
      if (podman !== undefined) reply.setHeader('Libpod-API-Version', podman);
      if (pings && path === '/_ping') return void reply.end('OK');
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

/** Whether it was a ping, which is then answered as an Engine does that speaks this version of the API. */
export function answersPing(request: IncomingMessage, reply: ServerResponse, api = '1.41'): boolean {
  if (request.url !== '/_ping') return false;
  reply.setHeader('Api-Version', api).end('OK');
  return true;
}

/** The path of a call, whatever the version of the API in it. */
export function withoutVersion(path: string): string {
  return path.replace(/^\/v[\d.]+(?=\/)/, '');
}

/** One message of a log, as an Engine sends it. */
export function logMessage(stream: 'stdout' | 'stderr', stamp: string, text: string): Buffer {
  const body = Buffer.from(`${stamp} ${text}`);
  const head = Buffer.alloc(8);
  head[0] = stream === 'stdout' ? 1 : 2;
  head.writeUInt32BE(body.length, 4);
  return Buffer.concat([head, body]);
}
