/** One request of the API: finding its route, reading, checking and answering it. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { finished, Readable } from 'node:stream';
import type { z } from 'zod';
import { attempt, OnejobError } from '../errors.ts';

export interface ApiRequest {
  /** Parts of the path for each `:name` of the route. */
  readonly params: unknown;
  readonly query: unknown;
  /** JSON of a POST; undefined if it is empty. */
  readonly body: unknown;
  /** Aborts when the client has gone or the server closes. */
  readonly signal: AbortSignal;
  /** For bodies that are not JSON. */
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
}

/**
 * By method and path, such as `GET /v1/jobs/:id`. The result of a route is sent as JSON, a stream as its bytes, and undefined as no
 * content. A route may set headers and a status.
 */
export type Routes = Readonly<Record<string, (request: ApiRequest) => unknown>>;

/** Bytes. */
const bodyLimit = 8 << 20;

export type Route = { readonly params: Readonly<Record<string, string>>; readonly handle: Routes[string] };

/** Returns a function that finds the route of a method and a path, or null. @throws OnejobError E_API_REQUEST */
export function createRouter(routes: Routes): (method: string, path: string) => Route | null {
  const table = Object.entries(routes).map(([route, handle]) => {
    const [method, path = ''] = route.split(' ');
    return { method, template: path.split('/'), handle };
  });
  return (asked, path) => {
    const parts = path.split('/').map(decoded);
    for (const { method, template, handle } of table) {
      const params = method === asked ? match(template, parts) : null;
      if (params !== null) return { params, handle };
    }
    return null;
  };
}

function match(template: readonly string[], parts: readonly string[]): Record<string, string> | null {
  if (template.length !== parts.length) return null;
  const params: Record<string, string> = {};
  for (const [at, part] of parts.entries()) {
    const wanted = template[at] ?? '';
    if (wanted.startsWith(':')) params[wanted.slice(1)] = part;
    else if (part !== wanted) return null;
  }
  return params;
}

function decoded(part: string): string {
  const text = attempt(() => decodeURIComponent(part));
  if (text === null) throw unreadable(`'${part}' is not a valid url component`);
  return text;
}

/** @throws OnejobError E_API_REQUEST if it is too large or not JSON; the connection stays open for the answer. */
export async function readBody(request: IncomingMessage): Promise<unknown> {
  const type = request.headers['content-type']?.split(';')[0]?.trim().toLowerCase();
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of request.iterator({ destroyOnReturn: false })) {
    chunks.push(chunk);
    length += chunk.length;
    if (length > bodyLimit) throw unreadable('Request body is too large');
  }
  if (type === undefined && length === 0) return undefined;
  if (type !== 'application/json') throw unreadable('Unsupported Media Type');
  if (length === 0) throw unreadable("Body cannot be empty when content-type is set to 'application/json'");
  try {
    return JSON.parse(Buffer.concat(chunks).toString(), refusePrototype);
  } catch {
    throw unreadable("Body is not valid JSON but content-type is set to 'application/json'");
  }
}

/** An assignment of this key would set a prototype. */
function refusePrototype(key: string, value: unknown): unknown {
  if (key === '__proto__') throw new SyntaxError('Object contains forbidden prototype property');
  return value;
}

function unreadable(why: string): OnejobError {
  return new OnejobError('E_API_REQUEST', `Cannot read the request: ${why}`);
}

/** @throws OnejobError E_API_REQUEST naming every problem with its path. */
export function checked<T extends z.ZodType>(schema: T, input: unknown, what: string): z.output<T> {
  const result = schema.safeParse(input ?? {});
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => {
    const path = issue.path.map(String).join('.');
    return path === '' ? issue.message : `${path}: ${issue.message}`;
  });
  throw new OnejobError('E_API_REQUEST', `Cannot read the ${what}: ${problems.join('; ')}.`);
}

/** `failed` is called when a stream breaks. */
export function send(response: ServerResponse, answer: unknown, failed: (error: unknown) => void): void {
  if (answer instanceof Readable) {
    response.once('close', () => answer.destroy());
    finished(answer, (error) => {
      if (error) failed(error);
    });
    answer.pipe(response);
  } else if (answer === undefined) {
    if (response.statusCode === 200) response.statusCode = 204;
    response.end();
  } else {
    response.setHeader('content-type', 'application/json; charset=utf-8');
    response.end(JSON.stringify(answer));
  }
}
