/**
 * One call to an Engine, over connections that are kept, and it ends in time. Silence of one call is told apart from an Engine that
 * is not there, because a volume on a dead file server holds up one call for ever and no other (E_ENGINE_SILENT).
 */

import { type ClientRequest, Agent as HttpAgent, request as http, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as https, type RequestOptions } from 'node:https';
import type { Socket } from 'node:net';
import { PassThrough, pipeline, Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { type Clock, deadline } from '../core/clock.ts';
import { OnejobError } from '../errors.ts';
import { jsonOf } from '../system/json.ts';
import type { Endpoint } from './endpoint.ts';
import { mute, Refusal, silent, stalled, statusOf, translate, unreachable } from './failures.ts';

/** In ms. */
export interface Limits {
  /** How long an Engine may take over a look. */
  readonly soon: number;
  /** Over making or removing something. */
  readonly late: number;
  /** How long something that may take any time, such as a pull, may stand still. */
  readonly idle: number;
  /** How long an Engine that is silent has to answer a ping. */
  readonly ping: number;
}

export const usualLimits: Limits = { soon: 30_000, late: 120_000, idle: 300_000, ping: 5_000 };

export type Query = Readonly<Record<string, unknown>>;

export interface Call {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  readonly query?: Query;
  readonly body?: object;
  readonly file?: Readable | Buffer;
  readonly auth?: object | null;
  /** Until the answer has come, or with `stream` until it has begun; `idle` begins anew with each piece either way. */
  readonly limit: 'soon' | 'late' | 'idle';
  readonly signal?: AbortSignal | undefined;
  /** Statuses to be answered with null instead of an error. */
  readonly nothing?: readonly number[];
  readonly stream?: true;
}

const success: ReadonlySet<number | undefined> = new Set([200, 201, 204, 304]);

/** A client with connections of its own; `close` ends them. */
export function connect(endpoint: Endpoint, limits: Limits, clock: Clock) {
  const agent = connections(endpoint);

  /** The answer, as JSON where it is some; with `stream` unread. @throws Refusal, and what Node throws */
  async function send(call: Call, file: Readable | Buffer | undefined, signal: AbortSignal): Promise<unknown> {
    const answered = Promise.withResolvers<IncomingMessage>();
    const body = file ?? (call.method === 'POST' ? Buffer.from(JSON.stringify(call.body ?? {})) : undefined);
    const headers = {
      ...(body !== undefined && { 'Content-Type': file === undefined ? 'application/json' : 'application/tar' }),
      ...(Buffer.isBuffer(body) ? { 'Content-Length': body.length } : body !== undefined && { 'Transfer-Encoding': 'chunked' }),
      ...(call.auth != null && { 'X-Registry-Auth': credentials(call.auth) }),
    };
    const path = `${call.path}${queryOf(call.query ?? {})}`;
    const sent = open(endpoint, { method: call.method, path, headers, signal, agent }, answered.resolve);
    sent.on('error', answered.reject);
    if (body instanceof Readable) pipeline(body, sent, () => {});
    else sent.end(body);
    const answer = await answered.promise;
    if (!success.has(answer.statusCode)) throw new Refusal(answer.statusCode ?? 0, await text(answer));
    if (call.stream) return answer;
    const said = await text(answer);
    return jsonOf(said) ?? said;
  }

  /** @throws what `send` does, but for silence and aborts: what a refusal means is the caller's to say. */
  const raw = async (call: Call): Promise<unknown> => {
    call.signal?.throwIfAborted();
    const ms = limits[call.limit];
    const abort = new AbortController();
    const stop = () => abort.abort();
    call.signal?.addEventListener('abort', stop, { once: true });
    let isLate = false;
    let isOver = false;
    let giveUp = stop;
    const late = (): void => {
      isLate = true;
      giveUp();
    };
    let callOff = clock.after(ms, late);
    const refresh = (): void => {
      callOff();
      // A slow reader takes the last pieces when the Engine has long hung up.
      if (!isOver) callOff = clock.after(ms, late);
    };
    const end = () => {
      isOver = true;
      callOff();
      call.signal?.removeEventListener('abort', stop);
    };
    const isIdle = call.limit === 'idle';
    const file = call.file instanceof Readable ? counted(call.file, () => isIdle && refresh()) : call.file;
    let unread: unknown = null;
    if (call.file instanceof Readable) {
      call.file.once('error', (error) => {
        unread ??= error;
      });
    }
    try {
      const said = await send(call, file, abort.signal);
      if (!call.stream || !(said instanceof Readable)) {
        end();
        return said;
      }
      // A stream goes on; ending it with its caller is then the stream's own matter.
      said.once('close', end);
      if (!isIdle) {
        callOff();
        return said;
      }
      const flow = counted(said, refresh);
      giveUp = () => flow.destroy(stalled(call.doing, endpoint, ms));
      return flow;
    } catch (error) {
      end();
      call.signal?.throwIfAborted();
      if (isLate) {
        throw isIdle && file !== undefined
          ? stalled(call.doing, endpoint, ms)
          : await silence(call.doing, endpoint, ms, limits.ping, call.signal, clock);
      }
      throw unread === null ? error : unreadable(call.doing, unread);
    } finally {
      // An Engine that refuses, or is given up, leaves the rest of what was to be sent.
      if (file instanceof Readable) file.destroy();
    }
  };
  const ask = async (call: Call): Promise<unknown> => {
    try {
      return (await raw(call)) ?? '';
    } catch (error) {
      if (call.signal?.aborted) throw error;
      const status = statusOf(error);
      if (status !== null && call.nothing?.includes(status)) return null;
      throw translate(error, call.doing, endpoint);
    }
  };
  const flow = async (call: Call): Promise<Readable | null> => {
    const answer = await ask({ ...call, stream: true });
    return answer instanceof Readable ? answer : null;
  };
  return { raw, ask, flow, close: () => agent.destroy() };
}

/** The same stream; `seen` is called with each piece that is taken from it. Each ends the other. */
function counted(stream: Readable, seen: () => void): Readable {
  const through = new PassThrough();
  const { push } = through;
  through.push = (...pieces) => {
    seen();
    return push.apply(through, pieces);
  };
  pipeline(stream, through, () => {});
  return through;
}

/** What was to be sent could not be read: no fault of the Engine's. */
function unreadable(doing: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  const why = cause instanceof Error ? cause.message : String(cause);
  return new OnejobError('E_FILES', `Cannot ${doing}: failed to read them (${why}).`, { retry: true, cause });
}

/** Kept open between calls. */
function connections(endpoint: Endpoint): HttpAgent {
  const options = { keepAlive: true, maxFreeSockets: 4 };
  return endpoint.kind === 'unix' || endpoint.tls === null ? new HttpAgent(options) : new HttpsAgent(options);
}

/** Base64 for addresses, and padded, which the Engine insists on. */
function credentials(auth: object): string {
  return Buffer.from(JSON.stringify(auth)).toString('base64').replaceAll('+', '-').replaceAll('/', '_');
}

/** As the Engine's API has it: what is no plain value goes as JSON. */
function queryOf(query: Query): string {
  const pairs = Object.entries(query).flatMap(([name, value]): [string, string][] => {
    if (value === undefined || value === null) return [];
    return [[name, typeof value === 'object' ? JSON.stringify(value) : String(value)]];
  });
  return pairs.length === 0 ? '' : `?${new URLSearchParams(pairs)}`;
}

export interface Answer {
  readonly status: number;
  readonly body: string;
}

/** One GET on a connection of its own. Throws what Node throws. */
export function get(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = open(endpoint, { method: 'GET', path, signal }, (answer) => whole(answer).then(resolve, reject));
    sent.on('error', reject);
    sent.end();
  });
}

async function whole(answer: IncomingMessage): Promise<Answer> {
  return { status: answer.statusCode ?? 0, body: await text(answer) };
}

/** What it means that a call got no answer within `limit` ms: asks on another connection, for at most `patience` ms. */
export async function silence(
  doing: string,
  endpoint: Endpoint,
  limit: number,
  patience: number,
  signal: AbortSignal | undefined,
  clock: Clock,
): Promise<OnejobError> {
  using timeout = deadline(clock, patience, ...(signal === undefined ? [] : [signal]));
  try {
    await get(endpoint, '/_ping', timeout.signal);
    return silent(doing, endpoint, limit);
  } catch (error) {
    signal?.throwIfAborted();
    return timeout.passed ? mute(doing, endpoint, limit) : unreachable(error, doing, endpoint);
  }
}

/** Asks for a raw connection, as attach gives it. An answer that is no upgrade comes as `Answer`. */
export function upgrade(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<Socket | Answer> {
  return new Promise((resolve, reject) => {
    const headers = { Connection: 'Upgrade', Upgrade: 'tcp' };
    const sent = open(endpoint, { method: 'POST', path, headers, signal }, (answer) => whole(answer).then(resolve, reject));
    sent.on('upgrade', (_answer, socket: Socket) => resolve(socket));
    sent.on('error', reject);
    sent.end();
  });
}

/** `agent` in `options`: whose connections are kept; else the call has one of its own. */
export function open(endpoint: Endpoint, options: RequestOptions, answered: (answer: IncomingMessage) => void): ClientRequest {
  const own = { agent: false, ...options } as const;
  if (endpoint.kind === 'unix') return http({ ...own, socketPath: endpoint.path, host: 'localhost' }, answered);
  const { host, port, tls } = endpoint;
  if (tls === null) return http({ ...own, host, port }, answered);
  const { ca, cert, key, verify } = tls;
  const material = { ...(ca !== null && { ca }), ...(cert !== null && { cert }), ...(key !== null && { key }) };
  return https({ ...own, ...material, host, port, rejectUnauthorized: verify }, answered);
}
