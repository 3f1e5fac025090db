/**
 * Connections that go through a proxy where one leads to the address: a tunnel for `https:`, the proxy itself for `http:`. A call
 * that is given up ends at once, also while nothing but a silent proxy has been reached. Node's own agents (`proxyEnv`) would
 * keep such a call for ever, and they rewrite paths, which have been judged as they are.
 */
import * as http from 'node:http';
import * as https from 'node:https';
import * as net from 'node:net';
import type { Duplex } from 'node:stream';
import * as tls from 'node:tls';
import { type Proxies, type ProxyServer, proxyFor } from '../../../config/proxies.ts';
import { ProxyFault, proxyAnswered } from '../../unreachable.ts';

export interface Agents {
  readonly 'http:': http.Agent;
  readonly 'https:': https.Agent;
}

type Connect = http.Agent['createConnection'];
type Connected = (error: Error | null, socket?: Duplex) => void;
/** As Node hands them on: what the request was made with, and `givenUp`. */
type Options = Parameters<Connect>[0] & { readonly givenUp?: AbortSignal };

/** ms in which a proxy must have led to an address. */
const usualPatience = 30_000;
/** Of what a proxy says before it is a tunnel, characters. */
const mostHead = 16_384;

export function proxiedAgents(proxies: Proxies, options: http.AgentOptions, patience = usualPatience): Agents {
  const connect =
    (protocol: 'http:' | 'https:', direct: Connect): Connect =>
    (asked: Options, connected) => {
      const host = net.isIPv6(asked.host ?? '') ? `[${asked.host}]` : (asked.host ?? 'localhost');
      const origin = new URL(`${protocol}//${host}:${asked.port ?? ''}`);
      const proxy = proxyFor(origin, proxies);
      if (proxy === null) return direct(asked, connected);
      const isTunnel = protocol === 'https:';
      const target = isTunnel ? `${host}:${asked.port ?? 443}` : null;
      const done = connected as Connected;
      reach(proxy, { target, patience, signal: asked.givenUp }, (error, socket) => {
        if (socket === undefined) done(error);
        else done(null, isTunnel ? tunnelled(asked, socket) : socket);
      });
      return null;
    };
  const agents = { 'http:': new http.Agent(options), 'https:': new https.Agent(options) };
  for (const protocol of ['http:', 'https:'] as const) {
    const agent = agents[protocol];
    agent.createConnection = connect(protocol, agent.createConnection.bind(agent));
  }
  return agents;
}

/** TLS with the service itself: its host stays among the options, since it is what the certificate must be for. */
function tunnelled(asked: Options, socket: net.Socket): tls.TLSSocket {
  const secure = tls.connect({ ...(asked as tls.ConnectionOptions), socket });
  socket.on('error', (error) => secure.destroy(error));
  return secure;
}

interface Reaching {
  /** `agent.example:443`; null: the proxy itself is spoken to. */
  readonly target: string | null;
  /** ms */
  readonly patience: number;
  readonly signal: AbortSignal | undefined;
}

function reach(
  proxy: ProxyServer,
  { target, patience, signal }: Reaching,
  done: (error: Error | null, socket?: net.Socket) => void,
): void {
  const { server, authorization } = proxy;
  if (server === null) {
    // As everything else that goes wrong, not before the request is there.
    process.nextTick(() => done(new ProxyFault('the proxy of the environment is none: it has no http:// or https:// address')));
    return;
  }
  const { isSecure, host, port } = server;
  const socket = isSecure
    ? tls.connect({ host, port, servername: net.isIP(host) === 0 ? host : '', ALPNProtocols: ['http/1.1'] })
    : net.connect({ host, port, noDelay: true });
  const ready = isSecure ? 'secureConnect' : 'connect';
  let head = '';

  const over = (): void => {
    clearTimeout(timer);
    signal?.removeEventListener('abort', giveUp);
    socket.off(ready, begin).off('data', read).off('close', closed).off('error', failed);
  };
  const fail = (why: string): void => {
    over();
    socket.on('error', () => {}).destroy();
    done(new ProxyFault(why));
  };
  const failed = (error: Error): void =>
    fail(`the proxy before it cannot be reached (${'code' in error ? String(error.code) : 'no reason'})`);
  const closed = (): void => fail('the proxy before it hung up');
  const giveUp = (): void => fail('it was given up');
  const timer = setTimeout(() => fail(`the proxy before it has not led there within ${patience / 1000} s`), patience);
  const begin = (): void => {
    const secret = authorization === null ? '' : `Proxy-Authorization: ${authorization}\r\n`;
    if (target === null) arrived();
    else socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n${secret}Proxy-Connection: keep-alive\r\n\r\n`);
  };
  const read = (bytes: Buffer): void => {
    head += bytes.toString('latin1');
    const end = head.indexOf('\r\n\r\n');
    if (end < 0 && head.length < mostHead) return;
    const status = /^HTTP\/1\.[01] (\d{3})[ \r]/.exec(head)?.[1];
    if (end < 0 || status === undefined) fail('the proxy before it answered something else than HTTP');
    else if (!status.startsWith('2')) fail(proxyAnswered(status));
    // Whoever speaks first in the tunnel is not the service.
    else if (head.length > end + 4) fail('the proxy before it says more than it was asked');
    else arrived();
  };
  const arrived = (): void => {
    over();
    // What comes now is for whoever has the connection next; one that was never read from must not be held back.
    if (target !== null) socket.pause();
    done(null, socket);
  };
  socket.once(ready, begin).once('close', closed).once('error', failed);
  if (target !== null) socket.on('data', read);
  signal?.addEventListener('abort', giveUp, { once: true });
}
