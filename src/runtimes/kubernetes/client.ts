/**
 * Calls to the API of one cluster: requests in bounded time, answers that continue (a watch, a log), and WebSockets into containers.
 * https://kubernetes.io/docs/reference/using-api/api-concepts/
 */
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { type ConnectionOptions, createSecureContext } from 'node:tls';
import { Agent, request } from 'undici';
import { WebSocket } from 'ws';
import { z } from 'zod';
import { Turns } from '../../base/abortable.ts';
import { codeOf, type ErrorCode, messageOf, OnejobError } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import type { Access } from './kubeconfig.ts';

/** ms that an answer may take; for one that continues, that it may take to begin. */
const patience = 30_000;
/** ms without a byte after which a connection that is to continue is given up. A watch has bookmarks every minute. */
const idle = 300_000;
/** Calls at a time that do not continue: each has a connection, and a server that is busy answers none of them sooner. */
const callsAtOnce = 32;

type Query = Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;

export interface KubeCall {
  readonly method?: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  /** In words for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  readonly query?: Query;
  readonly body?: object;
  readonly signal?: AbortSignal | undefined;
  /** Statuses that mean null instead of an error. */
  readonly nothing?: readonly number[];
}

/** Groups of resources that are not of the core. */
const groups: Readonly<Record<string, string>> = { leases: 'coordination.k8s.io', networkpolicies: 'networking.k8s.io' };

/** What the API says instead of what it was asked for (`v1.Status`). */
const statusSchema = z.looseObject({ message: z.string().optional(), reason: z.string().optional() });

/** A refusal of the API, with its own words. */
export class Refusal extends Error {
  readonly status: number;
  /** Such as `AlreadyExists`; empty: it gives none. */
  readonly reason: string;

  constructor(status: number, body: string) {
    const said = statusSchema.safeParse(jsonOf(body)).data;
    super((said?.message ?? body.slice(0, 500)).trim());
    this.status = status;
    this.reason = said?.reason ?? '';
  }
}

export class KubeClient {
  readonly access: Access;
  readonly #clock: Clock;
  readonly #agent: Agent;
  readonly #tls: ConnectionOptions;
  readonly #turns = new Turns(callsAtOnce);
  /** Whether the API has refused the last credentials. */
  #isRefused = false;

  constructor(access: Access, clock: Clock) {
    this.access = access;
    this.#clock = clock;
    this.#tls = readOnce(access.tls);
    this.#agent = new Agent({
      connect: { ...(this.#tls as object), timeout: patience },
      headersTimeout: patience,
      bodyTimeout: idle,
      allowH2: false,
    });
  }

  /** The path of resources in the namespace of the agents, of one with its name, or of a part of that. */
  path(resource: string, ...rest: readonly string[]): string {
    const root = groups[resource] === undefined ? '/api/v1' : `/apis/${groups[resource]}/v1`;
    return `${root}/namespaces/${[this.access.namespace, resource, ...rest].map(encodeURIComponent).join('/')}`;
  }

  /**
   * The answer, parsed if it is JSON; null for the statuses in `nothing`.
   * @throws OnejobError E_ENGINE_UNREACHABLE, E_ENGINE_PERMISSION, E_ENGINE_FAILED, E_RECIPE
   */
  async ask(call: KubeCall): Promise<unknown> {
    const content = (await this.bytes(call))?.toString('utf8');
    return content === undefined ? null : (jsonOf(content) ?? content);
  }

  /** The answer as it is; null for the statuses in `nothing`. @throws as `ask` */
  async bytes(call: KubeCall): Promise<Buffer | null> {
    using _ = await this.#turns.take(call.signal);
    return await this.#inTime(call, async (limit) => {
      const body = await this.#send(call, limit);
      return body === null ? null : Buffer.from(await body.arrayBuffer());
    });
  }

  /** An answer of `ask` that must be of this form. @throws OnejobError E_ENGINE_FAILED if something else answers there */
  formed<T>(schema: z.ZodType<T>, answer: unknown, doing: string): T {
    const { success, data, error } = schema.safeParse(answer);
    if (success) return data;
    const said = (typeof answer === 'string' ? answer : `${JSON.stringify(answer)}`).trim().slice(0, 200);
    const hint = 'Check the "server" of the kubeconfig, and proxies before it.';
    const words = `Cannot ${doing}: ${this.#place} answered with something else: ${said}.`;
    throw new OnejobError('E_ENGINE_FAILED', words, { hint, retry: true, cause: error });
  }

  /** An answer that continues until the server or `signal` ends it; null for the statuses in `nothing`. @throws as `ask` */
  flow(call: KubeCall & { readonly signal: AbortSignal }): Promise<Readable | null> {
    return this.#inTime(call, (limit) => this.#send(call, AbortSignal.any([call.signal, limit])));
  }

  /** A WebSocket of the protocol `v5.channel.k8s.io`, which is open, and paused. @throws as `ask` */
  socket(call: KubeCall): Promise<WebSocket> {
    return this.#inTime(call, (limit) => this.#open(call, limit));
  }

  /** The error for a call that took longer than `ms`. */
  silent(doing: string, ms: number, cause?: unknown): OnejobError {
    return this.#unreachable(doing, `it did not answer within ${ms / 1000} s`, cause);
  }

  close(): void {
    void this.#agent.destroy();
  }

  /** Tells in words what failed, or that it took too long. */
  async #inTime<T>({ doing, signal }: KubeCall, work: (limit: AbortSignal) => Promise<T>): Promise<T> {
    using limit = deadline(this.#clock, patience, ...(signal === undefined ? [] : [signal]));
    try {
      return await work(limit.signal);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof OnejobError) throw error;
      if (error instanceof Refusal && error.status === 401) this.#isRefused = true;
      if (error instanceof Refusal) throw refused(error, doing, this.#place);
      throw limit.passed ? this.silent(doing, patience, error) : this.#unreachable(doing, unreachable(error), error);
    }
  }

  /** null for the statuses in `nothing`. @throws Refusal */
  async #send({ method = 'GET', path, query, body, nothing }: KubeCall, signal: AbortSignal) {
    const answer = await request(this.#url(path, query), {
      method,
      dispatcher: this.#agent,
      signal,
      headers: {
        ...(await this.#headers()),
        accept: 'application/json, */*',
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    if (answer.statusCode < 300) return answer.body;
    const content = await answer.body.text();
    if (nothing?.includes(answer.statusCode)) return null;
    throw new Refusal(answer.statusCode, content);
  }

  async #open({ path, query }: KubeCall, signal: AbortSignal): Promise<WebSocket> {
    const headers = await this.#headers();
    const url = this.#url(path, query);
    url.protocol = url.protocol === 'http:' ? 'ws:' : 'wss:';
    const socket = new WebSocket(url, 'v5.channel.k8s.io', { ...this.#tls, headers, perMessageDeflate: false });
    // Its first messages may be here already, and nobody listens yet.
    socket.on('open', () => socket.pause());
    // One that fails later also closes.
    socket.on('error', () => {});
    socket.on('unexpected-response', (_request, answer) => {
      const refuse = (content: string) => socket.emit('error', new Refusal(answer.statusCode ?? 0, content));
      text(answer).then(refuse, () => refuse(''));
    });
    try {
      await once(socket, 'open', { signal });
      return socket;
    } catch (error) {
      socket.terminate();
      throw error;
    }
  }

  /** The API may be below a path. A list in `query` becomes one parameter for each. */
  #url(path: string, query: Query = {}): URL {
    const url = new URL(`${this.access.server.pathname.replace(/\/$/, '')}${path}`, this.access.server);
    for (const [name, value] of Object.entries(query))
      for (const one of [value].flat()) if (one !== undefined) url.searchParams.append(name, String(one));
    return url;
  }

  async #headers(): Promise<Record<string, string>> {
    const isRefused = this.#isRefused;
    this.#isRefused = false;
    const token = await this.access.token(isRefused);
    return { 'user-agent': 'onejob', ...(token !== null && { authorization: `Bearer ${token}` }) };
  }

  #unreachable(doing: string, why: string, cause: unknown): OnejobError {
    const hint = `Check whether "kubectl cluster-info" answers.`;
    return new OnejobError('E_ENGINE_UNREACHABLE', `Cannot ${doing} with ${this.#place}: ${why}.`, { hint, retry: true, cause });
  }

  get #place(): string {
    return `the Kubernetes API at ${this.access.server.origin} (from ${this.access.from})`;
  }
}

/** With its certificates read: for each connection anew, that takes longer than the rest of it. */
function readOnce(tls: Access['tls']): ConnectionOptions {
  try {
    return { ...tls, secureContext: createSecureContext(tls) };
  } catch {
    // Each connection says what is wrong with them.
    return tls;
  }
}

function refused(cause: Refusal, doing: string, at: string): OnejobError {
  const { status, message } = cause;
  const said = message === '' ? '' : `: ${message.replace(/\.$/, '')}`;
  const error = (code: ErrorCode, retry: boolean, hint?: string) =>
    new OnejobError(code, `Cannot ${doing}: ${at} answered ${status}${said}.`, { hint, retry, cause });
  if (status === 400 || status === 422) return error('E_RECIPE', false);
  if (status === 401) return error('E_ENGINE_PERMISSION', true, 'Renew the credentials of the kubeconfig.');
  if (status === 403) return error('E_ENGINE_PERMISSION', true, 'Give it the rights of docs/runtimes/kubernetes.md#rights.');
  const missing = status === 404 ? /^namespaces "(.+)" not found$/.exec(message)?.[1] : undefined;
  if (missing !== undefined) return error('E_ENGINE_FAILED', false, noNamespace(missing));
  const mayPass = status >= 500 || status === 409 || status === 429;
  return error('E_ENGINE_FAILED', mayPass, 'Type "onejob doctor" to check the cluster.');
}

/** What to do about a namespace that does not exist. */
export function noNamespace(name: string): string {
  return `Type "kubectl create namespace ${name}", and give onejob its rights there: docs/runtimes/kubernetes.md#rights.`;
}

function unreachable(error: unknown): string {
  const code = codeOf(error);
  if (code === 'ECONNREFUSED') return 'nothing listens there';
  if (code === 'ENOTFOUND') return 'its name is not known';
  return messageOf(error).replace(/\.$/, '') || `${code}`;
}

/** The Refusal behind an error of `KubeClient`; null for other errors. */
export function refusalOf(error: unknown): Refusal | null {
  const { cause } = Object(error);
  return cause instanceof Refusal ? cause : null;
}
