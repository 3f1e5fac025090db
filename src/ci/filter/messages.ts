/** What of calls and answers goes through, in both directions: which headers, and which bodies. */
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

/**
 * Headers with which a job could look like somebody else, or have its call read as another. The filter has answered `expect`, and
 * frames the body itself.
 */
export const notFromAgents: ReadonlySet<string> = new Set([
  'authorization',
  'content-length',
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

export const notToAgents: ReadonlySet<string> = new Set(['set-cookie', 'alt-svc', 'strict-transport-security']);

/** Of the others a body is refused: Node's client would write it without a word of where it ends, as if another call followed. */
const withBody: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

/** Why a call's body does not go through, for people; null when it does. What it says of its own length is all that is read. */
export function bodyProblem({ method = '', headers }: IncomingMessage): string | null {
  const { 'transfer-encoding': encoding, 'content-length': length } = headers;
  if (encoding !== undefined && encoding.toLowerCase() !== 'chunked')
    return 'its body has an encoding that the filter does not forward';
  if (length !== undefined && !/^(0|[1-9]\d*)$/.test(length)) return 'the length of its body is invalid';
  const hasBody = encoding !== undefined || (length !== undefined && length !== '0');
  return hasBody && !withBody.has(method) ? `a ${method} must not have a body` : null;
}

/** Headers as they go on, without those of the connection. Names are in lower case, values stay as they came, repeated ones too. */
export function headersWithout(
  without: ReadonlySet<string>,
  headers: Readonly<Record<string, string | string[] | undefined>>,
): OutgoingHttpHeaders {
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

/** Far deeper than anything an agent says. */
const deepest = 64;

/**
 * JSON that a job may have written. Null for anything else, and for JSON so deep that writing it again, which is recursive, would
 * fail.
 */
export function foreignJson(body: Buffer): unknown {
  const text = body.toString();
  if (isDeep(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A loop, since an expression would begin anew at each quote of a text that is never closed. */
function isDeep(text: string): boolean {
  let depth = 0;
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (char === '"') isQuoted = !isQuoted;
    else if (isQuoted && char === '\\') at += 1;
    else if (!isQuoted && (char === '[' || char === '{')) depth += 1;
    else if (!isQuoted && (char === ']' || char === '}')) depth -= 1;
    if (depth > deepest) return true;
  }
  return false;
}
