/** How a route of the API is declared. Its schemas check what comes in, and are what `docs/openapi.json` is made from. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { z } from 'zod';
import { attempt, OnejobError } from '../base/errors.ts';
import type { ConfigService, ImageService, MachineService, Manager, MetricsService, SecretPins } from '../contract/manager.ts';
import type { ShellStart } from '../contract/shell-frames.ts';
import type { RunningShell } from '../ports/runtime.ts';
import type { Caller, Role } from './caller.ts';
import type { Doctor } from './doctor.ts';
import type { EventStreams } from './event-stream.ts';
import type { Web } from './web.ts';

/** A body that is not JSON. */
export interface Media {
  readonly media: string;
  /** Whether there may be nothing to answer with (204). */
  readonly optional?: boolean;
  /** Of a stream of events: their data by name. */
  readonly events?: Readonly<Record<string, z.ZodType>>;
}

export function media(type: string, events?: Media['events']): Media {
  return { media: type, ...(events && { events }) };
}

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

export interface Route {
  /** A sentence without its full stop. */
  readonly summary: string;
  readonly role: Role;
  readonly params?: z.ZodType | undefined;
  readonly query?: z.ZodType | undefined;
  /** Omitted: it is ignored. */
  readonly body?: z.ZodType | Media | undefined;
  /** Omitted: none (204). */
  readonly answer?: z.ZodType | Media | undefined;
  /** Of an answer; default 200. */
  readonly status?: 101 | 200 | 201 | 202;
  /** Of a request that becomes a shell's connection: starts it. `handle` gets requests that cannot be upgraded. */
  upgrade?(request: ApiRequest, served: Answering): (start: ShellStart, signal: AbortSignal) => Promise<RunningShell>;
  /** Answers that may be unread at a time, because each takes much memory until then. */
  readonly atOnce?: number | ((request: ApiRequest) => number | undefined);
  handle(request: ApiRequest, served: Answering): unknown;
}

/** By method and path, such as `GET /v1/jobs/:id`. */
export type Routes = Readonly<Record<string, Route>>;

type Checked<T> = T extends z.ZodType ? z.output<T> : undefined;
type Answer<T> = T extends z.ZodType ? z.input<T> : T extends Media ? Readable | string | undefined : unknown;

/** Declares a route. `handle` gets checked values; undefined in place of a media type means no content (204). */
export function route<
  P extends z.ZodType | undefined = undefined,
  Q extends z.ZodType | undefined = undefined,
  B extends z.ZodType | Media | undefined = undefined,
  A extends z.ZodType | Media | undefined = undefined,
>(
  declared: Omit<Route, 'params' | 'query' | 'body' | 'answer' | 'atOnce' | 'handle' | 'upgrade'> & {
    readonly params?: P;
    readonly query?: Q;
    readonly body?: B;
    readonly answer?: A;
    readonly atOnce?: number | ((request: ApiRequest<Checked<P>, Checked<Q>, Checked<B>>) => number | undefined);
    upgrade?(request: ApiRequest<Checked<P>>, served: Answering): ReturnType<NonNullable<Route['upgrade']>>;
    handle(request: ApiRequest<Checked<P>, Checked<Q>, Checked<B>>, served: Answering): Answer<A> | Promise<Answer<A>>;
  },
): Route {
  return declared as Route;
}

/** What is checked before a handler is called. @throws OnejobError E_API_REQUEST naming every problem with its path */
export function checkedRequest(route: Route, given: ApiRequest): ApiRequest {
  const { params, query, body } = route;
  return {
    ...given,
    params: checked(params, given.params, 'path'),
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

/** Returns a function that finds the route of a method and a path, or null. @throws OnejobError E_API_REQUEST */
export function createRouter(routes: Routes) {
  const table = Object.entries(routes).map(([name, route]) => {
    return { name, route, pattern: new RegExp(`^${name.replaceAll('.', '\\.').replaceAll(/:([a-z]+)/g, '(?<$1>[^/]*)')}$`) };
  });
  return (method: string, path: string) => {
    for (const { name, route, pattern } of table) {
      const found = pattern.exec(`${method} ${path}`);
      if (found === null) continue;
      const parts = Object.entries(found.groups ?? {}).map(([name, part]) => [name, decoded(part)]);
      return { name, route, params: Object.fromEntries(parts) as unknown };
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
