/** Connections to services and to where artifacts go, and what can be said of one that fails. */
import * as http from 'node:http';
import * as https from 'node:https';
import { type Proxies, proxyFor } from '../../../config/proxies.ts';
import { proxiedAgents } from './proxied.ts';

/** Keeps connections while they are of use, for one agent: what goes wrong in one reaches nobody else. */
export interface Upstreams {
  /** Once closed, each call has a connection for itself. */
  open(target: Target, signal: AbortSignal): http.ClientRequest;
  close(): void;
}

export interface Target {
  readonly method: string;
  /** `http:` or `https:`, with the port; its path is not used. */
  readonly origin: URL;
  /** Byte for byte, with its query. */
  readonly path: string;
  readonly headers: http.OutgoingHttpHeaders;
}

export interface UpstreamsParts {
  readonly proxies: Proxies;
  /** How unused connections are kept. */
  readonly keeping: Pick<http.AgentOptions, 'keepAliveMsecs' | 'maxFreeSockets' | 'scheduling' | 'timeout'>;
  /** ms in which a proxy must have led to an address; default 30 s. */
  readonly patience?: number;
}

export function createUpstreams({ proxies, keeping, patience }: UpstreamsParts): Upstreams {
  let agents = proxiedAgents(proxies, { ...keeping, keepAlive: true }, patience);
  return {
    open({ method, origin, path, headers }, signal) {
      const { protocol, hostname, port, host } = origin;
      const isSecure = protocol === 'https:';
      const proxy = isSecure ? null : proxyFor(origin, proxies);
      const secret = proxy?.authorization ?? null;
      const givenUp = new AbortController();
      const options = {
        method,
        hostname: hostname.replace(/^\[(.*)\]$/, '$1'),
        ...(port === '' ? {} : { port }),
        path: proxy === null ? path : `http://${host}${path}`,
        headers: { ...headers, host, ...(secret !== null && { 'proxy-authorization': secret }) },
        signal,
        agent: isSecure ? agents['https:'] : agents['http:'],
        givenUp: givenUp.signal,
      };
      return tellingOfItsEnd(isSecure ? https.request(options) : http.request(options), givenUp);
    },
    close() {
      for (const agent of Object.values(agents)) agent.destroy();
      agents = proxiedAgents(proxies, { ...keeping, keepAlive: false }, patience);
    },
  };
}

/** A request that has no connection yet is silent when it is destroyed: whoever makes the connection has to hear of it. */
function tellingOfItsEnd(request: http.ClientRequest, givenUp: AbortController): http.ClientRequest {
  const destroy = request.destroy.bind(request);
  request.destroy = (error) => {
    destroy(error);
    givenUp.abort();
    return request;
  };
  if (request.destroyed) givenUp.abort();
  return request;
}

/** A proxy asks for a password in the place of a service, which never does. */
export const isOfProxy = (status: number): boolean => status === 407;

/** The system's word for it, which names no address and holds no header. */
export function reasonOf(error: unknown): string {
  if (hasCode(error, null)) return error.code;
  return error instanceof Error ? error.message : String(error);
}

/** `code` null: any. */
export function hasCode(error: unknown, code: string | null): error is Error & { readonly code: string } {
  if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'string') return false;
  return code === null || error.code === code;
}
