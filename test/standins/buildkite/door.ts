/**
 * The door: finds the route, logs who came, lets faults and the token have their say, and answers. It knows no socket: a request
 * may as well come from the same process (`in-process.ts`).
 */
import type { IncomingHttpHeaders } from 'node:http';
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
/** Bodies up to this size are searched for tokens, bytes. */
const SEARCHED = 4 * 1024 * 1024;

export interface Door {
  readonly log: { push(entry: LoggedRequest): void };
  readonly pick: (asked: Asked) => Fault | null;
  world: World;
}

/** A request, whatever carried it. */
export interface Incoming {
  readonly method: string;
  /** Path and query. */
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  /** Read once; null when the other side hung up, or sends too much. */
  body(): Promise<Buffer | null>;
  /** Address of the other side. */
  readonly from: string;
  /** Ends when the other side hangs up. */
  readonly signal: AbortSignal;
}

export interface Answered {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly text: string;
  /** Only the first half of it comes, and then the connection is cut. */
  readonly isHalf: boolean;
}

/** `cut`: the connection ends without an answer; `silence`: nothing comes at all. */
export async function enter(door: Door, request: Incoming): Promise<Answered | 'cut' | 'silence'> {
  const { world } = door;
  sweep(world);
  const url = new URL(request.url, world.origin);
  const found = findRoute(ROUTES, request.method, url.pathname);
  const caller = callerOf(world, request.headers.authorization);
  const entry = write(door, request, caller, {
    route: found?.route.path ?? '?',
    params: found?.params ?? {},
    query: url.search.slice(1),
  });
  const body = await request.body();
  if (body === null) return 'silence';
  entry.bytes = body.length;
  entry.leaked = leaks(world, request, body);
  const fault = door.pick(entry);
  const done = (reply: Reply): Answered | 'cut' => {
    if (fault?.kind === 'lost') return 'cut';
    entry.status = reply.status;
    const answer = written(world, reply, fault);
    world.emit({ kind: 'answered', request: entry });
    return answer;
  };
  if (fault?.kind === 'hang') return 'silence';
  if (fault?.kind === 'reset') return 'cut';
  if (fault?.kind === 'delay' && !(await passed(world, fault.ms, request.signal))) return 'silence';
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
  const exchange: Exchange = { world, params, query: url.searchParams, headers: request.headers, body, caller, from: entry.from };
  if (fault?.kind === 'doubled') await attempt(found.route, exchange);
  return done(await attempt(found.route, exchange));
}

/** Writes down that somebody came; status and size follow. */
export function write(
  door: Door,
  { method, headers, from }: Pick<Incoming, 'method' | 'headers' | 'from'>,
  caller: Caller,
  { route, params, query }: Pick<LoggedRequest, 'route' | 'params' | 'query'>,
): LoggedRequest {
  const entry: LoggedRequest = {
    method,
    route,
    params,
    query,
    token: caller.kind,
    valid: caller.valid,
    agent: caller.agent?.name ?? null,
    from: from.replace(/^::ffff:/, ''),
    userAgent: headers['user-agent'] ?? '',
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

function written(world: World, reply: Reply, fault: Fault | null): Answered {
  const headers = { date: new Date(world.now() + world.faults.skew).toUTCString(), ...reply.headers };
  const { status } = reply;
  if (fault?.kind === 'garbage') {
    const page = '<html><body>Just a moment</body></html>';
    return { status, headers: { ...headers, 'content-type': 'text/html' }, text: page, isHalf: false };
  }
  if (status === 204) return { status, headers, text: '', isHalf: false };
  const text = JSON.stringify(reply.json ?? {});
  const type = { 'content-type': 'application/json; charset=utf-8', 'content-length': String(Buffer.byteLength(text)) };
  return { status, headers: { ...headers, ...type }, text, isHalf: fault?.kind === 'half' };
}

/** A token of the host's stands where it must not: in the address, another header or the body, also a compressed one. */
function leaks(world: World, { url, headers: { authorization: _, ...headers } }: Incoming, body: Buffer): boolean {
  if (holdsToken(world, `${url} ${JSON.stringify(headers)}`)) return true;
  if (body.length === 0 || body.length > SEARCHED) return false;
  try {
    const plain = headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body;
    return holdsToken(world, plain.toString('latin1'));
  } catch {
    return false;
  }
}

/** Whether it passed, rather than the other side going away. */
export function passed(world: Pick<World, 'after'>, ms: number, gone: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const callOff = world.after(ms, () => resolve(true));
    gone.addEventListener('abort', () => {
      callOff();
      resolve(false);
    });
  });
}
