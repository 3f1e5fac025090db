/** Why a service gave no answer, for people. Never the text of an error, which may quote a request. */

export interface Why {
  /** The end of a sentence. */
  readonly why: string;
  /** The system's error code; empty without one. */
  readonly code: string;
  readonly hint: string;
}

export const proxyAnswered = (status: number | string): string => `the proxy in front of it answered ${status}`;

export const networkHint =
  'Look at the address and the network; behind a proxy set NODE_USE_ENV_PROXY=1 and HTTPS_PROXY for onejob.';
export const proxyHint = 'Look at HTTPS_PROXY, with user and password where the proxy wants them.';
const certificateHint =
  'For a certificate authority of your own set NODE_EXTRA_CA_CERTS=/path/ca.pem for onejob; ' +
  'else look at the clock of this host, and at who answers there.';

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
export function whyUnreachable(error: unknown): Why {
  const { code, message } = innermost(error);
  const status = /Proxy response \((\d+)\)/.exec(message)?.[1];
  if (status !== undefined) return { why: proxyAnswered(status), code: '', hint: proxyHint };
  if (/CERT|SELF_SIGNED|UNABLE_TO_(VERIFY|GET_ISSUER)|ALTNAME/.test(code))
    return { why: 'its certificate is not accepted', code, hint: certificateHint };
  const known = reasons[code] ?? (code.startsWith('ERR_SSL_') ? 'it does not speak TLS there' : 'the request failed');
  return { why: known, code, hint: networkHint };
}

/** Node wraps the system's error in one or two others. */
export function innermost(error: unknown): { readonly code: string; readonly message: string } {
  let found = { code: '', message: '' };
  for (let one = error, depth = 0; one instanceof Error && depth < 5; depth += 1) {
    const code = 'code' in one && typeof one.code === 'string' ? one.code : found.code;
    found = { code, message: one.message };
    one = one instanceof AggregateError ? (one.cause ?? one.errors[0]) : one.cause;
  }
  return found;
}
