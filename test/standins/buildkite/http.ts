/** The seam between the server and its layers: what a route is asked, and what it may answer. */
import type { IncomingHttpHeaders } from 'node:http';
import type { z } from 'zod';
import type { Reply } from '../kit/door.ts';
import type { Agent, ClusterToken, Job, World } from './state.ts';
import type { TokenKind } from './types.ts';

export type { Reply };

/** Who asks. Exactly what the token names is set. */
export interface Caller {
  readonly kind: TokenKind;
  readonly valid: boolean;
  readonly token: ClusterToken | null;
  readonly agent: Agent | null;
  readonly job: Job | null;
  /** The job that an acquisition token is for. */
  readonly only: string | null;
}

export interface Exchange {
  readonly world: World;
  readonly params: Readonly<Record<string, string>>;
  readonly query: URLSearchParams;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  readonly caller: Caller;
  readonly from: string;
}

export interface Route {
  readonly method: string;
  /** Below `/v3/`, with `:names`; also its name in the log and for faults. */
  readonly path: string;
  /** Whose token is taken. */
  readonly allow: readonly TokenKind[];
  readonly answer: (x: Exchange) => Reply | Promise<Reply>;
}

/** An error as the service words it: `{"message": …}`. */
export class ServiceFailure extends Error {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, message: string, headers: Readonly<Record<string, string>> = {}) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}

export const ok = (json: unknown = {}): Reply => ({ status: 200, json });

/** The body as JSON of that shape. @throws ServiceFailure 400 when it is something else. */
export function bodyOf<S extends z.ZodType>(x: Exchange, shape: S): z.infer<S> {
  let value: unknown;
  try {
    value = JSON.parse(x.body.toString('utf8'));
  } catch {
    throw new ServiceFailure(400, 'The request body is not valid JSON');
  }
  const read = shape.safeParse(value);
  if (!read.success) {
    const [first] = read.error.issues;
    throw new ServiceFailure(422, `${first?.path.join('.') ?? 'body'}: ${first?.message ?? 'is not valid'}`);
  }
  return read.data;
}

/** The agent of a session. */
export function sessionOf(x: Exchange): Agent {
  if (x.caller.agent === null) throw new ServiceFailure(401, 'Invalid access token');
  return x.caller.agent;
}
