/**
 * A proxy as networks have them: tunnels by CONNECT, other calls by their whole address. It alone knows the names of hosts, so
 * whatever reaches one has come through it. It can be made to misbehave, and to die.
 */
import { once } from 'node:events';
import http, { createServer, type Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { type Duplex, pipeline } from 'node:stream';
import { type Identity, tlsFront } from './tls-front.ts';

export interface TestProxy extends AsyncDisposable {
  readonly port: number;
  /** With its password, as a variable has it. */
  readonly url: string;
  /** As `CONNECT agent.test:443` or `GET http://agent.test/v3/ping`, also of what it refused. */
  readonly seen: readonly string[];
  /** Everything else than passing on. `silent`: nothing is answered. `mute`: a tunnel that leads nowhere. `loud`: says too much. */
  mood: 'well' | 'silent' | 'mute' | 'loud' | 'endless' | 'gibberish' | 'hangs up' | number;
  /** Number of connections to it and through it. */
  readonly open: number;
  /** Cuts every connection through it, and continues. */
  cut(): void;
  /** Is not there any more. */
  die(): Promise<void>;
}

export const proxyPassword = 'proxy-canary';

/** @param hosts ports of this host, by `host:port` as callers name them */
export async function startProxy(hosts: Readonly<Record<string, number>>): Promise<TestProxy> {
  const expected = `Basic ${Buffer.from(`alice:${proxyPassword}`).toString('base64')}`;
  const seen: string[] = [];
  const open = new Set<Duplex>();
  const kept = <T extends Duplex>(socket: T): T => {
    open.add(socket.on('error', () => {}));
    socket.once('close', () => open.delete(socket));
    return socket;
  };
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    request.on('error', () => {});
    response.on('error', () => {});
    const { mood } = proxy;
    if (typeof mood === 'number') return void response.writeHead(mood).end('<html>a page of its own</html>');
    if (mood === 'hangs up') return void request.socket.destroy();
    if (mood !== 'well') return;
    if (request.headers['proxy-authorization'] !== expected) return void response.writeHead(407).end();
    const url = URL.parse(request.url ?? '');
    const port = url === null ? undefined : hosts[`${url.hostname}:${url.port || 80}`];
    if (url === null || port === undefined) return void response.writeHead(502).end();
    const { 'proxy-authorization': _, 'proxy-connection': __, ...headers } = request.headers;
    const path = (request.url ?? '').slice(url.origin.length);
    const out = http.request({ host: '127.0.0.1', port, method: request.method, path, headers });
    out.on('response', (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      pipeline(answer, response, () => {});
    });
    out.on('error', () => response.destroy());
    pipeline(request, out, () => {});
  });
  server.on('connection', kept);
  server.on('connect', (request, socket: Socket, head) => {
    seen.push(`CONNECT ${request.url}`);
    const { mood } = proxy;
    const say = (text: string): void => void socket.write(text);
    // Anyone who is not led anywhere is still heard to go.
    if (mood !== 'well') socket.resume().once('end', () => socket.destroy());
    if (typeof mood === 'number') return void socket.end(`HTTP/1.1 ${mood} No\r\nContent-Length: 0\r\n\r\n`);
    if (mood === 'hangs up') return void socket.destroy();
    if (mood === 'mute') return say('HTTP/1.1 200 OK\r\n\r\n');
    if (mood === 'loud') return say('HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}');
    if (mood === 'endless') return say(`HTTP/1.1 200 OK\r\nX-Long: ${'x'.repeat(100_000)}`);
    if (mood === 'gibberish') return say('220 mail.test ESMTP\r\n\r\n');
    if (mood !== 'well') return;
    const port = hosts[request.url ?? ''];
    if (request.headers['proxy-authorization'] !== expected)
      return void socket.end('HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n');
    if (port === undefined) return void socket.end('HTTP/1.1 502 Bad Gateway\r\n\r\n');
    const out = kept(connect({ port, host: '127.0.0.1', allowHalfOpen: true }));
    out.once('connect', () => {
      // In two pieces, as a network may deliver it.
      socket.write('HTTP/1.1 200 Connection est');
      setImmediate(() => {
        socket.write('ablished\r\nVia: 1.1 test\r\n\r\n');
        out.write(head);
        socket.pipe(out);
        out.pipe(socket);
      });
    });
    out.once('close', () => socket.destroy());
    socket.once('close', () => out.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const cut = (): void => {
    for (const socket of open) socket.destroy();
  };
  const die = async (): Promise<void> => {
    if (!server.listening) return;
    server.close();
    cut();
    await once(server, 'close');
  };
  const proxy: TestProxy = {
    port,
    seen,
    cut,
    die,
    url: `http://alice:${proxyPassword}@127.0.0.1:${port}`,
    mood: 'well',
    get open() {
      return open.size;
    },
    [Symbol.asyncDispose]: die,
  };
  return proxy;
}

export interface Behind extends AsyncDisposable {
  readonly proxy: TestProxy;
}

/** A server that listens nowhere yet, with and without TLS, and the proxy that leads to it by these names, as `host:port`. */
export async function behindProxy(
  server: Server,
  identity: Identity,
  names: { readonly secure: readonly string[]; readonly plain: readonly string[] },
): Promise<Behind> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const front = await tlsFront(identity, port);
  const proxy = await startProxy({
    ...Object.fromEntries(names.secure.map((name) => [name, front.port])),
    ...Object.fromEntries(names.plain.map((name) => [name, port])),
  });
  return {
    proxy,
    async [Symbol.asyncDispose]() {
      await proxy[Symbol.asyncDispose]();
      await front[Symbol.asyncDispose]();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
