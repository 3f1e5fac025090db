/**
 * The API: HTTP `/v1` over a unix socket, and over TCP if that is wanted (`web.ts`). Everyone who can open the socket may do
 * everything, and people of the host, each on a socket of his own, what `people` says; over TCP a login or a token decides.
 *
 * Every body is checked before a route gets it, and every error is sent as an `errorView`. Waiting requests (the end of a job, a
 * followed log, a held client) end with their client or with the server.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import { parse } from 'node:querystring';
import { finished, Readable } from 'node:stream';
import { z } from 'zod';
import { OnejobError } from '../base/errors.ts';
import type { PeopleTable, Person } from '../config/people.ts';
import type { Role } from '../contract/calls.ts';
import { statusOf, stopping, toErrorView } from '../contract/http-errors.ts';
import type { Clock } from '../core/clock.ts';
import { bytesOf } from '../http/exchange.ts';
import { afterInBackground, systemClock, turn } from '../system/system-clock.ts';
import type { CallerAdmission } from './access.ts';
import { type Caller, callerOf } from './caller.ts';
import { createDoctor, type Doctor } from './doctor.ts';
import { checkSocketHost, isBrowser } from './door.ts';
import { EventStreams } from './event-stream.ts';
import { checkConcern } from './own-things.ts';
import { clearPeople, PeopleSockets } from './people-sockets.ts';
import {
  type Answering,
  type ApiRequest,
  checkedRequest,
  createRouter,
  type Route,
  type Served,
  unreadableRequest,
} from './route.ts';
import { routes } from './routes.ts';
import { readPatience, Shares } from './shares.ts';
import { publishSocket, type SocketOptions } from './sockets.ts';
import { Upgrades } from './upgrades.ts';
import { checkRole, Web } from './web.ts';
import { createWebFiles, isWorkerScript, serveNoWorker, type WebFiles, webFolder } from './web-files.ts';
import type { WebOptions } from './web-port.ts';

export interface ApiOptions extends Served {
  readonly socket: SocketOptions;
  readonly version: string;
  readonly clock?: Clock;
  /** Called for each bug. */
  readonly onBug?: (error: Error, route: string) => void;
  /** Access over TCP; omitted: none. */
  readonly web?: WebOptions;
  /** Who else may do what; omitted: nobody. */
  readonly people?: PeopleTable | null;
  /** Called for each request over TCP, and of people, that may change something, such as `POST /v1/drain`. */
  readonly onCall?: (request: string, caller: Caller) => void;
  /** Called with each JSON answer before it is sent, for tests. */
  readonly onAnswer?: (route: Route, answer: unknown) => void;
}

/** ms for clients to read their last answers from a closing server. */
const closePatience = 1_000;

/** ms. A workspace may take longer than Node's five minutes for a request; the head of a request has a limit of its own. */
const patience = { requestTimeout: 0, headersTimeout: 60_000, keepAliveTimeout: 72_000 };

/**
 * Starts to serve. The caller holds the lock of the state directory.
 * @throws OnejobError E_SOCKET_PATH, E_SOCKET_TAKEN, E_SOCKET_DENIED.
 */
export async function startApi(options: ApiOptions): Promise<ApiServer> {
  const server = new ApiServer(options);
  await server.start();
  return server;
}

export class ApiServer {
  readonly #options: ApiOptions;
  readonly #clock: Clock;
  readonly #findRoute = createRouter(routes);
  readonly #shares: Shares;
  readonly #files: WebFiles;
  readonly #upgrades: Upgrades;
  readonly #doctor: Doctor;
  readonly #answering: Answering;
  readonly #server: Server;
  readonly #web: Web | null;
  readonly #people: PeopleTable | null;
  readonly #sockets: PeopleSockets | null;
  /** Of requests that are not answered yet. */
  readonly #open = new Map<AbortController, Person | null>();
  #unpublish = (): void => {};
  #unfollow = (): void => {};
  #closed: Promise<void> | null = null;
  #isClosing = false;
  #reloads = false;

  constructor(options: ApiOptions) {
    this.#options = options;
    const { version, clock = systemClock, onBug, manager, web, people = null } = options;
    this.#clock = clock;
    this.#shares = new Shares(clock);
    this.#files = createWebFiles(web?.files ?? webFolder);
    this.#upgrades = new Upgrades({
      findRoute: this.#findRoute,
      version,
      clock,
      onBug,
      answering: () => this.#answering,
    });
    this.#people = people;
    this.#server = this.#socketServer(null);
    const serve = (uid: number) => this.#socketServer(uid);
    const failed = (error: unknown) => onBug?.(error instanceof Error ? error : new Error(String(error)), 'sockets of people');
    this.#sockets = people === null ? null : new PeopleSockets({ socket: options.socket.path, people, serve, failed });
    const handle: RequestListener = (request, response) => void this.#serve(this.#web, request, response);
    this.#web = web === undefined ? null : new Web({ ...web, people, clock, patience, handle, isBuilt: this.#files.isBuilt });
    this.#doctor = createDoctor((signal) => manager.doctor(signal), clock);
    const streams = new EventStreams({ events: manager.changes, clock, failed: (error) => onBug?.(error, 'GET /v1/events') });
    this.#answering = { ...options, web: this.#web, streams, doctor: this.#doctor, reloads: () => this.#reloads };
  }

  /** @throws as `startApi` */
  async start(): Promise<void> {
    const listen = (path: string) => once(this.#server.listen({ path }), 'listening');
    const published = await publishSocket(this.#options.socket, listen).catch(async (error) => {
      await this.#end();
      throw error;
    });
    this.#unpublish = published.unpublish;
    if (this.#sockets === null && this.#options.socket.access === 'group') clearPeople(this.#options.socket.path);
    await this.#sockets?.start().catch(async (error) => {
      this.#unpublish();
      await this.#end();
      throw error;
    });
    this.#unfollow = this.#people?.onChange(() => this.#endChanged()) ?? (() => {});
    await this.#web?.at.start();
  }

  /** Why the configured address of TCP cannot be used; null if it can. */
  get problem(): string | null {
    return this.#web?.at.problem ?? null;
  }

  /** Where it listens over TCP; null if it does not. */
  get port(): number | null {
    return this.#web?.at.number || null;
  }

  /** Reads tokens and certificate for TCP again. @throws OnejobError E_API_LISTEN */
  refresh(): void {
    this.#web?.refresh();
  }

  /**
   * Takes no more requests, ends those that wait, removes the socket. Idempotent. `reloads`: the daemon reads a new config, and
   * will be back at once.
   */
  close(how: { readonly reloads: boolean } = { reloads: false }): Promise<void> {
    this.#reloads ||= how.reloads;
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.#isClosing = true;
    this.#unpublish();
    this.#unfollow();
    this.#sockets?.unpublish();
    for (const each of this.#open.keys()) each.abort();
    const shells = this.#upgrades.close(stopping());
    this.#doctor.close();
    // Idle connections end at once; answers that are still being written get a moment.
    const callOff = systemClock.after(closePatience, () => {
      this.#server.closeAllConnections();
      this.#sockets?.closeAll();
      this.#web?.at.connections.closeAll();
      this.#upgrades.destroy();
    });
    await Promise.all([this.#end(), this.#sockets?.end(), this.#web?.at.close(), shells]);
    callOff();
  }

  #end(): Promise<void> {
    return new Promise((resolve) => void this.#server.close(() => resolve()));
  }

  #closeIdle(): void {
    this.#server.closeIdleConnections();
    this.#sockets?.closeIdle();
    this.#web?.at.closeIdle();
  }

  /** `uid`: whose socket it is; null: the daemon's own. */
  #socketServer(uid: number | null): Server {
    const caller = (request: IncomingMessage): Caller => {
      if (this.#isClosing) throw stopping();
      return this.#onSocket(request, uid);
    };
    const shouldUpgradeCallback = (request: IncomingMessage) => this.#upgrades.isUpgrade(request);
    return createServer({ ...patience, shouldUpgradeCallback }, (request, response) => {
      void this.#serve(null, request, response, uid);
    }).on('upgrade', (request, connection, head) => this.#upgrades.serve(request, connection, head, () => caller(request)));
  }

  /** A browser gets here only by a socket that somebody forwards, where no page may ask for anything. */
  #onSocket({ headers }: IncomingMessage, uid: number | null): Caller {
    checkSocketHost(headers);
    if (isBrowser(headers))
      throw new OnejobError('E_API_ORIGIN', 'Cannot answer a browser on the socket.', {
        hint: 'Type "onejob dashboard" for a link.',
      });
    if (uid === null) return { role: 'operator', user: null, until: null, person: null };
    const person = this.#people?.of(uid) ?? null;
    if (person !== null) return callerOf(person);
    throw new OnejobError('E_API_ROLE', `Cannot answer user ${uid}, who is in no group that may use this daemon.`, {
      hint: 'Ask an operator of this host; "people" in the config names the groups.',
    });
  }

  /** What people have begun ends with the rights that they had. */
  #endChanged(): void {
    for (const [gone, person] of this.#open)
      if (person !== null && this.#people?.of(person.uid)?.group !== person.group) gone.abort(rightsEnded(person));
    this.#upgrades.endWhere((person) => this.#people?.of(person.uid)?.group !== person.group, rightsEnded);
  }

  /** `from`: null for a socket, that of `uid` or the daemon's own. */
  async #serve(from: Web | null, request: IncomingMessage, response: ServerResponse, uid: number | null = null): Promise<void> {
    const gone = new AbortController();
    this.#open.set(gone, null);
    response.once('close', () => {
      this.#open.delete(gone);
      gone.abort();
      // Otherwise a connection that becomes idle now keeps the server open.
      if (this.#isClosing) void turn().then(() => this.#closeIdle());
    });
    // Errors of the client lead to 'close'.
    response.on('error', () => {});
    if (from === null) response.setHeader('onejob-version', this.#options.version);
    else for (const [name, value] of webHeaders) response.setHeader(name, value);
    const exchange: Exchange = { from, uid, request, response, gone, expired: false };
    try {
      if (this.#isClosing) throw stopping();
      from?.checkHost(request);
      from?.prove(request, response);
      if (from !== null && isWorkerScript(request)) return serveNoWorker(response);
      await this.#answer(exchange);
    } catch (error) {
      this.#refuse(exchange.expired ? loginEnded() : error, exchange);
    }
    // Reads and drops what the client still sends, so that it reads the answer.
    if (from === null) request.resume();
    else drop(request);
  }

  /** @throws what is to be answered instead */
  async #answer(exchange: Exchange): Promise<void> {
    const { from, uid, request, response, gone } = exchange;
    const { method = '', url = '' } = request;
    const [path = '', query = ''] = url.split(/\?(.*)/s);
    const isGet = method === 'GET' || method === 'HEAD';
    const found = this.#findRoute(isGet ? 'GET' : method, path);
    if (found === null && from !== null && isGet && path.startsWith('/') && !path.startsWith('/v1/')) {
      const moved = from.elsewhere(request);
      if (moved !== null) return void response.writeHead(308, { location: moved }).end();
      return this.#files.serve(response, path, from.isLink(path));
    }
    if (found === null) {
      from?.admit(request, 'read');
      throw new OnejobError('E_API_ROUTE', `The daemon (${this.#options.version}) does not support ${method} ${url}.`, {
        hint: 'GET /v1/openapi.json lists what it supports. Restart the daemon if onejob was updated after it started.',
      });
    }
    const { route, params } = found;
    const admitted =
      from === null ? this.#onOwnSocket(request, uid, route.onSocket ?? route.role) : from.admit(request, route.role);
    const caller = from === null && admitted === null ? this.#onSocket(request, null) : (admitted?.caller ?? null);
    this.#open.set(gone, caller?.person ?? null);
    this.#endWithLogin(exchange, caller);
    if (admitted !== null) {
      from?.known(request, response, admitted);
      response.setHeader('onejob-version', this.#options.version);
      if (!isGet) this.#options.onCall?.(`${method} ${path}`, admitted.caller);
    }
    if (method === 'POST' && admitted !== null && admitted.caller.role !== 'operator')
      this.#shares.takeBytes(Math.min(Number(request.headers['content-length'] ?? bodyLimit), bodyLimit), admitted.id, response);
    // A PUT brings a file of any size, which its route reads.
    const body = method === 'POST' ? await readBody(request, caller, admitted?.body ?? null) : undefined;
    const kind: ApiRequest['kind'] = from === null && caller?.role === 'operator' ? 'socket' : (caller?.role ?? 'anyone');
    const given = { params, query: parse(query), body, signal: gone.signal, caller, kind, request, response };
    const asked = checkedRequest(route, given);
    if (caller !== null) checkConcern(caller, route, asked, this.#answering.manager);
    if (admitted !== null) await this.#shares.turn(admitted);
    // Nobody would read it.
    if (response.destroyed) return;
    if (this.#isClosing) throw stopping();
    gone.signal.throwIfAborted();
    this.#shares.takeAnswer(route, mostAtOnce(route, asked), kind, admitted?.id ?? kind, response);
    const answer = await route.handle(asked, this.#answering);
    if (route.answer instanceof z.ZodType) this.#options.onAnswer?.(route, answer);
    if (answer instanceof Readable) breakOff(answer, gone.signal);
    const taken = (length: number) => admitted !== null && this.#shares.takeBytes(length, admitted.id, response);
    send(response, route, answer, { taken, failed: (error) => this.#refuse(error, exchange) });
    if (from !== null && answer instanceof Readable) cutOff(response, this.#clock);
  }

  /** A person on the socket of that user; null on the daemon's own. @throws OnejobError E_API_ORIGIN, E_API_ROLE */
  #onOwnSocket(request: IncomingMessage, uid: number | null, role: Role): CallerAdmission | null {
    if (uid === null) return null;
    const caller = this.#onSocket(request, uid);
    checkRole(caller, role);
    return { caller, id: `person ${uid}`, body: null };
  }

  /** What waits ends with the login that asked for it. */
  #endWithLogin(exchange: Exchange, caller: Caller | null): void {
    const { response, gone } = exchange;
    if (caller === null || caller.until === null || response.destroyed) return;
    const end = (): void => {
      exchange.expired = true;
      gone.abort();
    };
    response.once('close', this.#clock.after(caller.until - this.#clock.wall(), end));
  }

  #refuse(error: unknown, { from, request, response }: Exchange): void {
    // Work that is aborted because the server closes may fail with any error.
    const known = this.#isClosing && !(error instanceof OnejobError) ? stopping() : error;
    const view = toErrorView(known);
    if (view.code === 'E_BUG' && error instanceof Error && !(response.destroyed && isAbort(error)))
      this.#options.onBug?.(error, `${request.method} ${request.url}`);
    // A client recognises half an answer by its broken end.
    if (response.headersSent) return void response.destroy();
    response.statusCode = known instanceof OnejobError ? statusOf(known.code) : 500;
    if (response.statusCode === 401) response.setHeader('www-authenticate', 'Bearer');
    if (from !== null && noAccess.has(response.statusCode)) response.setHeader('connection', 'close');
    sendJson(response, view);
  }
}

/** A request and its answer. */
interface Exchange {
  /** null for the socket. */
  readonly from: Web | null;
  /** Whose socket it is; null: no person's. */
  readonly uid: number | null;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Aborts when the client has gone or the server closes. */
  readonly gone: AbortController;
  /** Whether the login has ended meanwhile. */
  expired: boolean;
}

/** Errors of work whose client has gone. */
function isAbort({ name, code }: Error & { readonly code?: unknown }): boolean {
  return name === 'AbortError' || code === 'ABORT_ERR' || code === 'ERR_STREAM_PREMATURE_CLOSE' || code === 'ECONNRESET';
}

function loginEnded(): OnejobError {
  return new OnejobError('E_API_LOGIN', 'The login has ended.', { hint: 'Type "onejob dashboard" on the host for a link.' });
}

/** Of every answer over TCP. */
const webHeaders = Object.entries({
  'cache-control': 'no-store',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
});

/** Files that are on their way end with the rights of the person who asked for it. */
function breakOff(answer: Readable, signal: AbortSignal): void {
  signal.addEventListener('abort', () => {
    if (signal.reason instanceof OnejobError) answer.destroy(signal.reason);
  });
}

function rightsEnded({ name }: Person): OnejobError {
  return new OnejobError('E_API_ROLE', `What ${name} may do here has changed meanwhile.`, { hint: 'Try again.', retry: true });
}

/** Statuses of callers without access. */
const noAccess: ReadonlySet<number> = new Set([401, 403, 421]);

/** Bytes of a body that nobody wants, and ms for it. */
const [dropLimit, dropPatience] = [1 << 20, 10_000];

/** Reads and drops the rest of a request, and ends the connection if that is too much. */
function drop(request: IncomingMessage): void {
  let left = dropLimit;
  request.on('data', (bytes: Buffer) => {
    left -= bytes.length;
    if (left < 0) request.socket.destroy();
  });
  if (request.complete) return;
  request.once(
    'close',
    afterInBackground(dropPatience, () => request.socket.destroy()),
  );
}

const otherBody = 'the body is not the one that was signed';

/** Bytes; less, and ms, for bodies of those who have not logged in. */
const bodyLimit = 8 << 20;
const [strangerLimit, strangerPatience] = [4_096, 10_000];

/** @throws OnejobError E_API_REQUEST if it is too large or not JSON; the connection stays open for the answer. */
async function readBody(request: IncomingMessage, caller: Caller | null, signed: string | null): Promise<unknown> {
  const type = request.headers['content-type']?.split(';')[0]?.trim().toLowerCase();
  const stream = request.iterator({ destroyOnReturn: false });
  const callOff = caller !== null ? null : systemClock.after(strangerPatience, () => request.destroy());
  const limit = caller === null ? strangerLimit : bodyLimit;
  const bytes = await bytesOf(stream, limit, () => unreadableRequest('Request body is too large')).finally(() => callOff?.());
  if (signed !== null && createHash('sha256').update(bytes).digest('base64url') !== signed) throw unreadableRequest(otherBody);
  if (type === undefined && bytes.length === 0) return undefined;
  if (type !== 'application/json') throw unreadableRequest('Unsupported Media Type');
  if (bytes.length === 0) throw unreadableRequest("Body cannot be empty when content-type is set to 'application/json'");
  try {
    return JSON.parse(bytes.toString(), refusePrototype);
  } catch {
    throw unreadableRequest("Body is not valid JSON but content-type is set to 'application/json'");
  }
}

/** An assignment of this key would set a prototype. */
function refusePrototype(key: string, value: unknown): unknown {
  if (key === '__proto__') throw new SyntaxError('Object contains forbidden prototype property');
  return value;
}

/** Cuts off a client that has not taken what is written for it for so long, so that it keeps neither memory nor files open. */
function cutOff(response: ServerResponse, clock: Clock): void {
  let isStuck = false;
  let callOff = (): void => {};
  const look = (): void => {
    if (isStuck) return void response.destroy();
    isStuck = response.writableNeedDrain;
    callOff = clock.after(readPatience / 2, look);
  };
  if (response.closed) return;
  look();
  response.on('drain', () => {
    isStuck = false;
  });
  response.once('close', () => callOff());
}

function mostAtOnce({ atOnce }: Route, asked: ApiRequest): number | undefined {
  return typeof atOnce === 'function' ? atOnce(asked) : atOnce;
}

interface Sending {
  /** Called before so many bytes are written at once. */
  readonly taken: (length: number) => void;
  /** Called when a stream breaks. */
  readonly failed: (error: unknown) => void;
}

function send(
  response: ServerResponse,
  { status = 200, answer: declared }: Route,
  answer: unknown,
  { taken, failed }: Sending,
): void {
  // A stream of events has begun.
  if (response.headersSent) return;
  response.statusCode = status;
  if (declared !== undefined && 'media' in declared) response.setHeader('content-type', declared.media);
  if (answer instanceof Readable) {
    response.once('close', () => answer.destroy());
    finished(answer, (error) => {
      if (error) failed(error);
    });
    answer.pipe(response);
  } else if (answer === undefined || declared === undefined) {
    response.removeHeader('content-type');
    if (status === 200) response.statusCode = 204;
    response.end();
  } else if (declared instanceof z.ZodType) sendJson(response, answer, taken);
  else response.end(answer);
}

function sendJson(response: ServerResponse, value: unknown, taken: Sending['taken'] = () => {}): void {
  const text = Buffer.from(JSON.stringify(value));
  taken(text.length);
  response.setHeader('content-type', 'application/json; charset=utf-8');
  response.end(text);
}
