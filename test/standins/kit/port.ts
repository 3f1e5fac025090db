/** A stand-in that is a `fetch`, on a port: what other programs send goes in, and its answers go back as bytes. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';

export interface PortOptions {
  readonly address?: string;
  readonly port?: number;
  /** With TLS. */
  readonly identity?: { readonly key: string; readonly cert: string } | null;
}

export interface Port extends AsyncDisposable {
  readonly url: string;
}

/** Listens until it is disposed. A call that fails, as of a server that goes away, ends the connection without an answer. */
export async function onPort(
  answer: typeof fetch,
  { address = '127.0.0.1', port = 0, identity = null }: PortOptions = {},
): Promise<Port> {
  const scheme = identity === null ? 'http' : 'https';
  const listener = async (incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> => {
    const gone = new AbortController();
    outgoing.once('close', () => gone.abort());
    const { method = 'GET', url = '/' } = incoming;
    const body = await buffer(incoming);
    const headers = new Headers(Object.entries(incoming.headers).map(([name, value]) => [name, String(value)]));
    try {
      const said = await answer(`${scheme}://${incoming.headers.host}${url}`, { method, headers, body, signal: gone.signal });
      const bytes = Buffer.from(await said.arrayBuffer());
      const length = said.status === 204 ? {} : { 'content-length': bytes.length };
      outgoing.writeHead(said.status, { ...Object.fromEntries(said.headers), ...length }).end(bytes);
    } catch (error) {
      if (!gone.signal.aborted && !(error instanceof TypeError)) console.error('a stand-in on a port:', error);
      incoming.socket.destroy();
    }
  };
  const server = identity === null ? createServer(listener) : createTlsServer({ ...identity }, listener);
  server.listen(port, address);
  await once(server, 'listening');
  return {
    url: `${scheme}://${address}:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
