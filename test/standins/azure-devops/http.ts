/** The seam between the server and its layers: what a route is asked, and what it may answer. */
import type { IncomingHttpHeaders } from 'node:http';
import type { Reply } from '../kit/door.ts';
import type { Agent, Pat, Plan, World } from './state.ts';
import type { Identity } from './types.ts';

/** Who asks, and what the credential is good for. */
export interface Caller {
  readonly identity: Identity;
  readonly pat: Pat | null;
  readonly agent: Agent | null;
  readonly plan: Plan | null;
}

export type { Reply };

export interface Exchange {
  readonly world: World;
  readonly method: string;
  /** Parameters of the route, decoded. */
  readonly params: Readonly<Record<string, string>>;
  /** Query by lower-case name: the service does not look at case. */
  readonly query: ReadonlyMap<string, string>;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  readonly caller: Caller;
  /** Ends when the other side hangs up. */
  readonly signal: AbortSignal;
}

/** Who may use a route. `anyone` includes those without a credential. */
export type Allowed = Identity | 'anyone';

export interface Route {
  readonly method: string;
  /** Short name: in the log, and for faults. */
  readonly name: string;
  /** Path below the base (`/…` instead: below the origin) with `{names}`. */
  readonly path: string;
  readonly allow: readonly Allowed[];
  /** What a PAT needs: read or manage agent pools, read builds. */
  readonly right?: 'read' | 'manage' | 'build';
  /** Works without an api-version. */
  readonly unversioned?: boolean;
  readonly answer: (x: Exchange) => Reply | Promise<Reply>;
}

/** An error as the service words it. */
export class ServiceFailure extends Error {
  readonly status: number;
  readonly typeKey: string;

  constructor(status: number, typeKey: string, message: string) {
    super(message);
    this.status = status;
    this.typeKey = typeKey;
  }
}

/** Body of an answer that is not 2xx. */
export function wrapped(typeKey: string, message: string): Record<string, unknown> {
  const space = 'Microsoft.TeamFoundation.DistributedTask.WebApi';
  return {
    $id: '1',
    innerException: null,
    message,
    typeName: `${space}.${typeKey}, ${space}`,
    typeKey,
    errorCode: 0,
    eventId: 3000,
  };
}

export const ok = (json: unknown): Reply => ({ status: 200, json });
export const list = (value: readonly unknown[]): Reply => ok({ count: value.length, value });
export const nothing: Reply = { status: 204 };

/** The body as a JSON object; an error of the service's kind otherwise. */
export function objectBody(x: Exchange): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(x.body.toString('utf8'));
  } catch {
    value = null;
  }
  if (!isRecord(value))
    throw new ServiceFailure(400, 'VssPropertyValidationException', 'The body of the request is not a JSON object.');
  return value;
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A flat map of strings; what is not a string is left out. */
export function stringMap(value: unknown): Record<string, string> {
  if (!isRecord(value)) return {};
  return Object.fromEntries(Object.entries(value).filter((entry): entry is [string, string] => typeof entry[1] === 'string'));
}

export const text = (value: unknown, otherwise = ''): string => (typeof value === 'string' ? value : otherwise);

/** A flag of the query: only `true` counts. */
export const flag = (x: Exchange, name: string): boolean => x.query.get(name.toLowerCase())?.toLowerCase() === 'true';
