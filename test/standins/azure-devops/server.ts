/** The door: finds the route, logs who came, lets faults and the credential have their say, and answers. */
import { createReadStream } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
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
const BODY_LIMIT = 64 * 1024 * 1024;

export interface Door {
  readonly world: World;
  readonly log: LoggedRequest[];
  /** URL of the host to which a redirect leads. */
  readonly elsewhere: string;
  pick(request: { readonly method: string; readonly route: string; readonly identity: LoggedRequest['identity'] }): Fault | null;
}

export function createDoor(door: Door): Server {
  return createServer((message, response) => {
    // A fault of the stand-in itself must be seen as one, not as a service that is down.
    serve(door, message, response).catch((error: unknown) => {
      console.error('stand-in for Azure DevOps:', error);
      message.socket.destroy();
    });
  });
}

async function serve(door: Door, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const { world } = door;
  sweep(world);
  const { method = 'GET', headers } = message;
  const url = new URL(message.url ?? '/', world.origin);
  const found = findRoute(ROUTES, world.base, method, url.pathname);
  const who = signIn(world, headers, method);
  const { identity } = who.caller;
  const entry = {
    method,
    route: found?.route.name ?? '?',
    path: `${url.pathname}${url.search}`,
    identity,
    from: message.socket.remoteAddress ?? '',
    leaked: false,
    status: 0,
    at: world.now(),
  };
  door.log.push(entry);
  const gone = new AbortController();
  response.on('close', () => gone.abort());
  const body = await bodyOf(message);
  if (body === null) return;
  entry.leaked = leaks(world, entry, message, body);
  const fault = door.pick(entry);
  const done = (reply: Reply): void => {
    if (fault?.kind === 'lost') return void message.socket.destroy();
    entry.status = reply.status;
    send(world, response, reply, fault);
    world.emit({ kind: 'answered', request: entry });
  };
  if (fault?.kind === 'hang') return;
  if (fault?.kind === 'reset') return void message.socket.destroy();
  if (fault?.kind === 'delay' && !(await passed(fault.ms, gone.signal))) return;
  const instead = fault === null ? null : insteadOf(world, fault, door.elsewhere, url);
  if (instead !== null) return done(instead);
  if (found === null) return done(NO_SUCH_PAGE);
  const { route, params } = found;
  const no = refusal(world, route, who, headers);
  if (no !== null) return done(no);
  const wrongVersion = route.unversioned === true ? null : versionProblem(method, headers.accept ?? '', url);
  if (wrongVersion !== null) return done(wrongVersion);
  const query = new Map([...url.searchParams].map(([name, value]) => [name.toLowerCase(), value]));
  done(await answered(route, { world, method, params, query, headers, body, caller: who.caller, signal: gone.signal }));
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

function send(world: World, response: ServerResponse, reply: Reply, fault: Fault | null): void {
  const json = reply.json === undefined ? null : JSON.stringify(reply.json);
  const type = reply.type ?? (json === null ? null : 'application/json; charset=utf-8; api-version=7.1');
  if (type !== null) response.setHeader('content-type', type);
  const now = world.now() + world.faults.skew;
  response.setHeader('date', new Date(now).toUTCString());
  for (const [name, value] of Object.entries(reply.headers ?? {})) response.setHeader(name, value);
  if (fault?.kind === 'slowed') for (const [name, value] of Object.entries(slowed(fault, now))) response.setHeader(name, value);
  response.statusCode = reply.status;
  if (reply.file !== undefined) return void createReadStream(reply.file).pipe(response);
  const text = json ?? reply.text ?? '';
  if (fault?.kind !== 'half') return void response.end(text);
  response.setHeader('content-length', Buffer.byteLength(text) + 1);
  response.write(text.slice(0, Math.ceil(text.length / 2)));
}

function slowed(fault: Extract<Fault, { kind: 'slowed' }>, now: number): Record<string, string> {
  const headers: Record<string, string> = { 'x-ratelimit-resource': 'Concurrency', 'x-ratelimit-limit': '200' };
  if (fault.retryAfter !== undefined) headers['retry-after'] = String(fault.retryAfter);
  if (fault.remaining !== undefined) headers['x-ratelimit-remaining'] = String(fault.remaining);
  if (fault.delay !== undefined) headers['x-ratelimit-delay'] = String(fault.delay);
  if (fault.reset !== undefined) headers['x-ratelimit-reset'] = String(Math.round(now / 1000) + fault.reset);
  return headers;
}

/** Null when the other side hung up, or sends too much. */
async function bodyOf(message: IncomingMessage): Promise<Buffer | null> {
  const chunks: Buffer[] = [];
  let size = 0;
  try {
    for await (const chunk of message) {
      const bytes = Buffer.isBuffer(chunk) ? chunk : Buffer.from(String(chunk));
      size += bytes.length;
      if (size > BODY_LIMIT) return null;
      chunks.push(bytes);
    }
  } catch {
    return null;
  }
  return Buffer.concat(chunks);
}

/** Whether a secret of the manager stands where it does not belong. */
function leaks(
  world: World,
  entry: { readonly path: string; readonly route: string },
  message: IncomingMessage,
  body: Buffer,
): boolean {
  const { authorization: _, ...others } = message.headers;
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
async function passed(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(true), ms);
    const gone = (): void => {
      clearTimeout(timer);
      resolve(false);
    };
    signal.addEventListener('abort', gone, { once: true });
  });
}
