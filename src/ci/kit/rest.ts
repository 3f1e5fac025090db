/**
 * Calls of a service's REST API with a token. Each ends in time, follows no redirect, and carries the token to the configured address
 * only. A call that may have been carried out is not repeated. Only JSON says that something is absent: a proxy may answer with any page.
 */
import type { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import { createSend, invalidPart, jsonIn, mediaType, type Send } from '../../http/api.ts';
import { type Answer, brief, type ExchangeParts, exchange, NoAnswer, type Outgoing, shown } from '../../http/exchange.ts';
import { createThrottle, type Throttle } from '../../http/throttle.ts';

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

/** Bytes of an answer. */
const most = 8 * 1024 * 1024;
/** How many answers of repeated calls are remembered. */
const remembered = 64;
/** ms until a refused credential is sent again. */
const refusedFor = 600_000;

/** Which hint an error has, and whether another try may help. */
const kinds = {
  E_CI_CREDENTIAL: ['credential', false],
  E_CI_DENIED: ['denied', false],
  E_CI_UNREACHABLE: [null, true],
  E_CI_ANSWER: ['answer', true],
} as const;

/** Every call throws OnejobError E_CI_CREDENTIAL, E_CI_DENIED, E_CI_THROTTLED, E_CI_UNREACHABLE, E_CI_ANSWER, E_SECRET. */
export class Rest {
  readonly #parts: RestParts;
  readonly #timeout: number;
  readonly #throttle: Throttle;
  readonly #over: Send<RestCall>;
  /** Answers of repeated calls, by address. */
  readonly #kept = new Map<string, { readonly tag: string; readonly answered: Answered }>();
  #refused: { readonly header: string; readonly error: OnejobError; readonly until: number } | null = null;

  constructor(parts: RestParts) {
    this.#parts = parts;
    const { base, clock, fetch, version, timeout = 30_000 } = parts;
    this.#timeout = timeout;
    this.#throttle = createThrottle(clock, shown(base));
    this.#over = createSend({ clock, fetch, timeout, most, version }, (reason, { doing }, { url }) =>
      noAnswer(reason, doing, url, most),
    );
  }

  async ask(call: RestCall, signal: AbortSignal): Promise<Answered> {
    const deadline = this.#parts.clock.now() + this.#timeout;
    for (let refusals = 0; ; ) {
      await this.#throttle.ready(call.doing, deadline, signal);
      const header = call.signedBy === undefined ? await this.#parts.authorization(signal) : null;
      if (this.#refused !== null && this.#refused.header === header && this.#parts.clock.now() < this.#refused.until)
        throw this.#refused.error;
      const before = call.isRepeated === true ? this.#kept.get(this.#urlOf(call)) : undefined;
      const answer = await this.#send(call, header, before?.tag, signal);
      const found = judge(answer, [...(header ?? '').split(' ').slice(1), ...Object.values(call.signedBy ?? {})]);
      const { status, why } = found;
      const isThrottled = throttles(answer);
      this.#throttle.heard(isThrottled ? { ...answer, status: 429 } : answer, why);
      if (isThrottled) {
        // After a 503, a call that changes something may have been carried out.
        if (status !== 503 || call.method === 'GET') continue;
        throw this.#error(call, 'E_CI_UNREACHABLE', `answered ${why}`);
      }
      if (call.refusesWith500 === true && status === 500 && found.body !== undefined) return found;
      const isAnswer = found.ok || ((status === 401 || status === 403) && found.body !== undefined);
      if (call.onlyStatus === true && isAnswer) return found;
      if (status === 401) {
        refusals += 1;
        if (header !== null && (await this.#parts.again?.(header, refusals, answer.headers, signal)) === true) continue;
        const error = this.#error(call, 'E_CI_CREDENTIAL', `refuses the credential (${why})`);
        if (header !== null) this.#refused = { header, error, until: this.#parts.clock.now() + refusedFor };
        throw error;
      }
      if (header !== null && status < 500) this.#refused = null;
      if (status === 403) throw this.#error(call, 'E_CI_DENIED', `does not allow it (${why})`);
      if (status === 407 || status >= 500) throw this.#error(call, 'E_CI_UNREACHABLE', `answered ${why}`);
      if (before !== undefined && status === 304) {
        this.#keep(this.#urlOf(call), before.tag, before.answered);
        return before.answered;
      }
      if (found.isStrange) throw this.#error(call, 'E_CI_ANSWER', `answered ${why}`);
      const tag = found.headers.get('ETag');
      if (call.isRepeated === true && found.ok && tag !== null) this.#keep(this.#urlOf(call), tag, found);
      return found;
    }
  }

  /** The error of an answer that the caller did not expect. */
  unexpected(call: RestCall, { why }: Answered) {
    return this.#error(call, 'E_CI_ANSWER', `answered ${why}`);
  }

  /** The body of an answer that has to be a success. @throws the error of `unexpected` */
  expected<T extends z.ZodType>(schema: T, call: RestCall, answered: Answered): z.output<T> {
    const found = schema.safeParse(answered.body);
    if (!answered.ok || !found.success) throw this.unexpected(call, answered);
    return found.data;
  }

  async read<T extends z.ZodType>(schema: T, call: Omit<RestCall, 'method'>, signal: AbortSignal): Promise<z.output<T>> {
    const get = { method: 'GET', ...call } as const;
    return this.#bodyAs(schema, get, await this.ask(get, signal));
  }

  /** As `read`, but returns null when the service answers 404. */
  async find<T extends z.ZodType>(schema: T, call: Omit<RestCall, 'method'>, signal: AbortSignal): Promise<z.output<T> | null> {
    const get = { method: 'GET', ...call } as const;
    const answered = await this.ask(get, signal);
    return answered.status === 404 ? null : this.#bodyAs(schema, get, answered);
  }

  /** Sends once, and reads the answer. */
  async send<T extends z.ZodType>(schema: T, call: RestCall, signal: AbortSignal): Promise<z.output<T>> {
    return this.#bodyAs(schema, call, await this.ask(call, signal));
  }

  #error({ doing }: RestCall, code: keyof typeof kinds, why: string): OnejobError {
    const message = `Cannot ${doing}: ${shown(this.#parts.base)} ${why}`;
    const [hint, retry] = kinds[code];
    const options = { hint: hint === null ? 'onejob tries again.' : this.#parts.hints[hint], retry };
    return new OnejobError(code, /[.!?]$/.test(message) ? message : `${message}.`, options);
  }

  #urlOf({ path, query }: RestCall): string {
    const asked = new URLSearchParams(query).toString();
    return `${this.#parts.base}${path}${asked === '' ? '' : `?${asked}`}`;
  }

  /** Sends one request, signed in. */
  #send(call: RestCall, header: string | null, tag: string | undefined, signal: AbortSignal): Promise<Answer> {
    const { method, body: json, proto, text } = call;
    const headers = {
      ...(header !== null && { Authorization: header }),
      Accept: proto === undefined ? (this.#parts.accept ?? 'application/json') : 'application/proto',
      ...this.#parts.headers,
      ...call.headers,
      ...call.signedBy,
      ...(tag !== undefined && { 'If-None-Match': tag }),
      ...(text !== undefined && { 'Content-Type': 'text/plain' }),
      ...(proto !== undefined && { 'Content-Type': 'application/proto' }),
    };
    return this.#over({ method, url: this.#urlOf(call), headers, json, body: proto ?? text }, call, signal);
  }

  #keep(url: string, tag: string, answered: Answered): void {
    this.#kept.delete(url);
    this.#kept.set(url, { tag, answered });
    for (const old of [...this.#kept.keys()].slice(0, -remembered)) this.#kept.delete(old);
  }

  #bodyAs<T extends z.ZodType>(schema: T, call: RestCall, answered: Answered): z.output<T> {
    if (!answered.ok) throw this.#error(call, 'E_CI_ANSWER', `answered ${answered.why}`);
    const found = schema.safeParse(answered.body);
    if (found.success) return found.data;
    const why = `sent an unexpected response: ${invalidPart(found.error, 'its response')} is invalid`;
    throw this.#error(call, 'E_CI_ANSWER', why);
  }
}

/** GitHub also says 403 when it limits calls: with a `Retry-After`, with no calls left, or only in words (docs, rate limits). */
function throttles({ status, headers, text }: Answer): boolean {
  if (status === 429 || (status === 503 && headers.has('Retry-After'))) return true;
  const isLimit = headers.has('Retry-After') || headers.get('X-RateLimit-Remaining') === '0' || /secondary rate limit/i.test(text);
  return status === 403 && isLimit;
}

/** `secrets`: removed from every text of the service. */
function judge(answer: Answer, secrets: readonly string[]): Answered & { readonly isStrange: boolean } {
  const { status, headers, text, bytes } = answer;
  const body = jsonIn(answer);
  const ok = status >= 200 && status < 300;
  const unread = body === undefined && text !== '' ? ` with ${mediaType(answer, 'an unknown body')}` : '';
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
export async function sendOnce({ doing, ...request }: RestRequest, parts: ExchangeParts, signal: AbortSignal): Promise<Answer> {
  try {
    return await exchange(request, parts, signal);
  } catch (error) {
    throw error instanceof NoAnswer ? noAnswer(error, doing, request.url, parts.most) : error;
  }
}

/** The error of a call of `url` that got no whole answer. `most`: bytes that an answer may have. */
export function noAnswer({ about, isTooLarge }: NoAnswer, doing: string, url: string | URL, most: number): OnejobError {
  const { why, code, hint } = about;
  const place = shown(String(url));
  if (isTooLarge) {
    const message = `Cannot ${doing}: ${place} sent more than ${most / 1024 / 1024} MiB.`;
    return new OnejobError('E_CI_ANSWER', message, { hint, retry: true });
  }
  // The action comes last: "cannot find pool" would read as a wrong name.
  const message = `The service cannot be reached at ${place}: ${why}${code === '' ? '' : ` (${code})`}, so onejob cannot ${doing} now.`;
  return new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
}
