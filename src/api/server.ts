/**
 * The API: HTTP `/v1` over a unix socket. Everyone who can open the socket may do everything.
 *
 * Every body is checked before a route gets it, and every error is sent as an `errorView`. Waiting requests (the end of a job, a
 * followed log, a held client) end with their client or with the server.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { parse } from 'node:querystring';
import { OnejobError } from '../errors.ts';
import { statusOf, toErrorView } from './http-errors.ts';
import type { ImageService, Manager, SecretPins } from './manager.ts';
import { createRouter, readBody, send } from './requests.ts';
import { controlRoutes, deviceRoutes, imageRoutes, jobRoutes, logRoutes, secretRoutes, workspaceRoutes } from './routes.ts';
import { publishSocket, type SocketOptions } from './sockets.ts';

export interface ApiOptions {
  readonly manager: Manager;
  /** Omitted if no images are built. */
  readonly images?: ImageService;
  /** Omitted if no job has encrypted values. */
  readonly secrets?: SecretPins;
  readonly socket: SocketOptions;
  readonly version: string;
  /** Called for each bug. */
  readonly onBug?: (error: Error, route: string) => void;
}

export type ApiServer = Awaited<ReturnType<typeof startApi>>;

/** ms for clients to read their last answers from a closing server. */
const closePatience = 1_000;

/** ms. A workspace may take longer than Node's five minutes for a request; the head of a request has a limit of its own. */
const patience = { requestTimeout: 0, headersTimeout: 60_000, keepAliveTimeout: 72_000 };

/**
 * Starts to serve. The caller holds the lock of the state directory.
 * @throws OnejobError E_SOCKET_PATH, E_SOCKET_TAKEN, E_SOCKET_DENIED.
 */
export async function startApi(options: ApiOptions) {
  const { manager, images, secrets, version } = options;
  const findRoute = createRouter({
    ...controlRoutes(manager),
    ...jobRoutes(manager),
    ...workspaceRoutes(manager),
    ...logRoutes(manager),
    ...deviceRoutes(manager),
    ...(images === undefined ? {} : imageRoutes(images)),
    ...(secrets === undefined ? {} : secretRoutes(secrets)),
  });
  /** Of requests that are not answered yet. */
  const open = new Set<AbortController>();
  let closing = false;

  const refuse = (error: unknown, request: IncomingMessage, response: ServerResponse): void => {
    // Work that is aborted because the server closes may fail with any error.
    const known = closing && !(error instanceof OnejobError) ? stopping() : error;
    const view = toErrorView(known);
    if (view.code === 'E_BUG' && error instanceof Error && !(response.destroyed && isAbort(error)))
      options.onBug?.(error, `${request.method} ${request.url}`);
    // A client recognises half an answer by its broken end.
    if (response.headersSent) return void response.destroy();
    response.statusCode = known instanceof OnejobError ? statusOf(known.code) : 500;
    send(response, view, () => {});
  };

  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const gone = new AbortController();
    open.add(gone);
    response.once('close', () => {
      open.delete(gone);
      gone.abort();
      // Otherwise a connection that becomes idle now keeps the server open.
      if (closing) setImmediate(() => server.closeIdleConnections());
    });
    // Errors of the client lead to 'close'.
    response.on('error', () => {});
    response.setHeader('onejob-version', version);
    const { method = '', url = '' } = request;
    const [path = '', query = ''] = url.split(/\?(.*)/s);
    try {
      if (closing) throw stopping();
      const route = findRoute(method === 'HEAD' ? 'GET' : method, path);
      if (route === null) {
        throw new OnejobError('E_API_ROUTE', `The daemon (${version}) does not support ${method} ${url}.`, {
          hint: 'Restart the daemon if onejob was updated after it started.',
        });
      }
      // A PUT brings a file of any size, which its route reads.
      const body = method === 'POST' ? await readBody(request) : undefined;
      const { params, handle } = route;
      const answer = await handle({ params, query: parse(query), body, signal: gone.signal, request, response });
      send(response, answer, (error) => refuse(error, request, response));
    } catch (error) {
      refuse(error, request, response);
    }
    // Reads and drops what the client still sends, so that it reads the answer.
    request.resume();
  };

  const server = createServer(patience, serve);
  const listen = (path: string) => once(server.listen({ path }), 'listening');
  const end = () => new Promise<void>((resolve) => void server.close(() => resolve()));
  const published = await publishSocket(options.socket, listen).catch(async (error) => {
    await end();
    throw error;
  });
  let closed: Promise<void> | null = null;
  const close = async () => {
    closing = true;
    published.unpublish();
    for (const each of open) each.abort();
    // Idle connections end at once; answers that are still being written get a moment.
    const hurry = setTimeout(() => server.closeAllConnections(), closePatience);
    await end();
    clearTimeout(hurry);
  };
  return {
    /** Takes no more requests, ends those that wait, removes the socket. Idempotent. */
    close(): Promise<void> {
      closed ??= close();
      return closed;
    },
  };
}

/** Errors of work whose client has gone. */
function isAbort({ name, code }: Error & { readonly code?: unknown }): boolean {
  return name === 'AbortError' || code === 'ABORT_ERR' || code === 'ERR_STREAM_PREMATURE_CLOSE' || code === 'ECONNRESET';
}

function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', { hint: 'Try again when it is back.', retry: true });
}
