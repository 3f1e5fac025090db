/**
 * Calls to the API of one cluster: requests in bounded time, answers that go on (a watch, a log), and WebSockets into containers.
 * https://kubernetes.io/docs/reference/using-api/api-concepts/
 */
import type { Readable } from 'node:stream';
import { Agent, request } from 'undici';
import { WebSocket } from 'ws';
import { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import type { Access } from './kubeconfig.ts';

/** ms that an answer may take; for one that goes on, that it may take to begin. */
const patience = 30_000;
/** ms without a byte after which a connection that is to go on is given up. A watch has bookmarks every minute. */
const idle = 300_000;

type Query = Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;

export interface KubeCall {
  readonly method?: 'GET' | 'POST' | 'PATCH' | 'PUT' | 'DELETE';
  readonly path: string;
  /** In words for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  readonly query?: Query;
  readonly body?: object;
  readonly signal?: AbortSignal | undefined;
  /** Statuses that mean null instead of an error. */
  readonly nothing?: readonly number[];
}

/** What the API says instead of what it was asked for (`v1.Status`). */
const statusSchema = z.looseObject({
  message: z.string().optional(),
  reason: z.string().optional(),
  details: z
    .looseObject({ causes: z.array(z.looseObject({ reason: z.string().optional(), message: z.string().optional() })).optional() })
    .optional(),
});

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

  constructor(access: Access, clock: Clock) {
    this.access = access;
    this.#clock = clock;
    this.#agent = new Agent({
      connect: { ...access.tls, timeout: patience },
      headersTimeout: patience,
      bodyTimeout: idle,
      allowH2: false,
    });
  }

  /** The path of something in the namespace of the agents. */
  path(resource: string, name?: string, part?: string): string {
    const rest = [name, part].filter((one) => one !== undefined).map((one) => `/${encodeURIComponent(one)}`);
    return `/api/v1/namespaces/${encodeURIComponent(this.access.namespace)}/${resource}${rest.join('')}`;
  }

  /** The answer, parsed; null for the statuses in `nothing`. @throws OnejobError E_ENGINE_*, whose cause is a Refusal if the API refused */
  async ask(call: KubeCall): Promise<unknown> {
    using limit = deadline(this.#clock, patience, ...(call.signal === undefined ? [] : [call.signal]));
    try {
      const { statusCode, body } = await this.#send(call, limit.signal);
      const content = await body.text();
      if (call.nothing?.includes(statusCode)) return null;
      if (statusCode >= 300) throw new Refusal(statusCode, content);
      return jsonOf(content) ?? content;
    } catch (error) {
      call.signal?.throwIfAborted();
      throw this.#translated(error, call.doing, limit.passed);
    }
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

  /** An answer that goes on until the server or `signal` ends it; null for the statuses in `nothing`. @throws as `ask` */
  async flow(call: KubeCall & { readonly signal: AbortSignal }): Promise<Readable | null> {
    using limit = deadline(this.#clock, patience);
    try {
      const { statusCode, body } = await this.#send(call, AbortSignal.any([call.signal, limit.signal]));
      if (statusCode < 300) return body;
      const content = await body.text();
      if (call.nothing?.includes(statusCode)) return null;
      throw new Refusal(statusCode, content);
    } catch (error) {
      call.signal.throwIfAborted();
      throw this.#translated(error, call.doing, limit.passed);
    }
  }

  /** A WebSocket of the protocol `v5.channel.k8s.io`, which is open, and paused. @throws as `ask` */
  async socket({ path, query = {}, doing, signal }: KubeCall): Promise<WebSocket> {
    using limit = deadline(this.#clock, patience, ...(signal === undefined ? [] : [signal]));
    try {
      return await this.#open(`${path}${queryOf(query)}`, limit.signal);
    } catch (error) {
      signal?.throwIfAborted();
      throw this.#translated(error, doing, limit.passed);
    }
  }

  /** The error for a call that took longer than `ms`. */
  silent(doing: string, ms: number, cause?: unknown): OnejobError {
    return this.#unreachable(doing, `it did not answer within ${ms / 1000} s`, cause);
  }

  close(): void {
    void this.#agent.destroy();
  }

  async #send({ method = 'GET', path, query = {}, body }: KubeCall, signal: AbortSignal) {
    const token = await this.access.token();
    const type = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json';
    return request(new URL(`${path}${queryOf(query)}`, this.access.server), {
      method,
      dispatcher: this.#agent,
      signal,
      headers: {
        accept: 'application/json, */*',
        'user-agent': 'onejob',
        ...(token !== null && { authorization: `Bearer ${token}` }),
        ...(body !== undefined && { 'content-type': type }),
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  }

  async #open(path: string, signal: AbortSignal): Promise<WebSocket> {
    signal.throwIfAborted();
    const token = await this.access.token();
    const url = new URL(path, this.access.server);
    url.protocol = url.protocol === 'http:' ? 'ws:' : 'wss:';
    const headers = { 'user-agent': 'onejob', ...(token !== null && { authorization: `Bearer ${token}` }) };
    const socket = new WebSocket(url, 'v5.channel.k8s.io', { ...this.access.tls, headers, perMessageDeflate: false });
    const opened = Promise.withResolvers<void>();
    const stop = (): void => opened.reject(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    socket.on('open', () => {
      // Its first messages may be here already, and nobody listens yet.
      socket.pause();
      opened.resolve();
    });
    socket.on('error', opened.reject);
    socket.on('unexpected-response', (_request, answer) => {
      let content = '';
      answer.on('data', (bytes) => {
        content += String(bytes);
      });
      answer.on('end', () => opened.reject(new Refusal(answer.statusCode ?? 0, content)));
    });
    try {
      await opened.promise;
      return socket;
    } catch (error) {
      socket.terminate();
      throw error;
    } finally {
      signal.removeEventListener('abort', stop);
    }
  }

  #translated(error: unknown, doing: string, isLate: boolean): OnejobError {
    if (error instanceof OnejobError) return error;
    if (error instanceof Refusal) return refused(error, doing, this.#place);
    return isLate ? this.silent(doing, patience, error) : this.#unreachable(doing, unreachable(error), error);
  }

  #unreachable(doing: string, why: string, cause: unknown): OnejobError {
    const hint = `Check whether "kubectl cluster-info" answers.`;
    return new OnejobError('E_ENGINE_UNREACHABLE', `Cannot ${doing} with ${this.#place}: ${why}.`, { hint, retry: true, cause });
  }

  get #place(): string {
    return `the Kubernetes API at ${this.access.server.origin} (from ${this.access.from})`;
  }
}

function refused(error: Refusal, doing: string, at: string): OnejobError {
  const { status, message } = error;
  const said = message === '' ? '' : `: ${message.replace(/\.$/, '')}`;
  const words = `Cannot ${doing}: ${at} answered ${status}${said}.`;
  if (status === 401)
    return new OnejobError('E_ENGINE_PERMISSION', words, {
      hint: 'Renew the credentials of the kubeconfig.',
      retry: true,
      cause: error,
    });
  if (status === 403) {
    const hint = 'Give it the rights that docs/runtimes/kubernetes.md lists.';
    return new OnejobError('E_ENGINE_PERMISSION', words, { hint, retry: true, cause: error });
  }
  if (status === 400 || status === 422) return new OnejobError('E_RECIPE', words, { cause: error });
  const retry = status >= 500 || status === 409 || status === 429;
  return new OnejobError('E_ENGINE_FAILED', words, { hint: 'Type "onejob doctor" to check the cluster.', retry, cause: error });
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

/** A list becomes one parameter for each. */
function queryOf(query: Query): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined) search.append(name, String(one));
  return search.size === 0 ? '' : `?${search}`;
}
