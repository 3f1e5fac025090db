/** A stand-in's door as a port: requests from the network go in, answers go back as bytes. */
import { createReadStream } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Answered, Incoming, Passage } from './door.ts';

const BODY_LIMIT = 64 * 1024 * 1024;

export interface ServerOptions {
  /** Of the service, for what goes wrong in the stand-in itself. */
  readonly name: string;
  /** What follows half of an answer. */
  readonly afterHalf: 'silence' | 'cut';
  /** Path and query of pages for people, which links lead to. */
  readonly pages?: RegExp;
  enter(request: Incoming): Promise<Passage>;
}

/** What a person finds there. */
export const noPages = 'A stand-in has no pages. Type "help" where it runs: "cancel JOB" cancels a job.\n';

export function createServerOf({ name, afterHalf, pages, enter }: ServerOptions): Server {
  return createServer((message, response) => {
    // A fault of the stand-in itself must be seen as one, not as a service that is down.
    serve(message, response).catch((error: unknown) => {
      console.error(`stand-in for ${name}:`, error);
      message.socket.destroy();
    });
  });

  async function serve(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    const { method = 'GET', url = '/', headers } = message;
    if (method === 'GET' && pages?.test(url) === true) return void response.setHeader('content-type', 'text/plain').end(noPages);
    const from = message.socket.remoteAddress ?? '';
    const answer = await enter({ method, url, headers, from, body: () => bodyOf(message), signal: gone.signal });
    if (answer === 'silence') return;
    if (answer === 'cut') return void message.socket.destroy();
    send(message, response, answer);
  }

  function send(message: IncomingMessage, response: ServerResponse, { status, headers, text, file, isHalf }: Answered): void {
    response.statusCode = status;
    for (const [header, value] of Object.entries(headers)) response.setHeader(header, value);
    if (file !== null) return void createReadStream(file).pipe(response);
    if (!isHalf) return void response.end(text);
    response.setHeader('content-length', Buffer.byteLength(text) + 1);
    response.write(text.slice(0, Math.ceil(text.length / 2)), () => {
      if (afterHalf === 'cut') message.socket.destroy();
    });
  }
}

/** Null when it is too long, or the other side went away. */
async function bodyOf(message: IncomingMessage): Promise<Buffer | null> {
  const pieces: Buffer[] = [];
  let length = 0;
  try {
    for await (const piece of message as AsyncIterable<Buffer>) {
      length += piece.length;
      if (length > BODY_LIMIT) {
        message.socket.destroy();
        return null;
      }
      pieces.push(piece);
    }
  } catch {
    return null;
  }
  return Buffer.concat(pieces);
}

/** Servers that close and open together, each on the port that it had first. */
export interface Ports extends AsyncDisposable {
  /** In the order of the servers. */
  readonly ports: readonly number[];
  down(): Promise<void>;
  up(): Promise<void>;
}

/** `port`: of the first one; 0 for any. The others take any. */
export async function openPorts(servers: readonly Server[], host: string, port: number): Promise<Ports> {
  // Opening and closing one after the other, and nothing opens after the end.
  let turn: Promise<void> = Promise.resolve();
  let ended = false;
  const inTurn = (act: () => Promise<unknown>): Promise<void> => {
    turn = turn.then(act).then(() => undefined);
    return turn;
  };
  const opened = await Promise.allSettled(servers.map((server, at) => listening(server, host, at === 0 ? port : 0)));
  const refused = opened.find((one) => one.status === 'rejected');
  if (refused !== undefined) {
    // One that stays open would keep the program running.
    await Promise.all(servers.map(closed));
    throw refused.reason;
  }
  const ports = servers.map(portOf);
  const down = (): Promise<void> => inTurn(() => Promise.all(servers.map(closed)));
  return {
    ports,
    down,
    up: () =>
      inTurn(async () => {
        if (!ended) await Promise.all(servers.map((server, at) => listening(server, host, ports[at] ?? 0)));
      }),
    async [Symbol.asyncDispose]() {
      ended = true;
      await down();
    },
  };
}

async function listening(server: Server, host: string, port: number): Promise<void> {
  if (server.listening) return;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

async function closed(server: Server): Promise<void> {
  if (!server.listening) return;
  const done = new Promise<void>((resolve) => server.close(() => resolve()));
  server.closeAllConnections();
  await done;
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

/** Where others reach what listens on `host`, for URLs: an IPv6 address in brackets. */
export function publicOf(host: string): string {
  const other = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host;
  return other.includes(':') ? `[${other}]` : other;
}

/** How often what has run out is looked for, ms. */
const SWEEP_MS = 100;

/** Calls `sweep` again and again, for a stand-in whose time is the real one. */
export function sweeping(sweep: () => void): Disposable {
  const timer = setInterval(sweep, SWEEP_MS);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
