/** An agent played by hand, call by call, over the network: for tests that need one to stand still where a real one would continue. */
import { gzipSync } from 'node:zlib';
import { z } from 'zod';
import type { BuildkiteStandin } from './types.ts';

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  /** What it says as JSON; an empty object for anything else. */
  readonly json: Readonly<Record<string, unknown>>;
}

export type Ask = (method: string, path: string, body?: unknown) => Promise<Answer>;

const Json = z.record(z.string(), z.unknown());

/** Asks the Agent API with a token of any kind; null: without one. */
export function asking(standin: Pick<BuildkiteStandin, 'endpoint'>, token: string | null): Ask {
  return async (method, path, body) => {
    const response = await fetch(`${standin.endpoint}/${path}`, {
      method,
      headers: {
        ...(token === null ? {} : { authorization: `Token ${token}` }),
        ...(body === undefined || Buffer.isBuffer(body) ? {} : { 'content-type': 'application/json' }),
        ...(Buffer.isBuffer(body) ? { 'content-type': 'text/plain', 'content-encoding': 'gzip' } : {}),
      },
      ...(body === undefined ? {} : { body: Buffer.isBuffer(body) ? new Uint8Array(body) : JSON.stringify(body) }),
    });
    return { status: response.status, headers: response.headers, json: parsed(await response.text()) };
  };
}

function parsed(text: string): Readonly<Record<string, unknown>> {
  try {
    return Json.parse(JSON.parse(text));
  } catch {
    return {};
  }
}

export interface HandAgent {
  readonly name: string;
  readonly session: string;
  readonly ask: Ask;
  /** Id of the job that the ping offers; null if there isn't one. */
  ping(): Promise<string | null>;
  heartbeat(): Promise<Answer>;
  /** @throws Error when it is refused. */
  accept(job: string): Promise<HandJob>;
  acquire(job: string): Promise<HandJob>;
  disconnect(): Promise<Answer>;
}

export interface HandJob {
  readonly id: string;
  readonly env: Readonly<Record<string, string>>;
  readonly token: string;
  readonly ask: Ask;
  start(): Promise<Answer>;
  log(text: string, at: { readonly sequence: number; readonly offset: number }): Promise<Answer>;
  finish(exit?: number, more?: Readonly<Record<string, unknown>>): Promise<Answer>;
}

export interface HandOptions {
  /** Default a registration token. */
  readonly token?: string;
  readonly tags?: readonly string[];
  readonly priority?: number;
  readonly ignoreInDispatches?: boolean;
  /** Default true. */
  readonly connect?: boolean;
}

const Registered = z.object({ access_token: z.string(), name: z.string() });
const Accepted = z.object({ id: z.string(), env: z.record(z.string(), z.string()), token: z.string().optional() });
const Offered = z.object({ job: z.object({ id: z.string() }).optional() });

/** Registers one, and connects it. @throws Error with what came back when it is refused. */
export async function handAgent(standin: BuildkiteStandin, name: string, o: HandOptions = {}): Promise<HandAgent> {
  const registered = await asking(standin, o.token ?? standin.token)('POST', 'register', {
    name,
    hostname: 'by-hand',
    meta_data: o.tags ?? [],
    version: '0',
    build: '0',
    features: [],
    ...(o.priority === undefined ? {} : { priority: String(o.priority) }),
    ignore_in_dispatches: o.ignoreInDispatches ?? false,
  });
  const said = Registered.parse(good(registered));
  const ask = asking(standin, said.access_token);
  if (o.connect !== false) good(await ask('POST', 'connect'));
  const take = async (job: string, how: 'accept' | 'acquire'): Promise<HandJob> => {
    const accepted = Accepted.parse(good(await ask('PUT', `jobs/${job}/${how}`)));
    return handJob(standin, accepted.id, accepted.env, accepted.token ?? said.access_token);
  };
  return {
    name: said.name,
    session: said.access_token,
    ask,
    ping: async () => Offered.parse(good(await ask('GET', 'ping'))).job?.id ?? null,
    heartbeat: () => ask('POST', 'heartbeat', { sent_at: new Date().toISOString() }),
    accept: (job) => take(job, 'accept'),
    acquire: (job) => take(job, 'acquire'),
    disconnect: () => ask('POST', 'disconnect'),
  };
}

function handJob(standin: BuildkiteStandin, id: string, env: Readonly<Record<string, string>>, token: string): HandJob {
  const ask = asking(standin, token);
  return {
    id,
    env,
    token,
    ask,
    start: () => ask('PUT', `jobs/${id}/start`, { started_at: new Date().toISOString() }),
    log: (text, { sequence, offset }) =>
      ask(
        'POST',
        `jobs/${id}/chunks?sequence=${sequence}&offset=${offset}&size=${Buffer.byteLength(text)}`,
        gzipSync(Buffer.from(text)),
      ),
    finish: (exit = 0, more = {}) =>
      ask('PUT', `jobs/${id}/finish`, { exit_status: String(exit), chunks_failed_count: 0, ...more }),
  };
}

function good(answer: Answer): Readonly<Record<string, unknown>> {
  if (answer.status >= 300) throw new Error(`${answer.status} ${String(answer.json.message)}`);
  return answer.json;
}
