/**
 * One call to an Engine, in bounded time, on connections that are kept open. A silent call is told apart from an absent Engine,
 * because a volume on a dead file server blocks one call forever and no other (E_ENGINE_SILENT).
 */
import { type ClientRequest, Agent as HttpAgent, request as http, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as https, type RequestOptions } from 'node:https';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { PassThrough, pipeline, Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { messageOf, OnejobError } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import type { Endpoint } from './endpoint.ts';
import { mute, Refusal, silent, statusOf, translate, unreachable } from './failures.ts';

/** In ms. */
export interface Limits {
  /** For looking something up. */
  readonly soon: number;
  /** For creating or removing something. */
  readonly late: number;
  /** How long something of any length, such as a pull, may make no progress. */
  readonly idle: number;
  /** For a ping of an Engine that is silent. */
  readonly ping: number;
}

export const usualLimits: Limits = { soon: 30_000, late: 120_000, idle: 300_000, ping: 5_000 };

export type Query = Readonly<Record<string, unknown>>;

export interface EngineCall {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  /** In words for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  readonly query?: Query;
  readonly body?: object;
  readonly file?: Readable | Buffer;
  readonly auth?: object | null;
  /**
   * Limits the time until the answer is complete, or with `stream` has begun. `idle` starts again with each piece. `work` is for what
   * takes the longer the more there is: it lasts as long as the Engine answers pings, one after each `late`.
   */
  readonly limit: 'soon' | 'late' | 'idle' | 'work';
  readonly signal?: AbortSignal | undefined;
  /** Statuses that mean null instead of an error. */
  readonly nothing?: readonly number[];
  readonly stream?: true;
}

const success: ReadonlySet<number | undefined> = new Set([200, 201, 204, 304]);

export function connect(endpoint: Endpoint, limits: Limits, clock: Clock) {
  const connections = { keepAlive: true, maxFreeSockets: 4 };
  const agent = endpoint.kind === 'tcp' && endpoint.tls !== null ? new HttpsAgent(connections) : new HttpAgent(connections);

  /** The answer, parsed if it is JSON; with `stream` unread. @throws Refusal, and what Node throws */
  async function send(call: EngineCall, file: Readable | Buffer | undefined, signal: AbortSignal): Promise<unknown> {
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

  /** Handles silence and aborts. @throws what `send` throws: the caller knows what a refusal means */
  const raw = async (call: EngineCall): Promise<unknown> => {
    call.signal?.throwIfAborted();
    const ms = limits[call.limit === 'work' ? 'late' : call.limit];
    const abort = new AbortController();
    const stop = () => abort.abort();
    call.signal?.addEventListener('abort', stop, { once: true });
    const stalled = () => silent(call.doing, endpoint, `made no progress for ${ms / 1000} s`);
    let isLate = false;
    let isOver = false;
    let giveUp = stop;
    const late = (): void => {
      isLate = true;
      giveUp();
    };
    const over = new AbortController();
    let away: OnejobError | null = null;
    const stillThere = async (): Promise<void> => {
      away = await absence(call.doing, endpoint, ms, limits.ping, over.signal, clock);
      if (away === null) refresh();
      else late();
    };
    // Its failure is the end of the call.
    const due = call.limit === 'work' ? () => void stillThere().catch(() => {}) : late;
    let callOff = clock.after(ms, due);
    const refresh = (): void => {
      callOff();
      // A slow reader may take the last pieces long after the Engine has closed the connection.
      if (!isOver) callOff = clock.after(ms, due);
    };
    const end = () => {
      isOver = true;
      over.abort();
      callOff();
      call.signal?.removeEventListener('abort', stop);
    };
    const isIdle = call.limit === 'idle';
    let { file } = call;
    let unread: unknown = null;
    if (file instanceof Readable) {
      file.once('error', (error) => {
        unread ??= error;
      });
      file = counted(file, () => isIdle && refresh());
    }
    try {
      const said = await send(call, file, abort.signal);
      if (!call.stream || !(said instanceof Readable)) {
        end();
        return said;
      }
      // The caller ends the stream.
      said.once('close', end);
      if (!isIdle) {
        callOff();
        return said;
      }
      const flow = counted(said, refresh);
      giveUp = () => flow.destroy(stalled());
      return flow;
    } catch (error) {
      end();
      call.signal?.throwIfAborted();
      if (isLate) {
        if (away !== null) throw away;
        if (isIdle && file !== undefined) throw stalled();
        throw await silence(call.doing, endpoint, ms, limits.ping, call.signal, clock);
      }
      throw unread === null ? error : unreadable(call.doing, unread);
    } finally {
      // After a refusal or a timeout the rest of the upload is dropped.
      if (file instanceof Readable) file.destroy();
    }
  };
  const ask = async (call: EngineCall): Promise<unknown> => {
    try {
      return (await raw(call)) ?? '';
    } catch (error) {
      if (call.signal?.aborted) throw error;
      const status = statusOf(error);
      if (status !== null && call.nothing?.includes(status)) return null;
      throw translate(error, call.doing, endpoint);
    }
  };
  const flow = async (call: EngineCall): Promise<Readable | null> => {
    const answer = await ask({ ...call, stream: true });
    return answer instanceof Readable ? answer : null;
  };
  /** The lines of an answer as they come, without empty ones. @throws what `raw` throws */
  async function* lines(call: Omit<EngineCall, 'stream'>): AsyncGenerator<string, void> {
    const input = await raw({ ...call, stream: true });
    if (!(input instanceof Readable)) throw new TypeError('the Engine answered without a stream');
    for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) if (line.trim() !== '') yield line;
  }
  return { raw, ask, flow, lines, close: () => agent.destroy() };
}

/** The same stream; `seen` is called for each piece that is taken from it. Ending one ends the other. */
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

/** The upload could not be read, which is not the Engine's fault. */
function unreadable(doing: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  return new OnejobError('E_FILES', `Cannot ${doing}: failed to read them (${messageOf(cause)}).`, { retry: true, cause });
}

/** Base64 in the URL alphabet, with the padding that the Engine requires. */
function credentials(auth: object): string {
  return Buffer.from(JSON.stringify(auth)).toString('base64').replaceAll('+', '-').replaceAll('/', '_');
}

/** In the format of the Engine's API: objects as JSON. */
function queryOf(query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value != null);
  const pairs = given.map(([name, value]) => [name, typeof value === 'object' ? JSON.stringify(value) : String(value)]);
  return pairs.length === 0 ? '' : `?${new URLSearchParams(Object.fromEntries(pairs))}`;
}

export type EngineAnswer = Awaited<ReturnType<typeof whole>>;

/** One GET on its own connection. @throws what Node throws */
export function get(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<EngineAnswer> {
  return new Promise((resolve, reject) => {
    const sent = open(endpoint, { method: 'GET', path, signal }, (answer) => whole(answer).then(resolve, reject));
    sent.on('error', reject);
    sent.end();
  });
}

async function whole(answer: IncomingMessage) {
  return { status: answer.statusCode ?? 0, body: await text(answer) };
}

/** Explains a call without an answer within `limit` ms: sends a ping on another connection, for at most `patience` ms. */
export async function silence(
  doing: string,
  endpoint: Endpoint,
  limit: number,
  patience: number,
  signal: AbortSignal | undefined,
  clock: Clock,
): Promise<OnejobError> {
  const why = await absence(doing, endpoint, limit, patience, signal, clock);
  return why ?? silent(doing, endpoint, `did not answer within ${limit / 1000} s, although it answers other calls`);
}

/** Whether the Engine answers a ping within `patience` ms: null if it does, else what is wrong. @throws why `signal` aborted */
async function absence(
  doing: string,
  endpoint: Endpoint,
  limit: number,
  patience: number,
  signal: AbortSignal | undefined,
  clock: Clock,
): Promise<OnejobError | null> {
  using timeout = deadline(clock, patience, ...(signal === undefined ? [] : [signal]));
  try {
    await get(endpoint, '/_ping', timeout.signal);
    return null;
  } catch (error) {
    signal?.throwIfAborted();
    return timeout.passed ? mute(doing, endpoint, limit) : unreachable(error, doing, endpoint);
  }
}

/** Opens a raw connection, as attach and exec need it. Returns an `Answer` if the Engine does not upgrade. */
export function upgrade(endpoint: Endpoint, path: string, signal: AbortSignal, body?: object): Promise<Socket | EngineAnswer> {
  return new Promise((resolve, reject) => {
    const json = body === undefined ? undefined : JSON.stringify(body);
    const headers = {
      Connection: 'Upgrade',
      Upgrade: 'tcp',
      ...(json !== undefined && { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(json) }),
    };
    const sent = open(endpoint, { method: 'POST', path, headers, signal }, (answer) => whole(answer).then(resolve, reject));
    sent.on('upgrade', (_answer, socket: Socket, head: Buffer) => {
      // The program may have spoken already.
      if (head.length > 0) socket.unshift(head);
      resolve(socket);
    });
    sent.on('error', reject);
    sent.end(json);
  });
}

/** Sends a request. Without an `agent` in `options` it has its own connection. */
function open(endpoint: Endpoint, options: RequestOptions, answered: (answer: IncomingMessage) => void): ClientRequest {
  const own = { agent: false, ...options } as const;
  if (endpoint.kind === 'unix') return http({ ...own, socketPath: endpoint.path, host: 'localhost' }, answered);
  const { host, port, tls } = endpoint;
  if (tls === null) return http({ ...own, host, port }, answered);
  const { ca, cert, key, verify } = tls;
  const material = { ...(ca !== null && { ca }), ...(cert !== null && { cert }), ...(key !== null && { key }) };
  return https({ ...own, ...material, host, port, rejectUnauthorized: verify }, answered);
}
