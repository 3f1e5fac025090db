/** Calls to the service, and what their answers mean. */
import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { type Answer, asksFor, brief, exchange, jsonOf, NoAnswer } from '../../http/exchange.ts';
import { networkHint, proxyAnswered, proxyHint, type Why } from '../../http/unreachable.ts';

export interface Call {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly method: 'GET' | 'POST' | 'PUT';
  /** Below the endpoint, ids escaped by `escapeId`; without a slash at its beginning. */
  readonly path: string;
  readonly token: string;
  /** JSON. */
  readonly body?: unknown;
  /** What the call does, for messages: `Cannot <doing> …`. */
  readonly doing: string;
}

export type Called =
  | { readonly ok: true; readonly status: number; readonly headers: Headers; readonly body: unknown }
  | {
      readonly ok: false;
      /** null when no whole answer came. */
      readonly status: number | null;
      readonly body: unknown;
      /** The same call may succeed later: 429, 5xx, and no answer. */
      readonly retry: boolean;
      /** ms that the service wants to be left alone; null when it does not say. */
      readonly retryAfter: number | null;
      readonly error: OnejobError;
    };

export interface Upstream {
  /** @throws what `signal` was aborted with; anything else is an answer */
  call(call: Call, signal: AbortSignal): Promise<Called>;
}

export interface UpstreamParts {
  /** Of onejob. */
  readonly version: string;
  readonly clock: Clock;
  /** ms for a whole answer. Default: 60 s, as the agent itself waits. */
  readonly timeout?: number;
  readonly fetch: typeof fetch;
}

const usualTimeout = 60_000;
/** Bytes of an answer; one holds a job with all of its variables. */
const mostBytes = 8 << 20;

/** An id as part of a path: dots too, which the service does not take there (agent v3.137 `api/client.go`). */
export function escapeId(id: string): string {
  return encodeURIComponent(id).replaceAll('.', '%2E');
}

export function createUpstream({ version, clock, timeout = usualTimeout, fetch }: UpstreamParts): Upstream {
  const headersOf = (call: Call): Record<string, string> => ({
    'User-Agent': `onejob/${version}`,
    Authorization: `Token ${call.token}`,
    Accept: 'application/json',
    ...(call.body !== undefined && { 'Content-Type': 'application/json' }),
  });

  return {
    async call(call, signal) {
      signal.throwIfAborted();
      const url = URL.parse(`${call.endpoint}/${call.path}`);
      if (url === null || !/^https?:$/.test(url.protocol)) return unreachable(call, { why: 'that is no address' });
      const body = call.body === undefined ? {} : { body: JSON.stringify(call.body) };
      const request = { method: call.method, url, headers: headersOf(call), ...body };
      try {
        return judge(call, await exchange(request, { clock, fetch, timeout, most: mostBytes }, signal), clock.wall());
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        return unreachable(call, error);
      }
    },
  };
}

function judge(call: Call, answer: Answer, wall: number): Called {
  const { status, headers, text } = answer;
  const body = jsonOf(answer) ?? null;
  const isGood = status >= 200 && status < 300;
  // What stands between may answer with a page of its own, and with 200. The service has then heard nothing.
  if (isGood && /^\s*</.test(text)) return unreachable(call, { why: 'something on the way answers with a page of its own' });
  if (status === 407) return unreachable(call, { why: proxyAnswered(status), hint: proxyHint });
  if (isGood) return { ok: true, status, headers, body };
  const retry = status === 429 || status >= 500;
  // Should the service ever repeat what it was given.
  const said = messageOf(body).replaceAll(call.token, '[token]');
  const message = `Cannot ${call.doing}: ${shown(call.endpoint)} answered ${status}${said === '' ? '' : ` (${said})`}.`;
  const code =
    status === 429 ? 'E_CI_THROTTLED' : status >= 500 ? 'E_CI_UNREACHABLE' : status === 401 ? 'E_CI_CREDENTIAL' : 'E_CI_DENIED';
  const error = new OnejobError(code, message, { hint: hints[code], retry });
  return { ok: false, status, body, retry, retryAfter: retry ? askedOf(headers, wall) : null, error };
}

const hints = {
  E_CI_THROTTLED: 'onejob waits and asks again.',
  E_CI_UNREACHABLE: 'onejob asks again; see the status page of the service if it stays so.',
  E_CI_CREDENTIAL: 'Put a valid agent token where "token" of the service points to.',
  E_CI_DENIED: 'See whether the token may do this, and whether the cluster has the queue that the pool names.',
} as const;

function unreachable({ endpoint, doing }: Call, { why, code = '', hint: more = networkHint }: Partial<Why>): Called {
  const said = /accepted|failed/.test(why ?? '') && code !== '' ? `${why}: ${code}` : why;
  const message = `Cannot ${doing}: ${shown(endpoint)} cannot be reached (${said}).`;
  const hint = `onejob tries again. ${more}`;
  const error = new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
  return { ok: false, status: null, body: null, retry: true, retryAfter: null, error };
}

/** ms, an hour at most; null when it does not say. */
function askedOf(headers: Headers, wall: number): number | null {
  const asked = asksFor(headers, wall);
  return asked === null ? null : Math.min(asked, 3_600_000);
}

/** An address for messages, without what could be a password in it. */
function shown(endpoint: string): string {
  const url = URL.parse(endpoint);
  return url === null ? 'the service' : `${url.origin}${url.pathname}`;
}

const refusal = z.object({ message: z.string() });

/** What the service says about a refusal, on one line; empty when it says nothing. */
function messageOf(body: unknown): string {
  const found = refusal.safeParse(body);
  return found.success ? brief(found.data.message) : '';
}
