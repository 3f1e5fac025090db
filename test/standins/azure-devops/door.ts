/** What Azure DevOps makes of a request: who it is from, what it may, and how the service words what it says. */
import type { IncomingHttpHeaders } from 'node:http';
import type { Answered, Service } from '../kit/door.ts';
import { createRouter, decoded } from '../kit/routing.ts';
import { agentRoutes } from './agents.ts';
import { refusal, rejection, signIn } from './auth.ts';
import type { Fault } from './faults.ts';
import { type Exchange, type Reply, type Route, ServiceFailure, wrapped } from './http.ts';
import { locationRoutes } from './location.ts';
import { planRoutes } from './plan.ts';
import { poolRoutes } from './pools.ts';
import { sweep } from './queue.ts';
import { requestRoutes } from './requests.ts';
import { restRoutes } from './rest.ts';
import { sessionRoutes } from './sessions.ts';
import type { World } from './state.ts';
import { tokenRoutes } from './token.ts';
import type { LoggedRequest } from './types.ts';

const ROUTES: readonly Route[] = [
  ...locationRoutes,
  ...poolRoutes,
  ...agentRoutes,
  ...tokenRoutes,
  ...sessionRoutes,
  ...requestRoutes,
  ...planRoutes,
  ...restRoutes,
];

/** A line of the log, while it is written. */
type Entry = { -readonly [Key in keyof LoggedRequest]: LoggedRequest[Key] };

/** A request comes in here. */
export type Door = Service<Route, ReturnType<typeof signIn>, Entry, Fault> & { readonly world: World };

/** `elsewhere`: URL of the host to which a redirect leads. */
export function createDoor(
  world: World,
  log: LoggedRequest[],
  elsewhere: string,
  pick: (entry: LoggedRequest) => Fault | null,
): Door {
  return {
    world,
    log,
    sweep: () => sweep(world),
    find: createRouter(ROUTES, { base: world.base, isCaseSensitive: false }),
    callerOf: ({ method, headers }) => signIn(world, headers, method),
    entryOf: ({ request, url, found, caller }) => ({
      method: request.method,
      route: found?.route.name ?? '?',
      path: `${url.pathname}${url.search}`,
      identity: caller.caller.identity,
      from: request.from,
      leaked: false,
      status: 0,
      at: world.now(),
    }),
    bodyCame(entry, { request }, body) {
      entry.leaked = leaks(world, entry, request.headers, body);
    },
    pick,
    instead: (fault, { url }) => insteadOf(world, fault, elsewhere, url),
    notFound: NO_SUCH_PAGE,
    refusal: ({ route }, { request: { method, headers }, url, caller }) =>
      refusal(world, route, caller, headers) ??
      (route.unversioned === true ? null : versionProblem(method, headers.accept ?? '', url)),
    answer({ route, params }, { request: { method, headers, signal }, url, caller: { caller } }, body) {
      const query = new Map([...url.searchParams].map(([name, value]) => [name.toLowerCase(), value]));
      return answered(route, { world, method, params, query, headers, body, caller, signal });
    },
    written: (reply, fault) => written(world, reply, fault),
  };
}

async function answered(route: Route, exchange: Exchange): Promise<Reply> {
  try {
    return await route.answer(exchange);
  } catch (error) {
    if (error instanceof ServiceFailure) return { status: error.status, json: wrapped(error.typeKey, error.message) };
    throw error;
  }
}

const NO_SUCH_PAGE: Reply = {
  status: 404,
  type: 'text/html; charset=utf-8',
  text: '<!DOCTYPE html>\n<html><head><title>404 - Page not found</title></head><body>The page that you are looking for cannot be found.</body></html>',
};

/** Answers that come in place of the route's. */
function insteadOf(world: World, fault: Fault, elsewhere: string, url: URL): Reply | null {
  switch (fault.kind) {
    case 'rejected':
      return rejection(world, fault.shape);
    case 'denied':
      return {
        status: 403,
        json: wrapped('AccessDeniedException', 'Access denied. The user needs Manage permissions for the pool.'),
      };
    case 'throttled': {
      const headers = fault.retryAfter === null ? {} : { 'retry-after': String(fault.retryAfter) };
      return {
        status: fault.status ?? 429,
        json: wrapped(
          'RequestBlockedException',
          'TF400733: The request has been canceled: Request was blocked due to exceeding usage of resource.',
        ),
        headers,
      };
    }
    case 'broken':
      return { status: 500, type: 'text/html; charset=utf-8', text: '<html><body><h1>Server Error</h1></body></html>' };
    case 'garbage':
      return { status: 200, json: { something: ['else'], value: 'not a list' } };
    case 'redirect':
      return { status: 302, text: '', type: 'text/html', headers: { location: `${elsewhere}${url.pathname}${url.search}` } };
    case 'error':
      return {
        status: fault.status,
        json: wrapped(fault.typeKey, fault.message ?? `The stand-in was asked to answer ${fault.typeKey}.`),
      };
    default:
      return null;
  }
}

/** Only GET may leave the version out; one newer than the released one must say that it is a preview. */
function versionProblem(method: string, accept: string, url: URL): Reply | null {
  const asked = /api-version=([^;,\s]+)/i.exec(accept)?.[1] ?? url.searchParams.get('api-version');
  const bad = (typeKey: string, words: string): Reply => ({ status: 400, json: wrapped(typeKey, words) });
  if (asked === null)
    return method === 'GET'
      ? null
      : bad('VssVersionNotSpecifiedException', `No api-version was supplied for the "${method}" request.`);
  const version = /^(\d+\.\d+)(-preview(?:\.\d+)?)?$/.exec(asked);
  if (version === null) return bad('VssVersionNotValidException', `The api-version "${asked}" is not valid.`);
  if (Number(version[1]) > 7.1 && version[2] === undefined)
    return bad(
      'VssInvalidPreviewVersionException',
      `The requested version "${asked}" is under preview. The -preview flag must be supplied.`,
    );
  return null;
}

function written(world: World, reply: Reply, fault: Fault | null): Answered {
  const json = reply.json === undefined ? null : JSON.stringify(reply.json);
  const type = reply.type ?? (json === null ? null : 'application/json; charset=utf-8; api-version=7.1');
  const now = world.now() + world.faults.skew;
  return {
    status: reply.status,
    headers: {
      ...(type !== null && { 'content-type': type }),
      date: new Date(now).toUTCString(),
      ...reply.headers,
      ...(fault?.kind === 'slowed' && { 'retry-after': String(fault.retryAfter) }),
    },
    text: json ?? reply.text ?? '',
    file: reply.file ?? null,
    isHalf: fault?.kind === 'half',
  };
}

/** Whether a secret of the manager stands where it does not belong. */
function leaks(
  world: World,
  entry: { readonly path: string; readonly route: string },
  headers: IncomingHttpHeaders,
  body: Buffer,
): boolean {
  const { authorization: _, ...others } = headers;
  const text = body.toString('latin1');
  const said = `${text}\n${decoded(text)}`;
  const places = `${decoded(entry.path)}\n${JSON.stringify(others)}\n${entry.route === 'entra/token' ? '' : said}`;
  const secrets = [...world.pats.keys(), world.principal.secret].flatMap((secret) => [
    secret,
    Buffer.from(`:${secret}`).toString('base64'),
    Buffer.from(secret).toString('base64'),
  ]);
  return secrets.some((secret) => places.includes(secret));
}
