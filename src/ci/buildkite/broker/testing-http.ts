/** For tests: the small service at a port, a broker's process, and the manager's end of its socket. */
import { once } from 'node:events';
import http, { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import { json } from 'node:stream/consumers';
import type { BrokerEvent } from './protocol.ts';
import type { TestService } from './testing-service.ts';

export interface AtPort extends AsyncDisposable {
  readonly url: string;
}

/** It, below `/v3`. */
export function serviceHandler(service: TestService): http.RequestListener {
  return async (request, response) => {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    const bytes = Buffer.concat(pieces);
    const url = new URL(request.url ?? '', 'http://service');
    const isJson = request.headers['content-type'] === 'application/json';
    const answer = service.answer({
      method: request.method ?? '',
      path: url.pathname.replace('/v3/', '').split('/').map(decodeURIComponent).join('/'),
      query: url.searchParams,
      token: (request.headers.authorization ?? '').replace('Token ', ''),
      body: isJson ? JSON.parse(bytes.toString()) : bytes,
    });
    if (answer === 'cut') response.destroy();
    else response.writeHead(answer.status, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer.body));
  };
}

export async function serveAtPort(service: TestService): Promise<AtPort> {
  const server = createServer(serviceHandler(service));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v3`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

export interface Manager {
  /** All that was heard so far. */
  readonly events: readonly BrokerEvent[];
  post(path: string, body: unknown): Promise<{ readonly status: number; readonly body: unknown }>;
  /** Resolves with the first event that fits, of those so far and those to come. @throws Error when the stream ends first */
  until(fits: (event: BrokerEvent) => boolean): Promise<BrokerEvent>;
  close(): void;
}

/** Reads the events of the broker at `socketPath`; resolves once the first has come. */
export async function joinBroker(socketPath: string): Promise<Manager> {
  const events: BrokerEvent[] = [];
  const lookers = new Set<() => void>();
  let isOver = false;
  const request = http.get({ socketPath, path: '/v1/events', agent: false });
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  response.on('error', () => {});
  const lines = createInterface({ input: response });
  lines.on('error', () => {});
  const look = (): void => {
    for (const looker of [...lookers]) looker();
  };
  lines.on('line', (line) => {
    events.push(JSON.parse(line));
    look();
  });
  lines.on('close', () => {
    isOver = true;
    look();
  });
  const until: Manager['until'] = (fits) =>
    new Promise((resolve, reject) => {
      const looker = (): void => {
        const found = events.find(fits);
        if (found === undefined && !isOver) return;
        lookers.delete(looker);
        if (found === undefined) reject(new Error(`the stream ended without it, after ${JSON.stringify(events)}`));
        else resolve(found);
      };
      lookers.add(looker);
      looker();
    });
  await until(({ kind }) => kind === 'state');
  return {
    events,
    until,
    post: (path, body) => postTo(socketPath, path, body),
    close: () => request.destroy(),
  };
}

export async function postTo(socketPath: string, path: string, body: unknown): Promise<{ status: number; body: unknown }> {
  const request = http.request({ socketPath, path, method: 'POST', agent: false });
  request.end(JSON.stringify(body));
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  return { status: response.statusCode ?? 0, body: await json(response) };
}
