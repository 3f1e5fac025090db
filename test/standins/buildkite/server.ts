/** The door: finds the route, logs who came, lets faults and the token have their say, and answers. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { gunzipSync } from 'node:zlib';
import { agentRoutes } from './agents.ts';
import { artifactRoutes } from './artifacts.ts';
import { sweep } from './dispatch.ts';
import type { Asked, Fault } from './faults.ts';
import { type Caller, type Exchange, type Reply, type Route, ServiceFailure } from './http.ts';
import { jobDataRoutes } from './job-data.ts';
import { jobRoutes } from './jobs.ts';
import { metricsRoutes } from './metrics.ts';
import { findRoute } from './routing.ts';
import { stackRoutes } from './stacks.ts';
import type { World } from './state.ts';
import { callerOf, holdsToken } from './tokens.ts';
import type { LoggedRequest } from './types.ts';

const ROUTES: readonly Route[] = [
  ...agentRoutes,
  ...jobRoutes,
  ...jobDataRoutes,
  ...artifactRoutes,
  ...metricsRoutes,
  ...stackRoutes,
];
const BODY_LIMIT = 64 * 1024 * 1024;
/** Bodies up to this size are searched for tokens, bytes. */
const SEARCHED = 4 * 1024 * 1024;

export interface Door {
  readonly log: LoggedRequest[];
  readonly pick: (asked: Asked) => Fault | null;
  world: World;
}

export function createDoor(door: Door): Server {
  return createServer((message, response) => {
    // A fault of the stand-in itself must be seen as one, not as a service that is down.
    serve(door, message, response).catch((error: unknown) => {
      console.error('stand-in for Buildkite:', error);
      message.socket.destroy();
    });
  });
}

async function serve(door: Door, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const { world } = door;
  sweep(world);
  const url = new URL(message.url ?? '/', world.origin);
  const found = findRoute(ROUTES, message.method ?? 'GET', url.pathname);
  const caller = callerOf(world, message.headers.authorization);
  const entry = enter(door, message, caller, found?.route.path ?? '?', found?.params ?? {}, url.search.slice(1));
  const gone = new AbortController();
  response.on('close', () => gone.abort());
  const body = await bodyOf(message);
  if (body === null) return;
  entry.bytes = body.length;
  entry.leaked = leaks(world, message, body);
  const fault = door.pick(entry);
  const done = (reply: Reply): void => answered(world, entry, message, response, fault, reply);
  if (fault?.kind === 'hang') return;
  if (fault?.kind === 'reset') return void message.socket.destroy();
  if (fault?.kind === 'delay' && !(await passed(fault.ms, gone.signal))) return;
  if (fault?.kind === 'dropped') return done({ status: 200, json: {} });
  if (fault?.kind === 'garbage') return done({ status: 200 });
  if (fault?.kind === 'error') {
    const headers = fault.retryAfter === undefined ? {} : { 'retry-after': String(fault.retryAfter) };
    return done({ status: fault.status, json: { message: fault.message ?? `The stand-in says ${fault.status}` }, headers });
  }
  if (found === null) return done({ status: 404, json: { message: 'Not found' } });
  const no = refusal(world, found.route, found.params, caller);
  if (no !== null) return done(no);
  const { params } = found;
  const exchange: Exchange = { world, params, query: url.searchParams, headers: message.headers, body, caller, from: entry.from };
  if (fault?.kind === 'doubled') await attempt(found.route, exchange);
  done(await attempt(found.route, exchange));
}

/** Writes down that somebody came; status and size follow. */
export function enter(
  door: Door,
  message: IncomingMessage,
  caller: Caller,
  route: string,
  params: Readonly<Record<string, string>>,
  query: string,
): LoggedRequest {
  const entry: LoggedRequest = {
    method: message.method ?? 'GET',
    route,
    params,
    query,
    token: caller.kind,
    valid: caller.valid,
    agent: caller.agent?.name ?? null,
    from: (message.socket.remoteAddress ?? '').replace(/^::ffff:/, ''),
    userAgent: message.headers['user-agent'] ?? '',
    leaked: false,
    bytes: 0,
    status: 0,
    at: door.world.now(),
  };
  door.log.push(entry);
  return entry;
}

async function attempt(route: Route, exchange: Exchange): Promise<Reply> {
  try {
    return await route.answer(exchange);
  } catch (error) {
    if (error instanceof ServiceFailure) return { status: error.status, json: { message: error.message }, headers: error.headers };
    throw error;
  }
}

/** A token that is not good is a 401 whatever is asked; a good one of the wrong kind is a 401 too, or a 403 where it names a right. */
function refusal(world: World, route: Route, params: Readonly<Record<string, string>>, caller: Caller): Reply | null {
  const { kind } = caller;
  const standsIn = kind === 'session' && world.options.jobTokens === false && route.allow.includes('job');
  const fits = route.allow.includes(kind) || standsIn;
  // A finish whose answer was lost is repeated with the token that died of it.
  const late = route.path === 'jobs/:id/finish' && caller.job?.id === params.id;
  if (fits && (caller.valid || late)) return null;
  if (kind === 'metrics' && caller.valid)
    return { status: 403, json: { message: 'This token lacks a permission: it may read metrics only' } };
  return { status: 401, json: { message: 'Invalid access token' } };
}

function answered(
  world: World,
  entry: LoggedRequest,
  message: IncomingMessage,
  response: ServerResponse,
  fault: Fault | null,
  reply: Reply,
): void {
  if (fault?.kind === 'lost') return void message.socket.destroy();
  entry.status = reply.status;
  response.statusCode = reply.status;
  response.setHeader('date', new Date(world.now() + world.faults.skew).toUTCString());
  for (const [name, value] of Object.entries(reply.headers ?? {})) response.setHeader(name, value);
  if (fault?.kind === 'garbage') {
    response.setHeader('content-type', 'text/html').end('<html><body>Just a moment</body></html>');
  } else if (reply.status === 204) {
    response.end();
  } else {
    const text = JSON.stringify(reply.json ?? {});
    response.setHeader('content-type', 'application/json; charset=utf-8');
    response.setHeader('content-length', Buffer.byteLength(text));
    if (fault?.kind === 'half') {
      response.write(text.slice(0, Math.ceil(text.length / 2)), () => message.socket.destroy());
      return;
    }
    response.end(text);
  }
  world.emit({ kind: 'answered', request: entry });
}

/** A token of the host's stands where it must not: in the address, another header or the body, also a compressed one. */
function leaks(world: World, message: IncomingMessage, body: Buffer): boolean {
  const { authorization: _, ...headers } = message.headers;
  if (holdsToken(world, `${message.url} ${JSON.stringify(headers)}`)) return true;
  if (body.length === 0 || body.length > SEARCHED) return false;
  try {
    const plain = message.headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body;
    return holdsToken(world, plain.toString('latin1'));
  } catch {
    return false;
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

/** Whether it passed, rather than the other side going away. */
export function passed(ms: number, gone: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(true), ms);
    gone.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve(false);
    });
  });
}
