/** The manager's requests on a Unix socket that only the installation's user can open; what crosses it is in `protocol.ts`. */
import http from 'node:http';
import { z } from 'zod';
import { statusOf, toErrorView } from '../../../api/http-errors.ts';
import { publishSocket } from '../../../api/sockets.ts';
import { OnejobError } from '../../../errors.ts';
import type { Control } from './control.ts';
import type { Events } from './events.ts';
import {
  type BrokerState,
  carryRequest,
  endRequest,
  explainRequest,
  handRequest,
  listenRequest,
  offersRequest,
  refuseRequest,
} from './protocol.ts';

export interface ControlServer extends AsyncDisposable {}

export interface ControlServerParts {
  readonly path: string;
  readonly control: Control;
  readonly events: Events;
  state(): BrokerState;
  /** Agents call in at this address too; the port. @throws OnejobError E_API_REQUEST */
  listen(address: string): number;
}

/** Bytes of a request: every slot of a host, or a job's secrets. */
const mostBytes = 4 << 20;

/** @throws OnejobError E_SOCKET_PATH, E_SOCKET_TAKEN, E_SOCKET_DENIED */
export async function startControlServer(parts: ControlServerParts): Promise<ControlServer> {
  const routes = routesOf(parts);
  const server = http.createServer((request, response) => {
    void answer(request, response).catch((error: unknown) => {
      if (response.headersSent) response.destroy();
      else reply(response, error instanceof OnejobError ? statusOf(error.code) : 500, toErrorView(error));
    });
  });

  async function answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const { method = '', url = '' } = request;
    if (method === 'GET' && url === '/v1/events') return parts.events.stream(response);
    if (method === 'GET' && url === '/v1/state') return reply(response, 200, parts.state());
    if (method === 'POST') {
      for (const { path, run } of routes) {
        const found = path.exec(url);
        if (found === null) continue;
        return reply(response, 200, run(await bodyOf(request), decodeURIComponent(found[1] ?? '')) ?? {});
      }
    }
    throw new OnejobError('E_API_ROUTE', `The broker knows no ${method} ${url}.`);
  }

  const published = await publishSocket({ path: parts.path, access: 'owner' }, (path) => {
    return new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(path, resolve);
    });
  });
  return {
    async [Symbol.asyncDispose]() {
      published.unpublish();
      parts.events.close();
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeIdleConnections();
      setTimeout(() => server.closeAllConnections(), 1_000).unref();
      await closed;
    },
  };
}

interface Route {
  readonly path: RegExp;
  /** @param id the agent's, where the path has one */
  run(body: unknown, id: string): unknown;
}

function routesOf({ control, listen }: ControlServerParts): readonly Route[] {
  const route = <T>(path: RegExp, schema: z.ZodType<T>, run: (body: T, id: string) => unknown): Route => ({
    path,
    run: (body, id) => run(parse(schema, body), id),
  });
  return [
    route(/^\/v1\/offers$/, offersRequest, (body) => control.offers(body)),
    route(/^\/v1\/listen$/, listenRequest, ({ address }) => ({ port: listen(address) })),
    route(/^\/v1\/agents$/, carryRequest, (body) => control.carry(body)),
    route(/^\/v1\/agents\/([^/]+)\/hand$/, handRequest, (body, id) => control.hand(id, body)),
    route(/^\/v1\/agents\/([^/]+)\/refuse$/, refuseRequest, (body, id) => control.refuse(id, body)),
    route(/^\/v1\/agents\/([^/]+)\/explain$/, explainRequest, (body, id) => control.explain(id, body)),
    route(/^\/v1\/agents\/([^/]+)\/end$/, endRequest, (body, id) => control.end(id, body)),
    route(/^\/v1\/agents\/([^/]+)\/retire$/, z.unknown(), (_, id) => control.retire(id)),
    route(/^\/v1\/leave$/, z.unknown(), () => control.leave()),
  ];
}

/** Names the places that are wrong, never the values: there are tokens among them. */
function parse<T>(schema: z.ZodType<T>, body: unknown): T {
  const found = schema.safeParse(body);
  if (found.success) return found.data;
  const where = found.error.issues.map(({ path, code }) => `${path.join('.') || 'the whole'} (${code})`).join(', ');
  throw new OnejobError('E_API_REQUEST', `The broker does not understand the request: ${where}.`);
}

async function bodyOf(request: http.IncomingMessage): Promise<unknown> {
  const pieces: Buffer[] = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > mostBytes) throw new OnejobError('E_API_REQUEST', `A request to the broker has more than ${mostBytes >> 20} MiB.`);
    pieces.push(piece);
  }
  const text = Buffer.concat(pieces).toString();
  if (text === '') return {};
  try {
    return JSON.parse(text);
  } catch {
    throw new OnejobError('E_API_REQUEST', 'A request to the broker is not JSON.');
  }
}

function reply(response: http.ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
}
