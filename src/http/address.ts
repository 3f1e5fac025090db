/** Where a server listens. */
import { isIP } from 'node:net';

/** Address and port, as `api.listen` has them. */
export interface Listen {
  /** An IP address, or `localhost`; of `parseNamed`, another name. */
  readonly host: string;
  readonly port: number;
}

/** null for a text that is not `HOST:PORT`. */
export function parseListen(text: string): Listen | null {
  const [, bare, bracketed, digits] = /^(?:([^:[\]]+)|\[([^\]]+)\]):(\d{1,5})$/.exec(text) ?? [];
  const host = bare ?? bracketed ?? '';
  const port = Number(digits);
  const isAddress = host === 'localhost' ? bare !== undefined : isIP(host) === (bare === undefined ? 6 : 4);
  return isAddress && port >= 1 && port <= 65_535 ? { host, port } : null;
}

/** The same of a name, such as that of a Kubernetes Service; null for any other text. */
export function parseNamed(text: string): Listen | null {
  const [, host = '', digits] = /^([a-z](?:[-a-z0-9.]*[a-z0-9])?):(\d{1,5})$/.exec(text) ?? [];
  const port = Number(digits);
  return isNamed(host) && port >= 1 && port <= 65_535 ? { host, port } : null;
}

/** Whether it is a name, behind which may be any host, and no address. */
export function isNamed(host: string): boolean {
  return host !== '' && host !== 'localhost' && isIP(host) === 0;
}

export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\./.test(host);
}

/** Whether it stands for every address of this host. */
export function isAny(host: string): boolean {
  return host === '0.0.0.0' || /^[0:]+$/.test(host);
}

/** The host that would get a credential in clear text; null if none, or only this host. */
export function clearTextHost(url: string): string | null {
  const { protocol, hostname } = new URL(url);
  if (protocol !== 'http:') return null;
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname) ? null : hostname;
}
