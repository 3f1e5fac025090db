/** Connections to services and to where artifacts go, and what can be said of one that fails. */
import * as http from 'node:http';
import * as https from 'node:https';

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

export function createUpstreams(idleMs: number): Upstreams {
  // Kept shorter than most servers keep theirs, so that seldom a call is sent into a connection that is being closed.
  const options = { keepAlive: true, maxFreeSockets: 8, scheduling: 'lifo', timeout: idleMs } as const;
  const agents = { 'http:': new http.Agent(options), 'https:': new https.Agent(options) };
  let isClosed = false;
  return {
    open({ method, origin, path, headers }, signal) {
      const { protocol, hostname, port, host } = origin;
      const common = {
        method,
        hostname: hostname.replace(/^\[(.*)\]$/, '$1'),
        ...(port === '' ? {} : { port }),
        path,
        headers: { ...headers, host },
        signal,
      };
      if (protocol === 'https:') return https.request({ ...common, agent: !isClosed && agents['https:'] });
      return http.request({ ...common, agent: !isClosed && agents['http:'] });
    },
    close() {
      isClosed = true;
      for (const agent of Object.values(agents)) agent.destroy();
    },
  };
}

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
