/**
 * One call to an Engine, in bounded time, on connections that are kept open. A silent call is told apart from an absent Engine,
 * because a volume on a dead file server blocks one call forever and no other (E_ENGINE_SILENT).
 */
import { Agent as HttpAgent, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import type { Socket } from 'node:net';
import { PassThrough, pipeline, Readable } from 'node:stream';
import { messageOf, OnejobError } from '../../base/errors.ts';
import { linesOf } from '../../base/lines.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import type { Endpoint } from './endpoint.ts';
import { mute, Refusal, silent, statusOf, translate, unreachable } from './failures.ts';
import { refusedVersion, type Spoken, spokenWith } from './spoken.ts';
import { get, open, textOf, upgrade } from './wire.ts';

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

/** An Engine, and how long its answers may take. */
export interface EngineAccess {
  readonly endpoint: Endpoint;
  readonly limits: Limits;
  readonly clock: Clock;
}

/**
 * Calls to one Engine, on connections that are kept open until `close`. Paths have no version: each call speaks the one that the Engine
 * and onejob have agreed on.
 */
export interface Connection {
  /** What the Engine speaks. Asked once, until `forget`. @throws OnejobError, and what Node throws */
  spoken(doing: string, signal?: AbortSignal): Promise<Spoken>;
  /** To be called if another Engine may answer from now on: the old one was stopped, as for an update. */
  forget(): void;
  /**
   * The answer, parsed if it is JSON; with `stream` the stream that it is. Ends with silence and aborts.
   * @throws Refusal, which only the caller can explain, and what Node throws
   */
  raw(call: EngineCall): Promise<unknown>;
  /** The same; null for the statuses in `nothing`. @throws OnejobError */
  ask(call: EngineCall): Promise<unknown>;
  /** The answer as a stream; null for the statuses in `nothing`. @throws OnejobError */
  flow(call: EngineCall): Promise<Readable | null>;
  /** The lines of an answer as they come, without empty ones. @throws what `raw` throws */
  lines(call: Omit<EngineCall, 'stream'>): AsyncGenerator<string, void>;
  /** A raw connection, as attach and exec need it. @throws as `raw`, and Refusal if the Engine does not upgrade */
  upgrade(path: string, doing: string, signal: AbortSignal, body?: object): Promise<Socket>;
  close(): void;
}

export function connect(endpoint: Endpoint, limits: Limits, clock: Clock): Connection {
  const connections = { keepAlive: true, maxFreeSockets: 4 };
  const agent = endpoint.kind === 'tcp' && endpoint.tls !== null ? new HttpsAgent(connections) : new HttpAgent(connections);
  let known: Spoken | null = null;
  const forget = (): void => {
    known = null;
  };
  const spoken = async (doing: string, signal?: AbortSignal): Promise<Spoken> => {
    if (known !== null) return known;
    using limit = deadline(clock, limits.ping, ...(signal === undefined ? [] : [signal]));
    try {
      known = await spokenWith(endpoint, doing, limit.signal);
      return known;
    } catch (error) {
      signal?.throwIfAborted();
      throw limit.passed ? mute(doing, endpoint, limits.ping) : error;
    }
  };
  /** Makes a call with its path in the version that both speak. */
  const speak = async <T>(
    { path, doing, signal, file }: Pick<EngineCall, 'path' | 'doing' | 'signal' | 'file'>,
    say: (path: string) => Promise<T>,
  ): Promise<T> => {
    const upload = file instanceof Readable ? file : null;
    // It may break while the Engine is asked: nobody else listens yet.
    upload?.on('error', () => {});
    const { version } = await spoken(doing, signal).finally(() => {
      if (upload?.errored != null && !signal?.aborted) throw unreadable(doing, upload.errored);
    });
    return say(`/v${version}${path}`).catch((error: unknown) => {
      const refused = refusedVersion(error, doing, endpoint, version);
      if (refused === null) throw error;
      forget();
      throw refused;
    });
  };
  const raw = (call: EngineCall) =>
    speak(call, (path) => new PendingCall({ endpoint, limits, clock }, agent, { ...call, path }).answer()).catch(
      (error: unknown) => {
        if (call.file instanceof Readable) call.file.destroy();
        throw error;
      },
    );
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
  async function* lines(call: Omit<EngineCall, 'stream'>): AsyncGenerator<string, void> {
    const input = await raw({ ...call, stream: true });
    if (!(input instanceof Readable)) throw new TypeError('the Engine answered without a stream');
    for await (const line of linesOf(input)) if (line.trim() !== '') yield line;
  }
  return {
    spoken,
    forget,
    raw,
    ask,
    flow,
    lines,
    upgrade: (path, doing, signal, body) => speak({ path, doing, signal }, (at) => upgrade(endpoint, at, signal, body)),
    close: () => agent.destroy(),
  };
}

/** One call under way, and the limit on its silence. */
class PendingCall {
  readonly #engine: EngineAccess;
  readonly #agent: HttpAgent;
  readonly #call: EngineCall;
  /** ms that the Engine may be silent. */
  readonly #patience: number;
  readonly #abort = new AbortController();
  /** Aborted when no answer is awaited any more. */
  readonly #over = new AbortController();
  /** Ends the wait: for the answer, and later for more of its stream. */
  #giveUp: () => void;
  #callOff: () => void = () => {};
  #isLate = false;
  /** Why the Engine does not even answer a ping. */
  #away: OnejobError | null = null;
  /** Why the file could not be read. */
  #unread: unknown = null;

  constructor(engine: EngineAccess, agent: HttpAgent, call: EngineCall) {
    this.#engine = engine;
    this.#agent = agent;
    this.#call = call;
    this.#patience = engine.limits[call.limit === 'work' ? 'late' : call.limit];
    this.#giveUp = this.#stop;
  }

  get #isIdle(): boolean {
    return this.#call.limit === 'idle';
  }

  async answer(): Promise<unknown> {
    const { signal, stream } = this.#call;
    signal?.throwIfAborted();
    signal?.addEventListener('abort', this.#stop, { once: true });
    this.#refresh();
    const file = this.#watched(this.#call.file);
    try {
      const answer = await send(this.#engine.endpoint, this.#agent, this.#call, file, this.#abort.signal);
      if (stream && answer instanceof Readable) return this.#streaming(answer);
      this.#end();
      return answer;
    } catch (error) {
      this.#end();
      signal?.throwIfAborted();
      throw await this.#failure(error);
    } finally {
      // After a refusal or a timeout the rest of the upload is dropped.
      if (file instanceof Readable) file.destroy();
    }
  }

  readonly #stop = (): void => this.#abort.abort();

  readonly #late = (): void => {
    this.#isLate = true;
    this.#giveUp();
  };

  readonly #refresh = (): void => {
    this.#callOff();
    // Its failure is the end of the call.
    const due = this.#call.limit === 'work' ? () => void this.#ping().catch(() => {}) : this.#late;
    // A slow reader may take the last pieces long after the Engine has closed the connection.
    if (!this.#over.signal.aborted) this.#callOff = this.#engine.clock.after(this.#patience, due);
  };

  readonly #end = (): void => {
    this.#over.abort();
    this.#callOff();
    this.#call.signal?.removeEventListener('abort', this.#stop);
  };

  async #ping(): Promise<void> {
    this.#away = await absence(this.#engine, this.#call.doing, this.#patience, this.#over.signal);
    if (this.#away === null) this.#refresh();
    else this.#late();
  }

  #watched(file: EngineCall['file']): EngineCall['file'] {
    if (!(file instanceof Readable)) return file;
    file.once('error', (error) => {
      this.#unread ??= error;
    });
    return counted(file, () => this.#isIdle && this.#refresh());
  }

  /** The caller ends the stream. */
  #streaming(answer: Readable): Readable {
    answer.once('close', this.#end);
    if (!this.#isIdle) {
      this.#callOff();
      return answer;
    }
    const flow = counted(answer, this.#refresh);
    this.#giveUp = () => flow.destroy(this.#stalled());
    return flow;
  }

  async #failure(error: unknown): Promise<unknown> {
    const { doing, file, signal } = this.#call;
    if (!this.#isLate) return this.#unread === null ? error : unreadable(doing, this.#unread);
    if (this.#away !== null) return this.#away;
    if (this.#isIdle && file !== undefined) return this.#stalled();
    return silence(this.#engine, doing, this.#patience, signal);
  }

  #stalled(): OnejobError {
    return silent(this.#call.doing, this.#engine.endpoint, `made no progress for ${this.#patience / 1000} s`);
  }
}

const success: ReadonlySet<number | undefined> = new Set([200, 201, 204, 304]);

/** The answer, parsed if it is JSON; with `stream` unread. @throws Refusal, and what Node throws */
async function send(
  endpoint: Endpoint,
  agent: HttpAgent,
  call: EngineCall,
  file: EngineCall['file'],
  signal: AbortSignal,
): Promise<unknown> {
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
  if (!success.has(answer.statusCode)) throw new Refusal(answer.statusCode ?? 0, await textOf(answer));
  if (call.stream) return answer;
  const content = await textOf(answer);
  return jsonOf(content) ?? content;
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

/** Explains a call without an answer within `limit` ms: sends a ping on another connection. @throws why `signal` aborted */
export async function silence(engine: EngineAccess, doing: string, limit: number, signal?: AbortSignal): Promise<OnejobError> {
  const why = await absence(engine, doing, limit, signal);
  return why ?? silent(doing, engine.endpoint, `did not answer within ${limit / 1000} s, although it answers other calls`);
}

/** Whether the Engine answers a ping in time: null if it does, else what is wrong. @throws why `signal` aborted */
async function absence(
  { endpoint, limits, clock }: EngineAccess,
  doing: string,
  limit: number,
  signal?: AbortSignal,
): Promise<OnejobError | null> {
  using timeout = deadline(clock, limits.ping, ...(signal === undefined ? [] : [signal]));
  try {
    await get(endpoint, '/_ping', timeout.signal);
    return null;
  } catch (error) {
    signal?.throwIfAborted();
    return timeout.passed ? mute(doing, endpoint, limit) : unreachable(error, doing, endpoint);
  }
}
