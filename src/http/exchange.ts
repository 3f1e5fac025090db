/**
 * One request and its whole answer, in bounded time and size. Redirects are never followed, so that a credential goes to no other
 * host. Errors of fetch do not leave this file, since they may quote a header.
 */
import { type Clock, deadline } from '../core/clock.ts';

export interface Outgoing {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly url: string | URL;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array<ArrayBuffer>;
}

/** `bytes`: of the body that `text` is. */
export type Answer = { readonly status: number; readonly headers: Headers; readonly text: string; readonly bytes: Buffer };

export interface ExchangeParts {
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  /** ms for one request, from the first byte sent to the last received. */
  readonly timeout: number;
  /** Bytes of a body, unpacked. */
  readonly most: number;
}

/** No complete answer came. Its texts contain no secret. */
export class NoAnswer extends Error {
  readonly about: Why;
  /** The answer is larger than allowed. */
  readonly isTooLarge: boolean;

  constructor(about: Why, isTooLarge = false) {
    super(about.why);
    this.about = about;
    this.isTooLarge = isTooLarge;
  }
}

/** @throws NoAnswer, and the reason of `signal` */
export async function exchange({ url, ...request }: Outgoing, parts: ExchangeParts, signal: AbortSignal): Promise<Answer> {
  signal.throwIfAborted();
  const { clock, timeout, most } = parts;
  using limit = deadline(clock, timeout, signal);
  let hasBegun = false;
  try {
    const answer = await parts.fetch(url, { ...request, redirect: 'manual', signal: limit.signal });
    hasBegun = true;
    const bytes = await wholeOf(answer, most);
    return { status: answer.status, headers: answer.headers, text: new TextDecoder().decode(bytes), bytes };
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof NoAnswer) throw error;
    const seconds = `${timeout / 1000} s`;
    const cut = 'the answer stopped half-way and was given up after';
    throw new NoAnswer(limit.passed ? whyOf(hasBegun ? `${cut} ${seconds}` : `no answer within ${seconds}`) : reason(error, url));
  }
}

async function wholeOf(answer: Response, most: number): Promise<Buffer> {
  if (answer.body == null) return Buffer.from(await answer.text());
  const why = whyOf(`it answered more than ${most / 1024 / 1024} MiB`, 'See what answers at that address.');
  return bytesOf(answer.body, most, () => new NoAnswer(why, true));
}

/** All of a stream. @throws what `tooLarge` returns, once it has more than `most` bytes */
export async function bytesOf(stream: AsyncIterable<Uint8Array>, most: number, tooLarge: () => Error): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  for await (const piece of stream) {
    size += piece.byteLength;
    if (size > most) throw tooLarge();
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

/** Why a request got no answer; never quotes the request. */
function reason(error: unknown, url: string | URL): Why {
  if (innermost(error).message !== 'bad port') return whyUnreachable(error);
  const why = `port ${URL.parse(String(url))?.port} is kept for other protocols, and no HTTP client connects to it`;
  return whyOf(why, 'Write the port on which the service listens into the address.');
}

/** Text of a service as one line of at most 300 characters, without control characters. */
export function brief(text: string): string {
  const line = text.replace(/[\s\p{Cc}]+/gu, ' ').trim();
  return line.length > 300 ? `${line.slice(0, 299)}…` : line;
}

/** An address without its query and fragment, and without user and password: all of them may contain a secret. */
export function shown(url: string): string {
  const found = URL.parse(url);
  return found === null ? 'an invalid address' : found.origin + found.pathname;
}

/** Seconds above which `RateLimit-Reset` is a date (since the epoch) instead of a duration. */
const longestReset = 100_000_000;

/**
 * ms to wait that a service asks for, else null: `Retry-After` (RFC 9110, 10.2.3), also after a success, else the reset of an
 * exhausted rate limit. `wall`: ms since the epoch.
 */
export function asksFor(headers: Headers, wall: number): number | null {
  const after = headers.get('Retry-After')?.trim() ?? '';
  // Both are times of the service's clock, which may differ.
  const date = Date.parse(headers.get('Date') ?? '');
  const theirs = Number.isNaN(date) ? wall : date;
  if (/^\d+(\.\d+)?$/.test(after)) return Number(after) * 1000;
  const day = Date.parse(after);
  if (after !== '' && !Number.isNaN(day)) return Math.max(0, day - theirs);
  const limit = (what: string): number =>
    Number.parseFloat(headers.get(`X-RateLimit-${what}`) ?? headers.get(`RateLimit-${what}`) ?? '');
  const reset = limit('Reset') * 1000;
  if (!(limit('Remaining') <= 0) || Number.isNaN(reset)) return null;
  return Math.max(0, reset > longestReset * 1000 ? reset - theirs : reset);
}

/** Why a service gave no answer, for people. Never the text of an error, which may quote a request. */
export interface Why {
  /** The end of a sentence. */
  readonly why: string;
  /** The system's error code; empty without one. */
  readonly code: string;
  readonly hint: string;
}

/** In a pod, a policy is the usual reason, and looks as if nothing listens. */
export function networkHint({ KUBERNETES_SERVICE_HOST: inPod }: Readonly<NodeJS.ProcessEnv> = process.env): string {
  const look =
    inPod === undefined ? 'the address and the network' : 'the address, and whether the NetworkPolicy of onejob allows its port';
  return `Look at ${look}; behind a proxy set NODE_USE_ENV_PROXY=1 and HTTPS_PROXY for onejob.`;
}

const proxyHint = 'Look at HTTPS_PROXY, with user and password where the proxy wants them.';
const certificateHint =
  'For a certificate authority of your own set NODE_EXTRA_CA_CERTS=/path/ca.pem for onejob; ' +
  'else look at the clock of this host, and at who answers there.';

export const whyOf = (why: string, hint = networkHint(), code = ''): Why => ({ why, code, hint });

export const proxyWhy = (status: number | string): Why => whyOf(`the proxy in front of it answered ${status}`, proxyHint);

const reasons: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens there',
  ENOTFOUND: 'the name of its host is not known',
  EAI_AGAIN: 'no name server answers',
  ECONNRESET: 'the connection was cut',
  UND_ERR_SOCKET: 'the connection was cut',
  EPIPE: 'the connection was cut',
  ETIMEDOUT: 'no connection in time',
  UND_ERR_CONNECT_TIMEOUT: 'no connection in time',
  EHOSTUNREACH: 'there is no way to its host',
  ENETUNREACH: 'there is no way to its network',
  EPROTO: 'it does not speak TLS there',
};

/** For an error of `node:http` or `fetch`. */
function whyUnreachable(error: unknown): Why {
  const { code, message } = innermost(error);
  const status = /Proxy response \((\d+)\)/.exec(message)?.[1];
  if (status !== undefined) return proxyWhy(status);
  if (/CERT|SELF_SIGNED|UNABLE_TO_(VERIFY|GET_ISSUER)|ALTNAME/.test(code))
    return whyOf('its certificate is not accepted', certificateHint, code);
  const known = reasons[code] ?? (code.startsWith('ERR_SSL_') ? 'it does not speak TLS there' : 'the request failed');
  return whyOf(known, undefined, code);
}

/** Node wraps the system's error in one or two others. */
function innermost(error: unknown): { readonly code: string; readonly message: string } {
  let found = { code: '', message: '' };
  for (let one = error, depth = 0; one instanceof Error && depth < 5; depth += 1) {
    const code = 'code' in one && typeof one.code === 'string' ? one.code : found.code;
    found = { code, message: one.message };
    one = one instanceof AggregateError ? (one.cause ?? one.errors[0]) : one.cause;
  }
  return found;
}
