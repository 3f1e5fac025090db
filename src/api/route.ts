/** What answers a call of the API. The contract (`contract/calls.ts`) says what comes in, which is checked here. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { z } from 'zod';
import { attempt, OnejobError } from '../base/errors.ts';
import type { Answer, Call, CallName, Checked, MediaCall, Role } from '../contract/calls.ts';
import type { ConfigService, ImageService, MachineService, Manager, MetricsService, SecretPins } from '../contract/manager.ts';
import type { ShellStart } from '../contract/shell-frames.ts';
import type { RunningShell } from '../ports/runtime.ts';
import type { Caller } from './caller.ts';
import type { Doctor } from './doctor.ts';
import type { EventStreams } from './event-stream.ts';
import type { Web } from './web.ts';

export interface Served {
  readonly manager: Manager;
  /** Omitted if no images are built. */
  readonly images?: ImageService;
  /** Omitted if no job has encrypted values. */
  readonly secrets?: SecretPins;
  /** Omitted if nothing is measured. */
  readonly metrics?: MetricsService;
  /** Omitted if the config has no machines in clouds. */
  readonly machines?: MachineService;
  /** Omitted if there is no config to apply. */
  readonly config?: ConfigService;
}

/** What routes answer with. */
export interface Answering extends Served {
  readonly streams: EventStreams;
  readonly doctor: Doctor;
  /** null where the API is on its socket only. */
  readonly web: Web | null;
  /** Whether the API closes because the daemon reads a new config, and will be back at once. */
  readonly reloads: () => boolean;
}

export interface ApiRequest<P = unknown, Q = unknown, B = unknown> {
  /** Parts of the path for each `:name` of the route. */
  readonly params: P;
  readonly query: Q;
  /** JSON of a POST. */
  readonly body: B;
  /** Aborts when the client has gone or the server closes. */
  readonly signal: AbortSignal;
  /** null only on routes for `anyone`. */
  readonly caller: Caller | null;
  /** Whose limits count. */
  readonly kind: Role | 'socket';
  /** For bodies that are not JSON. */
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

/** What answers a call. It gets checked values; undefined in place of a media type means no content (204). */
type Handle<N extends CallName> = (
  request: ApiRequest<Checked<N, 'params'>, Checked<N, 'query'>, Checked<N, 'body'>>,
  served: Answering,
) => Handled<N> | Promise<Handled<N>>;

type Handled<N extends CallName> = N extends MediaCall
  ? Readable | string | undefined
  : [Answer<N>] extends [undefined]
    ? unknown
    : Answer<N>;

/** What a route may have but a handler. */
interface RouteLimits<N extends CallName> {
  readonly handle: Handle<N>;
  /** Answers that may be unread at a time, because each takes much memory until then. */
  readonly atOnce?: number | ((request: ApiRequest<Checked<N, 'params'>, Checked<N, 'query'>>) => number | undefined);
  /** Of a request that becomes a shell's connection: starts it. `handle` gets requests that cannot be upgraded. */
  readonly upgrade?: (request: ApiRequest<Checked<N, 'params'>>, served: Answering) => StartShell;
}

export type StartShell = (start: ShellStart, signal: AbortSignal) => Promise<RunningShell>;

/** For each call what answers it, alone or with its limits. */
export type Handlers = { readonly [N in CallName]: Handle<N> | RouteLimits<N> };

/** A call with what answers it. */
export interface Route extends Call {
  readonly handle: (request: ApiRequest, served: Answering) => unknown;
  readonly atOnce?: number | ((request: ApiRequest) => number | undefined);
  readonly upgrade?: (request: ApiRequest, served: Answering) => StartShell;
}

/** By method and path, such as `GET /v1/jobs/:id`. */
export type Routes = Readonly<Record<string, Route>>;

export function routesOf(calls: Readonly<Record<CallName, Call>>, handlers: Handlers): Routes {
  const routes = Object.entries(calls).map(([name, call]) => {
    const handler = handlers[name as CallName];
    return [name, typeof handler === 'function' ? { ...call, handle: handler } : { ...call, ...handler }];
  });
  return Object.fromEntries(routes);
}

/** What is checked before a handler is called. @throws OnejobError E_API_REQUEST naming every problem with its path */
export function checkedRequest(route: Route, given: ApiRequest): ApiRequest {
  const { params, query, body } = route;
  return {
    ...given,
    params: params === undefined ? given.params : checked(params, given.params, 'path'),
    query: checked(query, given.query, 'query'),
    body: body instanceof z.ZodType ? checked(body, given.body, 'request') : undefined,
  };
}

function checked(schema: z.ZodType | undefined, input: unknown, what: string): unknown {
  if (schema === undefined) return undefined;
  const result = schema.safeParse(input ?? {});
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => {
    const path = issue.path.map(String).join('.');
    return path === '' ? issue.message : `${path}: ${issue.message}`;
  });
  throw new OnejobError('E_API_REQUEST', `Cannot read the ${what}: ${problems.join('; ')}.`);
}

/** The route of a method and a path, with the path's parts; null if there is none. @throws OnejobError E_API_REQUEST */
export type FindRoute = (
  method: string,
  path: string,
) => { readonly route: Route; readonly params: Readonly<Record<string, string>> } | null;

export function createRouter(routes: Routes): FindRoute {
  const table = Object.entries(routes).map(([name, route]) => {
    return { route, pattern: new RegExp(`^${name.replaceAll('.', '\\.').replaceAll(/:([a-z]+)/g, '(?<$1>[^/]*)')}$`) };
  });
  return (method, path) => {
    for (const { route, pattern } of table) {
      const found = pattern.exec(`${method} ${path}`);
      if (found === null) continue;
      const parts = Object.entries(found.groups ?? {}).map(([name, part]) => [name, decoded(part)]);
      return { route, params: Object.fromEntries(parts) };
    }
    return null;
  };
}

function decoded(part: string): string {
  const text = attempt(() => decodeURIComponent(part));
  if (text === null) throw unreadableRequest(`'${part}' is not a valid url component`);
  return text;
}

export function unreadableRequest(why: string): OnejobError {
  return new OnejobError('E_API_REQUEST', `Cannot read the request: ${why}`);
}
