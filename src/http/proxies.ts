/**
 * Which proxy leads to an address, by the usual variables, read as Node's own `fetch` reads them. Nothing that is shown contains
 * the password of a proxy.
 */
import { BlockList, isIP } from 'node:net';
import { resolve } from 'node:path';
import { attempt } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';

/** As written, possibly with a password. */
export interface Proxies {
  /** For `http:` addresses. */
  readonly http: string | null;
  readonly https: string | null;
  /** Hosts without a proxy: `NO_PROXY`. */
  readonly none: string;
}

export const noProxies: Proxies = Object.freeze({ http: null, https: null, none: '' });

/** Set by the daemon for its filter. With Node's own variable each process would load 17 MiB for a `fetch` that it may not need. */
const ownSwitch = 'ONEJOB_USE_ENV_PROXY';

export function readProxies(variables: Variables): Proxies {
  if (variables.NODE_USE_ENV_PROXY !== '1' && variables[ownSwitch] !== '1') return noProxies;
  const get = (name: string) => variables[name.toLowerCase()] || variables[name] || null;
  const http = get('HTTP_PROXY');
  return Object.freeze({ http, https: get('HTTPS_PROXY') ?? http, none: get('NO_PROXY') ?? '' });
}

/** Variables with which a process of onejob uses the same proxies and trusts the same authorities as this one. */
export function handedOn(variables: Variables, cwd: string): Readonly<Record<string, string>> {
  const { http, https, none } = readProxies(variables);
  const { NODE_EXTRA_CA_CERTS: file, NODE_USE_SYSTEM_CA: system } = variables;
  const hasProxy = http !== null || https !== null;
  return Object.freeze({
    ...(hasProxy && { [ownSwitch]: '1', NO_PROXY: none }),
    ...(http !== null && { HTTP_PROXY: http }),
    ...(https !== null && { HTTPS_PROXY: https }),
    ...(file && { NODE_EXTRA_CA_CERTS: resolve(cwd, file) }),
    ...(system && { NODE_USE_SYSTEM_CA: system }),
  });
}

/** null: the address is reached directly. */
export function proxyFor({ protocol, hostname, port }: URL, proxies: Proxies): ProxyServer | null {
  const isSecure = protocol === 'https:';
  const written = isSecure ? proxies.https : proxies.http;
  const host = bare(hostname).toLowerCase();
  // The loopback of a proxy is another host.
  if (written === null || isLoopback(host)) return null;
  return isExcepted(host, port === '' ? (isSecure ? 443 : 80) : Number(port), proxies.none) ? null : parsed(written);
}

export interface ProxyServer {
  /** null: the address of the proxy is invalid, and nothing is sent past it. */
  readonly server: { readonly isSecure: boolean; readonly host: string; readonly port: number } | null;
  /** Value of `Proxy-Authorization`; null: none. */
  readonly authorization: string | null;
  /** `proxy.example:3128`, for people. */
  readonly shown: string;
}

function parsed(written: string): ProxyServer {
  const url = URL.parse(written);
  const isOne = url !== null && (url.protocol === 'http:' || url.protocol === 'https:');
  if (!isOne)
    return { server: null, authorization: null, shown: 'of the environment, which is not an http:// or https:// address' };
  const isSecure = url.protocol === 'https:';
  const port = url.port === '' ? (isSecure ? 443 : 80) : Number(url.port);
  return {
    server: { isSecure, host: bare(url.hostname), port },
    authorization: authorizationOf(url),
    shown: `${url.hostname}:${port}`,
  };
}

function authorizationOf({ username, password }: URL): string | null {
  if (username === '' && password === '') return null;
  const [user, secret] = [username, password].map((text) => attempt(() => decodeURIComponent(text)) ?? text);
  return `Basic ${Buffer.from(`${user}:${secret}`).toString('base64')}`;
}

function isExcepted(host: string, port: number, none: string): boolean {
  return none
    .toLowerCase()
    .split(/[,\s]+/)
    .some((entry) => {
      if (entry === '' || entry === '*') return entry === '*';
      const withPort = isIP(entry) === 6 ? null : /^(.+):(\d+)$/.exec(entry);
      if (withPort !== null && Number(withPort[2]) !== port) return false;
      const name = bare((withPort?.[1] ?? entry).replace(/^\*?\./, ''));
      return host === name || host.endsWith(`.${name}`) || isInRange(host, withPort?.[1] ?? entry);
    });
}

/** `10.0.0.0/8` or `10.0.0.1-10.0.0.9`. Only for addresses: a name is not resolved for it. False for an invalid range. */
function isInRange(host: string, range: string): boolean {
  const family = (address: string) => (isIP(address) === 6 ? 'ipv6' : 'ipv4');
  const [, from = '', mark, to = ''] = /^([0-9a-f.:]+)([/-])([0-9a-f.:]+)$/.exec(range) ?? [];
  if (isIP(host) === 0 || family(host) !== family(from)) return false;
  const list = new BlockList();
  // They throw for an invalid range.
  const isRange = attempt(() => {
    if (mark === '/') list.addSubnet(from, Number(to), family(from));
    else list.addRange(from, to, family(from));
    return true;
  });
  return isRange === true && list.check(host, family(host));
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host.endsWith('.localhost') || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
}

function bare(hostname: string): string {
  return hostname.replace(/^\[(.*)\]$/, '$1');
}
