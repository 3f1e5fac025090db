/**
 * Calls of a service's REST API with a token. Each ends in time, follows no redirect, and carries the token to the configured address
 * only. A call that may have been carried out is not repeated. Only JSON says that something is absent: a proxy may answer with any page.
 */
import type { z } from 'zod';
import { type ErrorCode, OnejobError } from '../../base/errors.ts';
import { type Answer, brief, type ExchangeParts, NoAnswer, type Outgoing, exchange as over, shown } from '../../http/exchange.ts';
import { createThrottle } from '../../http/throttle.ts';
import { jsonOf } from '../../system/json.ts';

export interface RestParts extends Pick<ExchangeParts, 'clock' | 'fetch'> {
  /** Of the API, without a slash at its end. */
  readonly base: string;
  readonly version: string;
  /** The `Authorization` header: a scheme and the credential. @throws OnejobError E_SECRET, E_CI_* */
  authorization(signal: AbortSignal): Promise<string>;
  /** The service refused this header, for the nth time in one call: whether the call is worth another try. `answer`: its headers. */
  again?(header: string, refusals: number, answer: Headers, signal: AbortSignal): Promise<boolean>;
  readonly accept?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** What to do about a refused credential, a credential without the right, and an answer that nobody expects. */
  readonly hints: Readonly<Record<'credential' | 'denied' | 'answer', string>>;
  /** ms for one answer, and for all that has to be waited for before it; default 30 s. */
  readonly timeout?: number;
}

export interface RestCall {
  readonly method: Outgoing['method'];
  /** Below the base, encoded, beginning with a slash. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** A body that is plain text, instead of `body`. */
  readonly text?: string;
  /** A body in protobuf, instead of `body`; so is the answer then, with `onlyStatus`. */
  readonly proto?: Uint8Array<ArrayBuffer>;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  /** Headers that it needs in addition. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Headers that sign it in instead of the service's credential. */
  readonly signedBy?: Readonly<Record<string, string>>;
  /** It says with a 500 and JSON that it refuses, as Connect does with errors of no other kind. */
  readonly refusesWith500?: boolean;
  /** It is asked again and again: an answer that did not change since then is not sent again (RFC 9110, 13.1.2), and costs no quota. */
  readonly isRepeated?: boolean;
  /** Status and headers are the answer, whatever the body of a success; a 401 or 403 with JSON is one too. */
  readonly onlyStatus?: boolean;
}

/** A success, or a refusal that the caller may understand: 404 (with JSON), 409, 410, 412, 416, 422 and other 4xx, and what the call names. */
export interface Answered {
  readonly status: number;
  readonly ok: boolean;
  /** undefined when the answer has no body. */
  readonly body: unknown;
  readonly bytes: Buffer;
  readonly headers: Headers;
  /** The service's words about a refusal, such as `422: already exists`. */
  readonly why: string;
}

export type Rest = ReturnType<typeof createRest>;

/** Bytes of an answer. */
const most = 8 * 1024 * 1024;
/** How many answers of repeated calls are remembered. */
const remembered = 64;
/** ms until a refused credential is sent again. */
const refusedFor = 600_000;

/** Every call throws OnejobError E_CI_CREDENTIAL, E_CI_DENIED, E_CI_THROTTLED, E_CI_UNREACHABLE, E_CI_ANSWER, E_SECRET. */
export function createRest(parts: RestParts) {
  const { base, clock, fetch, version, hints, timeout = 30_000, accept = 'application/json' } = parts;
  const place = shown(base);
  const throttle = createThrottle(clock, place);
  /** Answers of repeated calls, by address. */
  const kept = new Map<string, { readonly tag: string; readonly answered: Answered }>();
  let refused: { readonly header: string; readonly error: OnejobError; readonly until: number } | null = null;

  const errorFor = (what: Pick<RestCall, 'doing'>, code: ErrorCode, why: string, hint: string, retry: boolean): OnejobError => {
    const message = `Cannot ${what.doing}: ${place} ${why}`;
    return new OnejobError(code, /[.!?]$/.test(message) ? message : `${message}.`, { hint, retry });
  };

  const urlOf = ({ path, query }: RestCall): string => {
    const asked = new URLSearchParams(query).toString();
    return `${base}${path}${asked === '' ? '' : `?${asked}`}`;
  };

  /** Sends one request, signed in. */
  const send = (call: RestCall, header: string | null, tag: string | undefined, signal: AbortSignal): Promise<Answer> => {
    const url = urlOf(call);
    const headers = {
      ...(header !== null && { Authorization: header }),
      Accept: call.proto === undefined ? accept : 'application/proto',
      'User-Agent': `onejob/${version}`,
      ...parts.headers,
      ...call.headers,
      ...call.signedBy,
      ...(call.body !== undefined && { 'Content-Type': 'application/json' }),
      ...(tag !== undefined && { 'If-None-Match': tag }),
      ...(call.text !== undefined && { 'Content-Type': 'text/plain' }),
      ...(call.proto !== undefined && { 'Content-Type': 'application/proto' }),
    };
    const own = call.body === undefined ? (call.proto ?? call.text) : JSON.stringify(call.body);
    const body = own === undefined ? {} : { body: own };
    return exchange({ method: call.method, url, headers, doing: call.doing, ...body }, { clock, fetch, timeout, most }, signal);
  };

  async function ask(call: RestCall, signal: AbortSignal): Promise<Answered> {
    const deadline = clock.now() + timeout;
    for (let refusals = 0; ; ) {
      await throttle.ready(call.doing, deadline, signal);
      const header = call.signedBy === undefined ? await parts.authorization(signal) : null;
      if (refused !== null && refused.header === header && clock.now() < refused.until) throw refused.error;
      const before = call.isRepeated === true ? kept.get(urlOf(call)) : undefined;
      const answer = await send(call, header, before?.tag, signal);
      const found = judge(answer, [...(header ?? '').split(' ').slice(1), ...Object.values(call.signedBy ?? {})]);
      const { status, why } = found;
      const isThrottled = throttles(answer);
      throttle.heard(isThrottled ? { ...answer, status: 429 } : answer, why);
      if (isThrottled) {
        // After a 503, a call that changes something may have been carried out.
        if (status !== 503 || call.method === 'GET') continue;
        throw errorFor(call, 'E_CI_UNREACHABLE', `answered ${why}`, 'onejob tries again.', true);
      }
      if (call.refusesWith500 === true && status === 500 && found.body !== undefined) return found;
      const isAnswer = found.ok || ((status === 401 || status === 403) && found.body !== undefined);
      if (call.onlyStatus === true && isAnswer) return found;
      if (status === 401) {
        refusals += 1;
        if (header !== null && (await parts.again?.(header, refusals, answer.headers, signal)) === true) continue;
        const error = errorFor(call, 'E_CI_CREDENTIAL', `refuses the credential (${why})`, hints.credential, false);
        if (header !== null) refused = { header, error, until: clock.now() + refusedFor };
        throw error;
      }
      if (header !== null && status < 500) refused = null;
      if (status === 403) throw errorFor(call, 'E_CI_DENIED', `does not allow it (${why})`, hints.denied, false);
      if (status === 407 || status >= 500) throw errorFor(call, 'E_CI_UNREACHABLE', `answered ${why}`, 'onejob tries again.', true);
      if (before !== undefined && status === 304) {
        keep(urlOf(call), before.tag, before.answered);
        return before.answered;
      }
      if (found.isStrange) throw errorFor(call, 'E_CI_ANSWER', `answered ${why}`, hints.answer, true);
      const tag = found.headers.get('ETag');
      if (call.isRepeated === true && found.ok && tag !== null) keep(urlOf(call), tag, found);
      return found;
    }
  }

  function keep(url: string, tag: string, answered: Answered): void {
    kept.delete(url);
    kept.set(url, { tag, answered });
    for (const old of [...kept.keys()].slice(0, -remembered)) kept.delete(old);
  }

  const bodyAs = <T extends z.ZodType>(schema: T, call: RestCall, answered: Answered): z.output<T> => {
    if (!answered.ok) throw errorFor(call, 'E_CI_ANSWER', `answered ${answered.why}`, hints.answer, true);
    const found = schema.safeParse(answered.body);
    if (found.success) return found.data;
    const issue = found.error.issues[0];
    const where = issue === undefined || issue.path.length === 0 ? 'its response' : `"${issue.path.join('.')}" of its response`;
    throw errorFor(call, 'E_CI_ANSWER', `sent an unexpected response: ${where} is invalid`, hints.answer, true);
  };

  return {
    ask,
    /** The error of an answer that the caller did not expect. */
    unexpected: (call: RestCall, { why }: Answered) => errorFor(call, 'E_CI_ANSWER', `answered ${why}`, hints.answer, true),
    async read<T extends z.ZodType>(schema: T, call: Omit<RestCall, 'method'>, signal: AbortSignal): Promise<z.output<T>> {
      const get = { method: 'GET', ...call } as const;
      return bodyAs(schema, get, await ask(get, signal));
    },
    /** As `read`, but returns null when the service answers 404. */
    async find<T extends z.ZodType>(schema: T, call: Omit<RestCall, 'method'>, signal: AbortSignal): Promise<z.output<T> | null> {
      const get = { method: 'GET', ...call } as const;
      const answered = await ask(get, signal);
      return answered.status === 404 ? null : bodyAs(schema, get, answered);
    },
    /** Sends once, and reads the answer. */
    async send<T extends z.ZodType>(schema: T, call: RestCall, signal: AbortSignal): Promise<z.output<T>> {
      return bodyAs(schema, call, await ask(call, signal));
    },
  };
}

/** GitHub also says 403 when it limits calls: with a `Retry-After`, with no calls left, or only in words (docs, rate limits). */
function throttles({ status, headers, text }: Answer): boolean {
  if (status === 429 || (status === 503 && headers.has('Retry-After'))) return true;
  const isLimit = headers.has('Retry-After') || headers.get('X-RateLimit-Remaining') === '0' || /secondary rate limit/i.test(text);
  return status === 403 && isLimit;
}

/** `secrets`: removed from every text of the service. */
function judge({ status, headers, text, bytes }: Answer, secrets: readonly string[]): Answered & { readonly isStrange: boolean } {
  const isJson = /^application\/([\w.-]+\+)?json\b/i.test(headers.get('Content-Type') ?? '');
  const body = isJson ? jsonOf(text) : undefined;
  const ok = status >= 200 && status < 300;
  const type = headers.get('Content-Type')?.split(';')[0]?.trim() ?? '';
  const unread = body === undefined && text !== '' ? ` with ${type === 'text/html' ? 'a page' : type || 'an unknown body'}` : '';
  const words = secrets.reduce((said, secret) => (secret === '' ? said : said.replaceAll(secret, '[token]')), wordsOf(body));
  // GitHub names the permission that a call needs.
  const needs = status === 403 ? (headers.get('X-Accepted-GitHub-Permissions') ?? '') : '';
  const why = `${status}${words === '' ? unread : `: ${brief(words)}`}${needs === '' ? '' : `; needs ${brief(needs)}`}`;
  const isRedirect = status >= 300 && status < 400;
  const isStrange = isRedirect || (text !== '' && body === undefined) || (status === 404 && body === undefined);
  return { status, ok, body, bytes, headers, why, isStrange };
}

/** What forges call their words about a refusal. */
function wordsOf(body: unknown): string {
  if (typeof body !== 'object' || body === null) return '';
  const told = ['message', 'error_description', 'error'].map((name) => (body as Readonly<Record<string, unknown>>)[name]);
  return told.find((one) => typeof one === 'string') ?? '';
}

/** One request. `doing`: in words, for messages: `Cannot <doing> …`. */
export type RestRequest = Outgoing & { readonly url: string; readonly doing: string };

/** @throws OnejobError E_CI_UNREACHABLE without a whole answer, E_CI_ANSWER when it is too large; the reason of `signal` */
export async function exchange({ doing, ...request }: RestRequest, parts: ExchangeParts, signal: AbortSignal): Promise<Answer> {
  try {
    return await over(request, parts, signal);
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error;
    const { why, code, hint } = error.about;
    const place = shown(request.url);
    if (error.isTooLarge) {
      const message = `Cannot ${doing}: ${place} sent more than ${parts.most / 1024 / 1024} MiB.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint, retry: true });
    }
    // The action comes last: "cannot find pool" would read as a wrong name.
    const message = `The service cannot be reached at ${place}: ${why}${code === '' ? '' : ` (${code})`}, so onejob cannot ${doing} now.`;
    throw new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
  }
}
