/** What Buildkite makes of a request: whose token it has, what that may, and how the service words what it says. */
import { gunzipSync } from 'node:zlib';
import type { Answered, Incoming, Service } from '../kit/door.ts';
import { createRouter } from '../kit/routing.ts';
import { agentRoutes } from './agents.ts';
import { artifactRoutes } from './artifacts.ts';
import { sweep } from './dispatch.ts';
import type { Fault } from './faults.ts';
import { type Caller, type Exchange, type Reply, type Route, ServiceFailure } from './http.ts';
import { jobDataRoutes } from './job-data.ts';
import { jobRoutes } from './jobs.ts';
import { metricsRoutes } from './metrics.ts';
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

/** A line of the log, while it is written. */
type Entry = { -readonly [Key in keyof LoggedRequest]: LoggedRequest[Key] };

/** A request comes in here. */
export type Door = Service<Route, Caller, Entry, Fault> & { readonly world: World };

export function createDoor(world: World, log: LoggedRequest[], pick: (entry: LoggedRequest) => Fault | null): Door {
  return {
    world,
    log,
    sweep: () => sweep(world),
    find: createRouter(ROUTES, { base: 'v3', isCaseSensitive: true }),
    callerOf: ({ headers }) => callerOf(world, headers.authorization),
    entryOf: ({ request, url, found, caller }) =>
      entryOf(world, request, caller, {
        route: found?.route.path ?? '?',
        params: found?.params ?? {},
        query: url.search.slice(1),
      }),
    bodyCame(entry, { request }, body) {
      entry.bytes = body.length;
      entry.leaked = leaks(world, request, body);
    },
    pick,
    instead,
    notFound: { status: 404, json: { message: 'Not found' } },
    refusal: ({ route, params }, { caller }) => refusal(world, route, params, caller),
    async answer({ route, params }, { request: { headers, from }, url, caller }, body, fault) {
      const exchange = { world, params, query: url.searchParams, headers, body, caller, from: plain(from) };
      if (fault?.kind === 'doubled') await attempt(route, exchange);
      return attempt(route, exchange);
    },
    written: (reply, fault) => written(world, reply, fault),
  };
}

/** An IPv4 address as such, although it came to a port of both kinds. */
const plain = (from: string): string => from.replace(/^::ffff:/, '');

/** What the log says of a request; status and size follow. */
export function entryOf(
  world: World,
  { method, headers, from }: Pick<Incoming, 'method' | 'headers' | 'from'>,
  caller: Caller,
  { route, params, query }: Pick<LoggedRequest, 'route' | 'params' | 'query'>,
): Entry {
  return {
    method,
    route,
    params,
    query,
    token: caller.kind,
    valid: caller.valid,
    agent: caller.agent?.name ?? null,
    from: plain(from),
    userAgent: headers['user-agent'] ?? '',
    leaked: false,
    bytes: 0,
    status: 0,
    at: world.now(),
  };
}

/** Answers that come in place of the route's. */
function instead(fault: Fault): Reply | null {
  switch (fault.kind) {
    case 'dropped':
      return { status: 200, json: {} };
    case 'garbage':
      return { status: 200 };
    case 'error': {
      const headers = fault.retryAfter === undefined ? {} : { 'retry-after': String(fault.retryAfter) };
      return { status: fault.status, json: { message: fault.message ?? `The stand-in says ${fault.status}` }, headers };
    }
    default:
      return null;
  }
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
    return { status, headers: { ...headers, 'content-type': 'text/html' }, text: page, file: null, isHalf: false };
  }
  if (status === 204) return { status, headers, text: '', file: null, isHalf: false };
  const text = JSON.stringify(reply.json ?? {});
  const type = { 'content-type': 'application/json; charset=utf-8', 'content-length': String(Buffer.byteLength(text)) };
  return { status, headers: { ...headers, ...type }, text, file: null, isHalf: fault?.kind === 'half' };
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
