/**
 * One request and its whole answer, in bounded time and size. Redirects are never followed, so that a credential goes to no other
 * host. Errors of fetch do not leave this file, since they may quote a header.
 */
import { type Clock, deadline } from '../core/clock.ts';
import { innermost, networkHint, type Why, whyUnreachable } from './unreachable.ts';

export interface Outgoing {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly url: string | URL;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
}

export type Answer = { readonly status: number; readonly headers: Headers; readonly text: string };

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
    return { status: answer.status, headers: answer.headers, text: await textOf(answer, most) };
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof NoAnswer) throw error;
    throw new NoAnswer(limit.passed ? late(timeout, hasBegun) : reason(error, url));
  }
}

async function textOf(answer: Response, most: number): Promise<string> {
  if (answer.body == null) return answer.text();
  const pieces: Uint8Array[] = [];
  let size = 0;
  for await (const piece of answer.body) {
    size += piece.byteLength;
    if (size > most) {
      const why = `it answered more than ${most / 1024 / 1024} MiB`;
      throw new NoAnswer({ why, code: '', hint: 'See what answers at that address.' }, true);
    }
    pieces.push(piece);
  }
  return new TextDecoder().decode(Buffer.concat(pieces));
}

const late = (ms: number, hasBegun: boolean): Why => ({
  why: hasBegun ? `the answer stopped half-way and was given up after ${ms / 1000} s` : `no answer within ${ms / 1000} s`,
  code: '',
  hint: networkHint,
});

/** Why a request got no answer; never quotes the request. */
function reason(error: unknown, url: string | URL): Why {
  if (innermost(error).message !== 'bad port') return whyUnreachable(error);
  return {
    why: `port ${URL.parse(String(url))?.port} is kept for other protocols, and no HTTP client connects to it`,
    code: '',
    hint: 'Write the port on which the service listens into the address.',
  };
}

/** Text of a service as one line of at most 300 characters, without control characters. */
export function brief(text: string): string {
  const line = text.replace(/[\s\p{Cc}]+/gu, ' ').trim();
  return line.length > 300 ? `${line.slice(0, 299)}…` : line;
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
