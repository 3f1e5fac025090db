/** Calls to the service; for stacks see `stacks.ts`. Answers are bounded, and no error contains a token. */
import { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { createSend } from '../../http/api.ts';
import { type Answer, asksFor, brief, NoAnswer, proxyWhy, shown, type Why, whyOf } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';

export interface ApiParts {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly version: string;
  readonly clock: Clock;
  /** ms for a whole answer; default 20 s. */
  readonly timeout?: number;
  readonly fetch: typeof fetch;
}

export interface BuildkiteCall {
  readonly method: 'GET' | 'POST' | 'PUT';
  /** Below the endpoint, ids escaped by `escapeId`; without a slash at its beginning. */
  readonly path: string;
  readonly body?: unknown;
  readonly doing: string;
}

/** `error`: with `retry` for 429, 5xx and no answer. `status`: null when no whole answer came. */
export type Called =
  | { readonly ok: true; readonly doing: string; readonly headers: Headers; readonly body: unknown }
  | { readonly ok: false; readonly status: number | null; readonly error: OnejobError };

/** The service refused, and said when it wants to be asked again. */
export class LaterError extends OnejobError {
  readonly retryAfter: number;

  constructor(error: OnejobError, retryAfter: number) {
    super(error.code, error.message, { hint: error.hint ?? 'onejob asks again.', retry: true });
    this.retryAfter = retryAfter;
  }
}

/** Bytes of an answer; one holds a job with all of its variables. */
const mostBytes = 8 << 20;

/** An id in a path, with its dots escaped, which the service needs (agent v3.137 `api/client.go`). */
export function escapeId(id: string): string {
  return encodeURIComponent(id).replaceAll('.', '%2E');
}

export function createCaller({ endpoint, version, clock, timeout = 20_000, fetch }: ApiParts) {
  const send = createSend({ clock, fetch, timeout, most: mostBytes, version }, (reason) => reason);
  return {
    /** @throws what `signal` was aborted with; anything else is an answer */
    async call({ method, path, body, doing }: BuildkiteCall, token: string, signal: AbortSignal): Promise<Called> {
      signal.throwIfAborted();
      const url = URL.parse(`${endpoint}/${path}`);
      if (url === null || !/^https?:$/.test(url.protocol)) return unreachable(endpoint, doing, whyOf('the address is invalid'));
      const headers = { Authorization: `Token ${token}`, Accept: 'application/json' };
      try {
        const answer = await send({ method, url, headers, json: body }, null, signal);
        return judge(answer, { endpoint, token, doing, wall: clock.wall() });
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        return unreachable(endpoint, doing, error.about);
      }
    },
    /** The body of an answer. @throws OnejobError E_CI_*, a `LaterError` where the service says when to ask again */
    read<T>(called: Called, schema: z.ZodType<T>, hint?: string): T {
      if (!called.ok) throw called.error;
      const found = schema.safeParse(called.body);
      if (found.success) return found.data;
      const message = `Cannot ${called.doing}: ${endpoint} sent an unexpected response.`;
      throw new OnejobError('E_CI_ANSWER', message, { ...(hint !== undefined && { hint }), retry: true });
    },
  };
}

function judge(
  { status, headers, text }: Answer,
  about: Record<'endpoint' | 'token' | 'doing', string> & { readonly wall: number },
): Called {
  const { endpoint, token, doing, wall } = about;
  const body = jsonOf(text) ?? null;
  const isGood = status >= 200 && status < 300;
  // A proxy may answer with its own page and 200: then the service has heard nothing.
  if (isGood && /^\s*</.test(text))
    return unreachable(endpoint, doing, whyOf('a proxy or another server in between answers with its own page'));
  if (status === 407) return unreachable(endpoint, doing, proxyWhy(status));
  if (isGood) return { ok: true, doing, headers, body };
  // In case the service repeats the token.
  const said = brief(refusal.parse(body).message).replaceAll(token, '[token]');
  const message = `Cannot ${doing}: ${shown(endpoint)} answered ${status}${said === '' ? '' : ` (${said})`}.`;
  const code =
    status === 429 ? 'E_CI_THROTTLED' : status >= 500 ? 'E_CI_UNREACHABLE' : status === 401 ? 'E_CI_CREDENTIAL' : 'E_CI_DENIED';
  const retry = status === 429 || status >= 500;
  const hint = status === 404 ? notThere : hints[code];
  const error = new OnejobError(code, message, { hint, retry });
  const wait = retry ? (asksFor(headers, wall) ?? (status === 429 ? resetOf(body) : null)) : null;
  return { ok: false, status, error: wait === null ? error : new LaterError(error, Math.min(wait, longestWait)) };
}

/** ms. Longest wait that a service may ask for. */
export const longestWait = 3_600_000;

const hints = {
  E_CI_THROTTLED: 'onejob waits and asks again.',
  E_CI_UNREACHABLE: 'onejob asks again; if it keeps failing, see the status page of the service.',
  E_CI_CREDENTIAL: 'Put a valid agent token where "token" of the service points.',
  E_CI_DENIED: 'Check whether the token may do this, and whether the cluster has the queue that the pool names.',
} as const;

const notThere =
  'Check whether "endpoint" of the service is an Agent API, and whether the cluster has the queue that the pool names.';

function unreachable(endpoint: string, doing: string, { why, code, hint: more }: Why): Called {
  const said = /accepted|failed/.test(why) && code !== '' ? `${why}: ${code}` : why;
  const message = `Cannot ${doing}: ${shown(endpoint)} cannot be reached (${said}).`;
  const error = new OnejobError('E_CI_UNREACHABLE', message, { hint: `onejob tries again. ${more}`, retry: true });
  return { ok: false, status: null, error };
}

/** The body of a refusal; empty when it says nothing. */
const refusal = z.object({ message: z.string() }).catch({ message: '' });
const limited = z.object({ reset: z.number().positive().max(3600) });

/** ms until the rate limit is reset. */
function resetOf(body: unknown): number | null {
  const found = limited.safeParse(body);
  return found.success ? found.data.reset * 1000 : null;
}

const words = z
  .string()
  .nullish()
  .catch(null)
  .transform((found) => (found == null || found === '' ? null : brief(found)));

/** Who a token is (agent v3.137 `api/token.go`). What is empty or missing is null. */
const identityAnswer = z
  .object({
    token_type: words,
    organization_slug: words,
    cluster_uuid: words,
    cluster_name: words,
    organization_queue_key: words,
    expires_at: words,
  })
  .transform((found) => {
    const expires = Date.parse(found.expires_at ?? '');
    return {
      type: found.token_type,
      organisation: found.organization_slug,
      /** null: the token belongs to no cluster. */
      cluster: found.cluster_name ?? found.cluster_uuid,
      /** The only queue of its agents; null: any of the cluster. */
      queue: found.organization_queue_key,
      /** ms since the epoch; null when the service does not say. */
      expires: Number.isNaN(expires) ? null : expires,
    };
  });
export type TokenIdentity = Readonly<z.infer<typeof identityAnswer>>;

const count = z.int().nonnegative();
const countsAnswer = z.object({
  jobs: z.object({ queues: z.record(z.string(), z.object({ scheduled: count.catch(0) })).nullish() }),
  agents: z.object({ queues: z.record(z.string(), z.object({ total: count.catch(1) }).catch({ total: 1 })).nullish() }).nullish(),
});

/** Jobs by queue that an agent could take now. */
export interface QueueCounts {
  readonly scheduled: ReadonlyMap<string, number>;
  /** Every queue that the service mentions. */
  readonly known: ReadonlySet<string>;
  /** Queues with agents, of any host. */
  readonly served: ReadonlySet<string>;
  /** ms that the service wants between two questions; null when it does not say. */
  readonly pollAfter: number | null;
}

/** What the service said. `skew`: how far its clock is ahead of this host's, ms; null when it does not say. */
interface Told<T> {
  readonly value: T;
  readonly skew: number | null;
}

/** All methods throw OnejobError E_CI_*, or the reason of `signal`; a `LaterError` where the service says when to ask again. */
export interface ServiceApi {
  /** null: the service does not know the question. */
  identity(token: string, signal: AbortSignal): Promise<Told<TokenIdentity> | null>;
  /** As docs page `apis/agent_api/metrics` says. */
  counts(token: string, signal: AbortSignal): Promise<Told<QueueCounts>>;
}

export function createServiceApi(parts: ApiParts): ServiceApi {
  const { call, read } = createCaller(parts);

  async function get(path: string, token: string, doing: string, signal: AbortSignal): Promise<Called> {
    // Anything else is not a valid header value.
    if (/^[\x21-\x7e]{1,4096}$/.test(token)) return call({ method: 'GET', path, doing }, token, signal);
    const hint = 'Put only the agent token where the config looks for it.';
    const message = `Cannot ${doing}: the token is malformed: it is empty or contains whitespace.`;
    throw new OnejobError('E_CI_CREDENTIAL', message, { hint });
  }

  function told<T>(called: Called, schema: z.ZodType<T>): Told<T> {
    const hint = 'Check "endpoint" of the service, and what answers there: it may be a proxy or a sign-in page.';
    const value = read(called, schema, hint);
    const date = Date.parse(headerOf(called, 'date') ?? '');
    return { value, skew: Number.isNaN(date) ? null : date - parts.clock.wall() };
  }

  return {
    async identity(token, signal) {
      const called = await get('token', token, 'identify the token', signal);
      return !called.ok && called.status === 404 ? null : told(called, identityAnswer);
    },
    async counts(token, signal) {
      const called = await get('metrics', token, 'count the waiting jobs', signal);
      const { value: found, skew } = told(called, countsAnswer);
      const jobs = Object.entries(found.jobs.queues ?? {});
      const said = headerOf(called, 'buildkite-agent-metrics-poll-duration')?.trim() ?? '';
      const seconds = /^\d{1,9}$/.test(said) ? Number(said) : 0;
      const scheduled = new Map(jobs.map(([queue, { scheduled }]) => [queue, scheduled]));
      const agents = Object.entries(found.agents?.queues ?? {});
      const known = new Set([...scheduled.keys(), ...agents.map(([queue]) => queue)]);
      const served = new Set(agents.flatMap(([queue, { total }]) => (total > 0 ? [queue] : [])));
      return { value: { scheduled, known, served, pollAfter: seconds === 0 ? null : Math.min(seconds * 1000, longestWait) }, skew };
    },
  };
}

function headerOf(called: Called, name: string): string | null {
  return called.ok ? called.headers.get(name) : null;
}
