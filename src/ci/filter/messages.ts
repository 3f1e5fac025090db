/** What of calls and answers goes through, in both directions: which headers, and which bodies. */
import type { IncomingMessage, OutgoingHttpHeaders } from 'node:http';
import { jsonOf } from '../../system/json.ts';

/** For one connection only (RFC 9110, 7.6.1), or set again by each sender. */
const ofTheConnection = headers(
  'connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade',
);

/**
 * Headers with which a job could look like somebody else, or have its call read as another. The filter has answered `expect`, and
 * frames the body itself.
 */
export const notFromAgents = headers(
  'authorization content-length expect forwarded host x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto ' +
    'x-http-method x-http-method-override x-method-override x-original-url x-real-ip x-rewrite-url',
);

export const notToAgents = headers('set-cookie alt-svc strict-transport-security');

function headers(names: string): ReadonlySet<string> {
  return new Set(names.split(' '));
}

/** Other methods with a body are refused: Node's client would send it without its length, as if another call followed. */
const withBody: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

/** Why a call's body is refused, for people; null: it is not. Only the headers are read. */
export function bodyProblem({ method = '', headers }: IncomingMessage): string | null {
  const { 'transfer-encoding': encoding, 'content-length': length } = headers;
  if (encoding !== undefined && encoding.toLowerCase() !== 'chunked')
    return 'its body has an encoding that the filter does not forward';
  if (length !== undefined && !/^(0|[1-9]\d*)$/.test(length)) return 'the length of its body is invalid';
  const hasBody = encoding !== undefined || (length !== undefined && length !== '0');
  return hasBody && !withBody.has(method) ? `a ${method} must not have a body` : null;
}

/** Headers to forward, without those of the connection. Names are in lower case; repeated values stay. */
export function headersWithout(
  without: ReadonlySet<string>,
  headers: Readonly<Record<string, string | string[] | undefined>>,
): OutgoingHttpHeaders {
  const connection = [headers.connection ?? ''].flat().join(',');
  const named = new Set(connection.split(',').map((name) => name.trim().toLowerCase()));
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, values]) => {
      if (values === undefined || ofTheConnection.has(name) || without.has(name)) return [];
      // A length stays one even if its sender calls it the connection's.
      if (named.has(name) && name !== 'content-length') return [];
      return [[name, Array.isArray(values) && values.length === 1 ? values[0] : values]];
    }),
  );
}

/** Far deeper than any JSON of an agent. */
const deepest = 64;

/** JSON of a job. Null for anything else, and for JSON so deep that writing it again, which is recursive, would fail. */
export function foreignJson(body: Buffer): unknown {
  const text = body.toString();
  return isDeep(text) ? null : (jsonOf(text) ?? null);
}

/** A loop: an expression would backtrack at each quote of an unterminated text. */
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
