/**
 * Where agents in sandboxes call in. They and their jobs hold the broker's aliases only: what an alias may ask for follows from
 * the agent's record, and the service's own token takes its place on the way out. No token of the service is in any answer.
 *
 * It trusts nothing that comes in: the job has the alias too, and every address the agent can reach.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import type { Proxies } from '../../../config/proxies.ts';
import { OnejobError, toFailure } from '../../../errors.ts';
import type { Log } from '../../../log.ts';
import { createUploadAddresses } from './artifacts.ts';
import { bodyProblem } from './forward-headers.ts';
import { createUpstreams } from './forward-upstreams.ts';
import { take } from './gateway-accept.ts';
import { createConnections } from './gateway-connections.ts';
import { type Call, type Desk, isNews } from './gateway-desk.ts';
import { jobCall, sharedCall } from './gateway-job.ts';
import { type GatewayLimits, gatewayLimits } from './gateway-limits.ts';
import { type AgentMemory, createMemories, type Lane } from './gateway-memory.ts';
import { createReads } from './gateway-reads.ts';
import { type JobCall, type Route, routeOf } from './gateway-route.ts';
import { absent, connect, disconnect, heartbeat, ping, register, withhold } from './gateway-session.ts';
import { upload } from './gateway-upload.ts';
import { cut, refuse } from './local-answers.ts';
import type { ServiceDesired } from './protocol.ts';
import type { AgentBook, Aliases } from './record.ts';
import type { Sign } from './signs.ts';

export interface GatewayParts {
  readonly book: AgentBook;
  readonly aliases: Aliases;
  readonly log: Log;
  service(name: string): ServiceDesired | null;
  /** Of onejob. */
  readonly version: string;
  /** ms since the epoch. */
  wall(): number;
  /** The installation's; addresses of uploads are sealed with one made from it. */
  readonly key: Buffer;
  readonly proxies: Proxies;
  readonly limits?: Partial<GatewayLimits>;
  /** Told what a call says of its agent, by the broker's id of that. */
  heard?(id: string, sign: Sign): void;
}

export interface Gateway {
  /** Never throws. For a server made with `gatewayServerOptions`. */
  handle(request: IncomingMessage, response: ServerResponse): void;
  /** Bounds the connections of a server that hands its calls to `handle`; not said of one, they are not bounded. */
  watch(server: Server): void;
  /** Cuts every call, and resolves once the last has ended. */
  close(): Promise<void>;
}

/** What every agent's calls but uploads begin with, and all of it that is looked at: `Authorization: Token …`. */
const credential = /^Token ([\x21-\x7e]{1,1024})$/;

export function createGateway(parts: GatewayParts): Gateway {
  const limits = { ...gatewayLimits, ...parts.limits };
  const closing = new AbortController();
  // Kept shorter than most servers keep theirs, so that seldom a call is sent into a connection that is being closed.
  const keeping = { maxFreeSockets: 8, scheduling: 'lifo', timeout: limits.idleMs } as const;
  const desk: Desk = {
    book: parts.book,
    aliases: parts.aliases,
    log: parts.log,
    service: (name) => parts.service(name),
    version: parts.version,
    wall: () => parts.wall(),
    heard: (id, sign) => parts.heard?.(id, sign),
    limits,
    memories: createMemories(parts.book, limits, () => createUpstreams({ proxies: parts.proxies, keeping })),
    reads: createReads(limits),
    uploads: createUploadAddresses(parts.key),
    signal: closing.signal,
  };
  const connections = createConnections();
  const most: Readonly<Record<Lane, number>> = {
    agent: limits.words,
    job: limits.concurrent,
    upload: limits.uploads + limits.waiting,
  };
  const open = new Set<Promise<void>>();
  const under = new Set<AbortController>();
  const answering = new WeakSet<Socket>();

  /** Counts the call, and serves it at the agent's rate; answers it when there are too many already. */
  const within = async (
    { record, response, signal }: Pick<Call, 'record' | 'response' | 'signal'>,
    lane: Lane,
    serve: (memory: AgentMemory) => Promise<void>,
  ): Promise<void> => {
    const { id } = record.shown;
    const memory = desk.memories.enter(id, lane, most[lane]);
    // The agent drops a piece of its log for any 4xx (v3.137 `core/client.go`).
    if (memory === null) return refuseAndClose(response, lane === 'job' ? 429 : 503, 'Too many calls at a time.');
    try {
      const wait = memory.rates[lane].take(performance.now());
      if (wait > 0) await pause(wait, undefined, { signal }).catch(() => {});
      if (!signal.aborted) await serve(memory);
    } catch (error) {
      failed(desk, response, error, { record, memory });
    } finally {
      desk.memories.leave(memory, lane);
    }
  };

  const serve = async (request: IncomingMessage, response: ServerResponse, signal: AbortSignal): Promise<void> => {
    const route = routeOf(request.method ?? '', request.url ?? '', limits.url);
    const problem = route.kind === 'malformed' ? route.why : bodyProblem(request);
    if (route.kind === 'malformed' || problem !== null) return refuse(response, 400, `The call cannot be served: ${problem}.`);
    if (route.kind === 'absent') return absent({ response });
    if (route.kind === 'upload') {
      const to = request.method === 'PUT' || request.method === 'POST' ? desk.uploads.open(route.sealed) : null;
      const record = to === null ? null : desk.book.get(to.agent);
      if (to === null || record === null) return refuseAndClose(response, 404, 'There is nothing to upload to.');
      connections.known(request.socket, record.shown.id, response);
      return await within({ record, response, signal }, 'upload', (memory) =>
        upload(desk, { to, record, request, response, memory, signal }),
      );
    }
    const values = request.headersDistinct.authorization ?? [];
    const token = values.length === 1 ? credential.exec(values[0] ?? '')?.[1] : undefined;
    const found = token === undefined ? null : desk.aliases.find(token);
    if (found === null || found.record.shown.phase === 'gone')
      return refuseAndClose(response, 401, 'The token is not one, or no longer.');
    const { kind, record } = found;
    connections.known(request.socket, record.shown.id, response);
    const lane = laneOf(route);
    await within({ record, response, signal }, lane, (memory) =>
      serveRoute(desk, { request, response, kind, record, memory, lane, signal }, route),
    );
  };

  return {
    watch: (server) => connections.watch(server),
    handle(request, response) {
      const { socket } = request;
      // Node parses hundreds of pipelined calls ahead and keeps an answer for each, without back-pressure once the client has
      // closed: that exhausts the heap. The agent never pipelines (Go's net/http does not).
      if (closing.signal.aborted || answering.has(socket)) {
        socket.destroy();
        return;
      }
      answering.add(socket);
      response.once('close', () => answering.delete(socket));
      const gone = new AbortController();
      under.add(gone);
      request.on('error', () => {});
      response.on('error', () => {});
      response.once('close', () => gone.abort()).once('finish', () => bound(request, limits.lateMs));
      const served = serve(request, response, gone.signal).catch((error) => failed(desk, response, error, null));
      open.add(served);
      served.finally(() => {
        open.delete(served);
        under.delete(gone);
      });
    },
    async close() {
      closing.abort();
      for (const call of under) call.abort();
      desk.memories.close();
      await Promise.all(open);
    },
  };
}

/** What an agent says by itself waits behind nothing that its job asks for. */
function laneOf(route: Route): Lane {
  if (route.kind === 'job') return ownWords.has(route.call) ? 'agent' : 'job';
  return route.kind === 'shared' || route.kind === 'withheld' ? 'job' : 'agent';
}

const ownWords: ReadonlySet<JobCall> = new Set(['accept', 'acquire', 'start', 'state', 'chunks', 'finish']);

async function serveRoute(desk: Desk, call: Call, route: Route): Promise<void> {
  if (route.kind === 'register') return await register(desk, call);
  // A one-time token stands for nothing else.
  if (call.kind === 'once') return refuse(call.response, 401, 'This token only registers an agent.');
  if (route.kind === 'withheld') return withhold(desk, call);
  if (route.kind === 'shared') return await sharedCall(desk, call, route);
  if (route.kind === 'job') {
    if (route.call === 'accept' || route.call === 'acquire') return await take(desk, call, route.call, route.job);
    return await jobCall(desk, call, route);
  }
  if (call.kind !== 'session') return refuse(call.response, 403, 'This token stands for a job, not for its agent.');
  switch (route.kind) {
    case 'connect':
      return await connect(desk, call);
    case 'ping':
      return await ping(desk, call);
    case 'heartbeat':
      return await heartbeat(desk, call);
    case 'disconnect':
      return await disconnect(desk, call);
    default:
      return absent(call);
  }
}

/**
 * Of a connection that nothing is known of, or that asks too much: each of its calls costs it a new one. Not where a body is
 * coming: closed before that was read, the caller would lose the answer.
 */
function refuseAndClose(response: ServerResponse, status: number, message: string): void {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = response.req.headers;
  if (length === '0' && coding === undefined) response.shouldKeepAlive = false;
  refuse(response, status, message);
}

/** What still comes of an answered call is read, so that its answer is too; but not for ever. */
function bound(request: IncomingMessage, lateMs: number): void {
  if (request.complete) return;
  const timer = setTimeout(() => request.socket.destroy(), lateMs);
  request.once('end', () => clearTimeout(timer)).once('close', () => clearTimeout(timer));
}

/** Says what can be said to an agent: nothing of how the broker is made, and no address but the service's. */
function failed(desk: Desk, response: ServerResponse, error: unknown, of: Pick<Call, 'record' | 'memory'> | null): void {
  const log = (): void => {
    const isNew = of === null || isNews(of.memory, `failed: ${toFailure(error).message}`);
    if (isNew) desk.log.error('call of an agent failed', { agent: of?.record.shown.agent ?? of?.record.shown.id ?? null, error });
  };
  if (response.destroyed || response.headersSent) cut(response);
  else if (!(error instanceof OnejobError)) {
    log();
    refuse(response, 500, 'onejob has failed to serve this call.');
  } else if (error.code === 'E_API_REQUEST') refuse(response, error.retry ? 429 : 413, error.message);
  else if (error.code.startsWith('E_CI_')) refuse(response, 502, error.message);
  else {
    log();
    refuse(response, 503, 'onejob cannot serve this call right now.');
  }
}
