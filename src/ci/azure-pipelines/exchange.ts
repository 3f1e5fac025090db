/**
 * One request and its whole answer, in bounded time and size. Redirects are never followed: a credential goes to no host
 * but the one it is meant for. What fetch throws is left behind here, since it may quote a header.
 */
import type { Clock } from '../../core/clock.ts';
import { OnejobError } from '../../errors.ts';
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

const network = 'Look at the address and the network; behind a proxy set NODE_USE_ENV_PROXY=1 and HTTPS_PROXY for onejob.';
const certificate =
  'For a certificate authority of your own set NODE_EXTRA_CA_CERTS=/path/ca.pem for onejob; ' +
  'else look at the clock of this host, and at who answers there.';

const late = (ms: number, hasBegun: boolean): Reason => ({
  why: hasBegun ? `the answer stopped half-way and was given up after ${ms / 1000} s` : `no answer within ${ms / 1000} s`,
  hint: network,
});

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

/** What kept a request from its answer, in words and with the system's own word; never the text of the request. */
function reason(error: unknown, url: string): Reason {
  const { code, message } = innermost(error);
  const proxy = /Proxy response \((\d+)\)/.exec(message)?.[1];
  if (proxy !== undefined) {
    return {
      why: `the proxy before it answered ${proxy}`,
      hint: 'Look at HTTPS_PROXY, with user and password where the proxy wants them.',
    };
  }
  if (message === 'bad port') {
    return {
      why: `port ${portOf(url)} is kept for other protocols, and no HTTP client connects to it`,
      hint: 'Write the port on which the service listens into the address.',
    };
  }
  if (/CERT|SELF_SIGNED|UNABLE_TO_(VERIFY|GET_ISSUER)|ALTNAME/.test(code)) {
    return { why: `its certificate is not accepted (${code})`, hint: certificate };
  }
  const known = reasons[code] ?? (code.startsWith('ERR_SSL_') ? 'it does not speak TLS there' : 'the request failed');
  return { why: code === '' ? known : `${known} (${code})`, hint: network };
}

function portOf(url: string): string {
  return URL.parse(url)?.port ?? '';
}

/** Node packs the system's error into one or two others. */
function innermost(error: unknown): { code: string; message: string } {
  let found: { code: string; message: string } = { code: '', message: '' };
  for (let one = error, depth = 0; one instanceof Error && depth < 5; depth += 1) {
    const code = 'code' in one && typeof one.code === 'string' ? one.code : found.code;
    found = { code, message: one.message };
    one = one instanceof AggregateError ? (one.cause ?? one.errors[0]) : one.cause;
  }
  return found;
}

function unreachable({ doing, url }: Outgoing, { why, hint }: Reason): OnejobError {
  // What was to be done comes last: "cannot find pool" would read as a wrong name.
  const message = `The service cannot be reached at ${shown(url)}: ${why}, so onejob cannot ${doing} now.`;
  return new OnejobError('E_CI_UNREACHABLE', message, { hint, retry: true });
}
