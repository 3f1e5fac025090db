/**
 * The GitHub stand-in on a real port, for clients that are programs of their own.
 *
 *     await using github = await startGitHub();
 *     const job = github.queue({ steps: [['echo hello']] });
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { text } from 'node:stream/consumers';
import { type GitHubOptions, type MemoryGitHub, memoryGitHub } from '../kit/github.ts';
import { noPages } from '../standins/kit/server.ts';

export interface GitHubServerOptions extends Omit<GitHubOptions, 'origin'> {
  /** What it listens on; default the loopback, which sandboxes do not reach (`bridgeAddress` of `buildkite-host.ts` they do). */
  readonly address?: string;
}

/** A GitHub Enterprise Server unless `enterpriseServer` is null: clients find the API of any other host there only. */
export async function startGitHub({ address = '127.0.0.1', ...options }: GitHubServerOptions = {}) {
  const server = createServer().listen(0, address);
  await once(server, 'listening');
  const origin = `http://${address}:${(server.address() as AddressInfo).port}`;
  /** Answers that GitHub would not give, and calls that it does not have. Disposing throws them. */
  const broken: Error[] = [];
  const github = memoryGitHub({
    enterpriseServer: '3.19.0',
    ownKeys: true,
    origin,
    ...options,
    broken: (error) => broken.push(error),
  });
  server.on('request', (request, response) => void answer(github, origin, request, response));
  /** The server forgets them once they are WebSockets. */
  const feeds = new Set<Duplex>();
  server.on('upgrade', (request, socket) => {
    feeds.add(socket);
    acceptFeed(request, socket);
  });
  return {
    ...github,
    async [Symbol.asyncDispose](): Promise<void> {
      for (const feed of feeds) feed.destroy();
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
      if (broken.length > 0) throw new AggregateError(broken, broken.map(({ message }) => message).join('\n'));
    },
  };
}

async function answer(github: MemoryGitHub, origin: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
  if (request.method === 'GET' && /^\/[\w-]+\/[\w.-]+\/actions\/runs\/\d+/.test(request.url ?? ''))
    return void response.setHeader('content-type', 'text/plain').end(noPages);
  const gone = new AbortController();
  response.once('close', () => gone.abort());
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) headers.set(name, String(value));
  try {
    const call = { method: request.method ?? 'GET', url: `${origin}${request.url}`, headers, text: await text(request) };
    const outcome = await github.handle({ ...call, signal: gone.signal });
    if (typeof outcome === 'string') return void request.socket.destroy();
    const body = outcome.body === undefined ? '' : JSON.stringify(outcome.body);
    response.writeHead(outcome.status, { 'content-type': 'application/json; charset=utf-8', ...outcome.headers }).end(body);
  } catch (error) {
    if (!response.headersSent) response.writeHead(500).end(String(error));
  }
}

/** Runners send live logs over a WebSocket. What they say is let go. */
function acceptFeed(request: IncomingMessage, socket: Duplex): void {
  // From RFC 6455, section 1.3.
  const key = `${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
  const lines = [
    ...['HTTP/1.1 101 Switching Protocols', 'Upgrade: websocket', 'Connection: Upgrade'],
    `Sec-WebSocket-Accept: ${createHash('sha1').update(key).digest('base64')}`,
  ];
  socket.on('error', () => {}).on('data', () => {});
  socket.write(`${lines.join('\r\n')}\r\n\r\n`);
}
