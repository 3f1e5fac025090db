/**
 * The broker's own calls to the service, over connections that stay open. Answers are bounded in size and time, redirects are
 * not followed (they would carry a token elsewhere), and no error quotes a header. A proxy that leads to it is gone through.
 */
import type http from 'node:http';
import type { Proxies } from '../../../config/proxies.ts';
import type { Clock } from '../../../core/clock.ts';
import { OnejobError } from '../../../errors.ts';
import { networkHint, proxyAnswered, proxyHint, whyUnreachable } from '../../unreachable.ts';
import { messageOf } from './answers.ts';
import { createUpstreams, hasCode, isOfProxy } from './forward-upstreams.ts';

export interface Call {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly method: 'GET' | 'POST' | 'PUT';
  /** Below the endpoint, ids escaped by `escapeId`; without a slash at its beginning. */
  readonly path: string;
  readonly token: string;
  /** JSON; `gzip` bytes go as a log's chunk. */
  readonly body?: unknown;
  readonly gzip?: Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
  /** What the call does, for messages: `Cannot <doing> …`. */
  readonly doing: string;
  /** Doing it twice is not the same as once: it is not sent again when an idle connection turns out to be dead. */
  readonly once?: boolean;
}

export type Called =
  | { readonly ok: true; readonly status: number; readonly headers: http.IncomingHttpHeaders; readonly body: unknown }
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
  close(): void;
}

export interface UpstreamParts {
  /** Of onejob. */
  readonly version: string;
  readonly clock: Clock;
  readonly proxies: Proxies;
  /** ms for a whole answer. Default: 60 s, as the agent itself waits. */
  readonly timeout?: number;
  /** How the service is reached instead of over connections of its own. */
  readonly fetch?: typeof fetch;
}

const usualTimeout = 60_000;
/** Bytes of an answer; that to `accept` holds a job with all of its variables. */
const mostBytes = 1 << 20;
const mostJobBytes = 8 << 20;

/** An id as part of a path: dots too, which the service does not take there (agent v3.137 `api/client.go`). */
export function escapeId(id: string): string {
  return encodeURIComponent(id).replaceAll('.', '%2E');
}

export function createUpstream({ version, clock, proxies, timeout = usualTimeout, fetch }: UpstreamParts): Upstream {
  const connections = createUpstreams({ proxies, keeping: { keepAliveMsecs: 30_000, maxFreeSockets: 64 } });

  const bytesOf = (call: Call): Uint8Array | null =>
    call.gzip ?? (call.body === undefined ? null : Buffer.from(JSON.stringify(call.body)));

  const headersOf = (call: Call, bytes: Uint8Array | null): Record<string, string> => ({
    'User-Agent': `onejob/${version}`,
    Authorization: `Token ${call.token}`,
    Accept: 'application/json',
    ...call.headers,
    ...(call.gzip !== undefined && { 'Content-Type': 'text/plain', 'Content-Encoding': 'gzip' }),
    ...(call.body !== undefined && { 'Content-Type': 'application/json' }),
    ...(call.method !== 'GET' && { 'Content-Length': String(bytes?.byteLength ?? 0) }),
  });

  const fetched =
    (ask: typeof globalThis.fetch) =>
    async (call: Call, url: URL, signal: AbortSignal): Promise<Answer> => {
      const bytes = bytesOf(call);
      const { method } = call;
      const asking = new AbortController();
      const stop = (): void => asking.abort(signal.reason);
      signal.addEventListener('abort', stop, { once: true });
      const callOff = clock.after(timeout, () => asking.abort(new Fault({ why: `no answer within ${timeout / 1000} s` })));
      try {
        const init = { method, headers: headersOf(call, bytes), body: bytes, redirect: 'manual', signal: asking.signal } as const;
        const response = await ask(url, init);
        return { status: response.status, headers: Object.fromEntries(response.headers), text: await response.text() };
      } catch (error) {
        asking.signal.throwIfAborted();
        throw new Fault(whyOf(error));
      } finally {
        callOff();
        signal.removeEventListener('abort', stop);
      }
    };

  const send = (call: Call, url: URL, signal: AbortSignal): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const bytes = bytesOf(call);
      const headers = headersOf(call, bytes);
      let isLate = false;
      const most = call.path.endsWith('/accept') ? mostJobBytes : mostBytes;
      const path = `${url.pathname}${url.search}`;
      const request = connections.open({ method: call.method, origin: url, path, headers }, signal);
      request.on('response', (response) => {
        const pieces: Buffer[] = [];
        let size = 0;
        response.on('data', (piece: Buffer) => {
          size += piece.byteLength;
          if (size > most) request.destroy(new Fault({ why: `it answered more than ${most >> 20} MiB` }));
          else pieces.push(piece);
        });
        response.on('error', fail);
        response.on('end', () => {
          callOff();
          resolve({ status: response.statusCode ?? 0, headers: response.headers, text: Buffer.concat(pieces).toString() });
        });
      });
      const callOff = clock.after(timeout, () => {
        isLate = true;
        request.destroy();
      });
      request.on('error', fail);
      // An answer that leads to another protocol is dropped by Node without an error.
      const onClose = (): void => fail(isLate ? null : new Fault({ why: 'it did not answer the call' }));
      request.once('close', onClose).once('response', () => request.off('close', onClose));
      function fail(error: unknown): void {
        callOff();
        if (signal.aborted) reject(signal.reason);
        else if (error instanceof Fault) reject(error);
        else if (isLate) reject(new Fault({ why: `no answer within ${timeout / 1000} s` }));
        else reject(new Fault(whyOf(error), request.reusedSocket && isCut(error)));
      }
      request.end(bytes ?? undefined);
    });

  const one = fetch === undefined ? send : fetched(fetch);

  return {
    async call(call, signal) {
      signal.throwIfAborted();
      const url = URL.parse(`${call.endpoint}/${call.path}`);
      if (url === null || !/^https?:$/.test(url.protocol)) return unreachable(call, { why: 'that is no address' });
      try {
        return judge(call, await one(call, url, signal), clock.wall());
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        if (!error.isStale || call.once === true) return unreachable(call, error);
      }
      try {
        return judge(call, await one(call, url, signal), clock.wall());
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        return unreachable(call, error);
      }
    },
    close() {
      connections.close();
    },
  };
}

interface Answer {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly text: string;
}

interface Unanswered {
  readonly why: string;
  /** What to do about it; undefined: nobody can say more than that it is tried again. */
  readonly hint?: string | undefined;
}

/** Why no answer came. `isStale`: the service had closed an idle connection, and has not seen the request. */
class Fault extends Error implements Unanswered {
  readonly why: string;
  readonly hint: string | undefined;
  readonly isStale: boolean;
  constructor({ why, hint }: Unanswered, isStale = false) {
    super(why);
    this.why = why;
    this.hint = hint;
    this.isStale = isStale;
  }
}

function judge(call: Call, { status, headers, text }: Answer, wall: number): Called {
  const body = parsed(text);
  const isGood = status >= 200 && status < 300;
  // What stands between may answer with a page of its own, and with 200. The service has then heard nothing.
  if (isGood && /^\s*</.test(text)) return unreachable(call, { why: 'something on the way answers with a page of its own' });
  if (isOfProxy(status)) return unreachable(call, { why: proxyAnswered(status), hint: proxyHint });
  if (isGood) return { ok: true, status, headers, body };
  const retry = status === 429 || status >= 500;
  // Should the service ever repeat what it was given.
  const said = messageOf(body).replaceAll(call.token, '[token]');
  const message = `Cannot ${call.doing}: ${shown(call.endpoint)} answered ${status}${said === '' ? '' : ` (${said})`}.`;
  const code =
    status === 429 ? 'E_CI_THROTTLED' : status >= 500 ? 'E_CI_UNREACHABLE' : status === 401 ? 'E_CI_CREDENTIAL' : 'E_CI_DENIED';
  const error = new OnejobError(code, message, { hint: hints[code], retry });
  return { ok: false, status, body, retry, retryAfter: retry ? waitOf(headers['retry-after'], wall) : null, error };
}

const hints = {
  E_CI_THROTTLED: 'onejob waits and asks again.',
  E_CI_UNREACHABLE: 'onejob asks again; see the status page of the service if it stays so.',
  E_CI_CREDENTIAL: 'Put a valid agent token where "token" of the service points to.',
  E_CI_DENIED: 'See whether the token may do this, and whether the cluster has the queue that the pool names.',
} as const;

function unreachable({ endpoint, doing }: Call, { why, hint: more }: Unanswered): Called {
  const message = `Cannot ${doing}: ${shown(endpoint)} cannot be reached (${why}).`;
  const hint = `onejob tries again. ${more ?? networkHint}`;
  const error = new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
  return { ok: false, status: null, body: null, retry: true, retryAfter: null, error };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** ms, an hour at most; null when the header says nothing (RFC 9110, 10.2.3). */
function waitOf(header: string | undefined, wall: number): number | null {
  if (header === undefined) return null;
  const ms = /^\d+$/.test(header.trim()) ? Number(header) * 1000 : Date.parse(header) - wall;
  return Number.isNaN(ms) ? null : Math.min(Math.max(ms, 0), 3_600_000);
}

const isCut = (error: unknown): boolean => hasCode(error, 'ECONNRESET') || hasCode(error, 'EPIPE');

/** In words, with the system's own where they say more. */
function whyOf(error: unknown): Unanswered {
  const { why, code, hint } = whyUnreachable(error);
  return { why: /accepted|failed/.test(why) && code !== '' ? `${why}: ${code}` : why, hint };
}

/** An address for messages, without what could be a password in it. */
function shown(endpoint: string): string {
  const url = URL.parse(endpoint);
  return url === null ? 'the service' : `${url.origin}${url.pathname}`;
}
