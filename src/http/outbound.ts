/** HTTP to services: undici, with the proxies of the environment, and kept connections. Callers bound time and size. */
import type { Duplex } from 'node:stream';
import { Agent, type Dispatcher, ProxyAgent, type RequestInit, fetch as undiciFetch } from 'undici';
import { type Proxies, type ProxyServer, proxyFor } from './proxies.ts';

export interface Outbound {
  /** Chooses the proxy by the address. */
  readonly fetch: typeof fetch;
  /** The same for streams. */
  dispatcherFor(url: URL): Dispatcher;
  /** A connection of its own, for which the other end gives up HTTP; without a limit on silence. Rejects if it answers anything else. */
  upgrade(url: URL, protocol: string, headers: Readonly<Record<string, string>>, signal: AbortSignal): Promise<Duplex>;
  /** Ends every connection and its requests. */
  close(): void;
}

/** ms without a byte after which a call is given up. */
const idle = 300_000;
/** ms to connect. */
const patience = 30_000;

export function createOutbound(proxies: Proxies): Outbound {
  const options = { headersTimeout: idle, bodyTimeout: idle, connectTimeout: patience, pipelining: 1 } as const;
  const dispatchers = new Map<string, Dispatcher>();
  const once = (name: string, make: () => Dispatcher): Dispatcher => {
    const made = dispatchers.get(name) ?? make();
    dispatchers.set(name, made);
    return made;
  };
  const dispatcherFor = (url: URL): Dispatcher => {
    const proxy = proxyFor(url, proxies);
    if (proxy === null) return once('', () => new Agent(options));
    return once(proxy.shown, () => new ProxyAgent({ ...options, ...addressOf(proxy) }));
  };
  return {
    dispatcherFor,
    fetch: ((input: string | URL, init?: RequestInit) =>
      undiciFetch(input, { ...init, dispatcher: dispatcherFor(new URL(input)) })) as unknown as typeof fetch,
    async upgrade(url, protocol, headers, signal) {
      const { origin, pathname, search } = url;
      const path = `${pathname}${search}`;
      return (await dispatcherFor(url).upgrade({ origin, path, method: 'GET', protocol, headers, signal } as never)).socket;
    },
    close() {
      for (const one of dispatchers.values()) void one.destroy();
      dispatchers.clear();
    },
  };
}

/** An invalid proxy address leads nowhere, so that nothing is sent past a proxy. */
function addressOf({ server, authorization }: ProxyServer): ProxyAgent.Options {
  const { isSecure, host, port } = server ?? { isSecure: false, host: 'no-proxy.invalid', port: 1 };
  const uri = `${isSecure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`;
  return { uri, ...(authorization !== null && { token: authorization }) };
}
