/**
 * The door: finds the route, logs who came, lets faults and the credential have their say, and answers. It knows no socket: a
 * request may as well come from the same process (`in-process.ts`).
 */
import type { IncomingHttpHeaders } from 'node:http';
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
import { findRoute } from './routing.ts';
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

export interface Door {
  readonly world: World;
  readonly log: { push(entry: LoggedRequest): void };
  /** URL of the host to which a redirect leads. */
  readonly elsewhere: string;
  pick(request: LoggedRequest): Fault | null;
}

/** A request, whatever carried it. */
export interface Incoming {
  readonly method: string;
  /** Path and query, or a whole URL. */
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
  /** A file's path, whose bytes come instead of the text. */
  readonly file: string | null;
  /** Only the first half of it comes, and then nothing more. */
  readonly isHalf: boolean;
}

/** `cut`: the connection ends without an answer; `silence`: nothing comes at all. */
export async function enter(door: Door, request: Incoming): Promise<Answered | 'cut' | 'silence'> {
  const { world } = door;
  const { method, headers } = request;
  sweep(world);
  const url = new URL(request.url, world.origin);
  const found = findRoute(ROUTES, world.base, method, url.pathname);
  const who = signIn(world, headers, method);
  const { identity } = who.caller;
  const entry = {
    method,
    route: found?.route.name ?? '?',
    path: `${url.pathname}${url.search}`,
    identity,
    from: request.from,
    leaked: false,
    status: 0,
    at: world.now(),
  };
  door.log.push(entry);
  const body = await request.body();
  if (body === null) return 'silence';
  entry.leaked = leaks(world, entry, headers, body);
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
  const instead = fault === null ? null : insteadOf(world, fault, door.elsewhere, url);
  if (instead !== null) return done(instead);
  if (found === null) return done(NO_SUCH_PAGE);
  const { route, params } = found;
  const no = refusal(world, route, who, headers);
  if (no !== null) return done(no);
  const wrongVersion = route.unversioned === true ? null : versionProblem(method, headers.accept ?? '', url);
  if (wrongVersion !== null) return done(wrongVersion);
  const query = new Map([...url.searchParams].map(([name, value]) => [name.toLowerCase(), value]));
  const { caller } = who;
  return done(await answered(route, { world, method, params, query, headers, body, caller, signal: request.signal }));
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
        status: world.codes.denied,
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
      ...(fault?.kind === 'slowed' && slowed(fault, now)),
    },
    text: json ?? reply.text ?? '',
    file: reply.file ?? null,
    isHalf: fault?.kind === 'half',
  };
}

function slowed(fault: Extract<Fault, { kind: 'slowed' }>, now: number): Record<string, string> {
  const headers: Record<string, string> = { 'x-ratelimit-resource': 'Concurrency', 'x-ratelimit-limit': '200' };
  if (fault.retryAfter !== undefined) headers['retry-after'] = String(fault.retryAfter);
  if (fault.remaining !== undefined) headers['x-ratelimit-remaining'] = String(fault.remaining);
  if (fault.delay !== undefined) headers['x-ratelimit-delay'] = String(fault.delay);
  if (fault.reset !== undefined) headers['x-ratelimit-reset'] = String(Math.round(now / 1000) + fault.reset);
  return headers;
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

function decoded(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}

/** False when the other side hung up before. */
async function passed(world: World, ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const cancel = world.after(ms, () => resolve(true));
    const gone = (): void => {
      cancel();
      resolve(false);
    };
    signal.addEventListener('abort', gone, { once: true });
  });
}
