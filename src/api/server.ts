/**
 * The API: HTTP `/v1` over a unix socket. Who may open the socket may do everything, so there is no further login.
 *
 * Every body is checked before a route sees it; every error leaves as an `errorView`. Requests that wait (a job's end, a
 * followed log, a held-open client) end when their client goes away, and when the server closes.
 */
import fastify, { type FastifyBaseLogger, type FastifyInstance } from 'fastify';
import { OnejobError } from '../errors.ts';
import { statusOf, toErrorView } from './http-errors.ts';
import type { ImageDesk } from './image-desk.ts';
import type { Manager } from './manager.ts';
import { type RouteContext, stopping } from './requests.ts';
import { controlRoutes } from './routes/control.ts';
import { deviceRoutes } from './routes/devices.ts';
import { imageRoutes } from './routes/images.ts';
import { jobRoutes } from './routes/jobs.ts';
import { logRoutes } from './routes/logs.ts';
import { secretRoutes } from './routes/secrets.ts';
import { statusRoutes } from './routes/status.ts';
import { workspaceRoutes } from './routes/workspaces.ts';
import type { SecretDesk } from './secret-desk.ts';
import { publishSocket, type SocketOptions } from './sockets.ts';

export interface ApiOptions {
  readonly manager: Manager;
  /** Left out where none are built. */
  readonly images?: ImageDesk;
  /** Left out where no job has encrypted values. */
  readonly secrets?: SecretDesk;
  readonly socket: SocketOptions;
  readonly version: string;
  /** Told about each error that is ours. */
  readonly onBug?: (error: Error, route: string) => void;
}

export interface ApiServer {
  /** Takes no more requests, ends those that wait, removes the socket. Idempotent. */
  close(): Promise<void>;
}

/** ms a closing server gives clients to take the answers they still get. */
const lastWords = 1_000;

/**
 * Starts to serve. The caller holds the lock of the state directory.
 * @throws OnejobError E_SOCKET_PATH, E_SOCKET_TAKEN, E_SOCKET_DENIED.
 */
export async function startApi(options: ApiOptions): Promise<ApiServer> {
  const closing = new AbortController();
  const app = createApp(options, { manager: options.manager, closing: closing.signal });
  const published = await publishSocket(options.socket, (path) => app.listen({ path })).catch(async (error) => {
    await app.close();
    throw error;
  });
  let closed: Promise<void> | null = null;
  return {
    close() {
      closed ??= (async () => {
        published.unpublish();
        closing.abort();
        const hurry = setTimeout(() => app.server.closeAllConnections(), lastWords);
        await app.close();
        clearTimeout(hurry);
      })();
      return closed;
    },
  };
}

function createApp(options: ApiOptions, context: RouteContext): FastifyInstance {
  const app = fastify({
    // Answers that are still being written get a moment, see `close`; idle connections none.
    forceCloseConnections: 'idle',
    // Its own words while it closes are none that a client of ours understands.
    return503OnClosing: false,
    bodyLimit: 8 << 20,
    routerOptions: { maxParamLength: 512 },
    loggerInstance: silent,
  });
  app.addHook('onRequest', async (_request, reply) => {
    reply.header('onejob-version', options.version);
    if (context.closing.aborted) throw stopping();
  });
  app.addHook('onResponse', async () => {
    // A connection that became idle only after the closing began keeps the server open otherwise.
    if (context.closing.aborted) setImmediate(() => app.server.closeIdleConnections());
  });
  app.setNotFoundHandler((request) => {
    throw new OnejobError('E_API_ROUTE', `The daemon (${options.version}) knows no ${request.method} ${request.url}.`, {
      hint: 'Restart the daemon if onejob was updated since it started.',
    });
  });
  app.setErrorHandler((error: unknown, request, reply) => {
    // What was broken off because the server closes fails with whatever its part of onejob makes of an abort.
    const other = context.closing.aborted ? stopping() : (clientMistake(error) ?? error);
    const known = error instanceof OnejobError ? error : other;
    const view = toErrorView(known);
    if (view.code === 'E_BUG' && error instanceof Error && !(reply.raw.destroyed && isAbort(error)))
      options.onBug?.(error, `${request.method} ${request.url}`);
    return reply.status(known instanceof OnejobError ? statusOf(known.code) : 500).send(view);
  });
  statusRoutes(app, context);
  jobRoutes(app, context);
  workspaceRoutes(app, context);
  logRoutes(app, context);
  deviceRoutes(app, context);
  if (options.images !== undefined) imageRoutes(app, options.images, context.closing);
  if (options.secrets !== undefined) secretRoutes(app, options.secrets);
  controlRoutes(app, context);
  return app;
}

/** What work is broken off with whose client has gone. */
function isAbort({ name, code }: Error & { readonly code?: unknown }): boolean {
  return name === 'AbortError' || code === 'ABORT_ERR' || code === 'ERR_STREAM_PREMATURE_CLOSE';
}

/** What fastify itself refuses, such as a body that is not JSON. */
function clientMistake(error: unknown): OnejobError | null {
  if (!(error instanceof Error) || !('statusCode' in error)) return null;
  if (typeof error.statusCode !== 'number' || error.statusCode >= 500) return null;
  return new OnejobError('E_API_REQUEST', `Cannot read the request: ${error.message}`);
}

const nothing = () => {};
const silent: FastifyBaseLogger = {
  level: 'silent',
  fatal: nothing,
  error: nothing,
  warn: nothing,
  info: nothing,
  debug: nothing,
  trace: nothing,
  silent: nothing,
  child: () => silent,
};
