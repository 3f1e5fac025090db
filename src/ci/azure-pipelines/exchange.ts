/**
 * One request and its whole answer, in bounded time and size. Redirects are never followed: a credential goes to no host
 * but the one it is meant for. What fetch throws is left behind here, since it may quote a header.
 */
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
import { innermost, networkHint, whyUnreachable } from '../unreachable.ts';
import { shown } from './address.ts';

export interface Outgoing {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  /** In words, for messages: `Cannot <doing> …`. */
  readonly doing: string;
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

export interface Exchange {
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  /** ms for one request, from the first byte sent to the last received. */
  readonly timeout: number;
  /** Bytes of a body, unpacked. */
  readonly most: number;
}

/**
 * @throws OnejobError E_CI_UNREACHABLE when no whole answer came, E_CI_ANSWER when it is too large; and what `signal` was
 * aborted with
 */
export async function exchange(request: Outgoing, parts: Exchange, signal: AbortSignal): Promise<Answer> {
  signal.throwIfAborted();
  const { clock, timeout } = parts;
  const ended = new AbortController();
  const stop = () => ended.abort();
  signal.addEventListener('abort', stop, { once: true });
  let isLate = false;
  const cancel = clock.after(timeout, () => {
    isLate = true;
    stop();
  });
  let began: Response | null = null;
  try {
    const { method, url, headers, body } = request;
    const sent = { method, headers, redirect: 'manual', signal: ended.signal, ...(body !== undefined && { body }) } as const;
    began = await parts.fetch(url, sent);
    return { status: began.status, headers: began.headers, text: await bodyOf(began, parts.most, request) };
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof OnejobError) throw error;
    throw unreachable(request, isLate ? late(timeout, began !== null) : reason(error, request.url));
  } finally {
    cancel();
    signal.removeEventListener('abort', stop);
    // Ends what is left of a body that nobody wants.
    ended.abort();
  }
}

async function bodyOf(answer: Response, most: number, { doing, url }: Outgoing): Promise<string> {
  if (answer.body === null) return '';
  const pieces: Uint8Array[] = [];
  let size = 0;
  for await (const piece of answer.body) {
    size += piece.byteLength;
    if (size > most) {
      const message = `Cannot ${doing}: ${shown(url)} answered more than ${most / 1024 / 1024} MiB.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint: 'See what answers at that address.', retry: true });
    }
    pieces.push(piece);
  }
  return new TextDecoder().decode(Buffer.concat(pieces));
}

interface Reason {
  readonly why: string;
  readonly hint: string;
}

const late = (ms: number, hasBegun: boolean): Reason => ({
  why: hasBegun ? `the answer stopped half-way and was given up after ${ms / 1000} s` : `no answer within ${ms / 1000} s`,
  hint: networkHint,
});

/** What kept a request from its answer, in words and with the system's own word; never the text of the request. */
function reason(error: unknown, url: string): Reason {
  if (innermost(error).message === 'bad port') {
    return {
      why: `port ${portOf(url)} is kept for other protocols, and no HTTP client connects to it`,
      hint: 'Write the port on which the service listens into the address.',
    };
  }
  const { why, code, hint } = whyUnreachable(error);
  return { why: code === '' ? why : `${why} (${code})`, hint };
}

function portOf(url: string): string {
  return URL.parse(url)?.port ?? '';
}

function unreachable({ doing, url }: Outgoing, { why, hint }: Reason): OnejobError {
  // What was to be done comes last: "cannot find pool" would read as a wrong name.
  const message = `The service cannot be reached at ${shown(url)}: ${why}, so onejob cannot ${doing} now.`;
  return new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
}
