/** Which headers go through, in both directions. Names are in lower case, values stay as they came, repeated ones too. */
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';

/** Between two neighbours only (RFC 9110, 7.6.1), or said anew by whoever sends on. */
const ofTheConnection: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** What a job could use to look like somebody else, or to have its call read as another; `expect` was answered here. */
const notFromAgents: ReadonlySet<string> = new Set([
  'authorization',
  'expect',
  'forwarded',
  'host',
  'x-forwarded-for',
  'x-forwarded-host',
  'x-forwarded-port',
  'x-forwarded-proto',
  'x-http-method',
  'x-http-method-override',
  'x-method-override',
  'x-original-url',
  'x-real-ip',
  'x-rewrite-url',
]);

const notToAgents: ReadonlySet<string> = new Set(['set-cookie', 'alt-svc', 'strict-transport-security']);

/** Of the others a body is refused: Node's client would write it without a word of where it ends, as if another call followed. */
const withBody: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

/** Why a call's body does not go through, for people; null when it does. What it says of its own length is all that is read. */
export function bodyProblem({ method = '', headers }: IncomingMessage): string | null {
  const { 'transfer-encoding': encoding, 'content-length': length } = headers;
  if (encoding !== undefined && encoding.toLowerCase() !== 'chunked') return 'its body is encoded in a way that is not forwarded';
  if (length !== undefined && !/^(0|[1-9]\d*)$/.test(length)) return 'the length of its body is not one';
  const hasBody = encoding !== undefined || (length !== undefined && length !== '0');
  return hasBody && !withBody.has(method) ? `a ${method} has no body` : null;
}

/** Headers of a call as it goes to the service. The caller adds what frames its body, which is never left to the sender, `host` and `authorization`. */
export function requestHeaders(request: IncomingMessage): OutgoingHttpHeaders {
  const { 'content-length': _, ...headers } = kept(request.headersDistinct, notFromAgents);
  return headers;
}

/** Headers of an answer as it goes to the agent. */
export function answerHeaders(headers: Headers): OutgoingHttpHeaders {
  return kept(headers, notToAgents);
}

type Headers = Readonly<Record<string, string | string[] | undefined>>;

function kept(headers: Headers, without: ReadonlySet<string>): OutgoingHttpHeaders {
  const connection = [headers.connection ?? ''].flat().join(',');
  const named = new Set(connection.split(',').map((name) => name.trim().toLowerCase()));
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, values]) => {
      if (values === undefined || ofTheConnection.has(name) || without.has(name)) return [];
      // A length that its own sender calls the connection's is still the length of what follows.
      if (named.has(name) && name !== 'content-length') return [];
      return [[name, Array.isArray(values) && values.length === 1 ? values[0] : values]];
    }),
  );
}
