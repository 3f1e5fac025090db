/** Which requests may come in over TCP at all: none for another host's name, and none that a page of another origin sends. Pure. */
import type { IncomingHttpHeaders } from 'node:http';
import { isIP } from 'node:net';
import { OnejobError } from '../base/errors.ts';
import { isLoopback } from '../http/address.ts';

export interface DoorOptions {
  /** The address it listens on, as the config has it. */
  readonly listen: string;
  /** Further names. */
  readonly hosts: readonly string[];
  /** Browsers use https. */
  readonly isSecure: boolean;
}

/**
 * Refuses other names in `Host`: a page whose name is changed to point here (DNS rebinding) has its own name there. The port does
 * not matter, since it may be forwarded. @throws OnejobError E_API_ORIGIN
 */
export function checkHost({ host = '' }: IncomingHttpHeaders, { listen, hosts }: DoorOptions): void {
  const name = nameOf(host);
  const isOwn = name !== null && (isLoopbackName(name) || name === listen || hosts.includes(name));
  if (isOwn) return;
  throw new OnejobError('E_API_ORIGIN', `Cannot answer requests for the host ${JSON.stringify(host.slice(0, 100))}.`, {
    hint: 'Use the address of the link, or add the name to "api.hosts" in the config.',
  });
}

/**
 * Where a browser has to go that was sent to `localhost`, as an origin; null: it is right here. Another program can have the same
 * port of the other loopback address, which browsers may try first: so no login is ever kept for that name. A certificate says
 * more than a name, so with TLS it may stay. `address`: where the daemon listens.
 */
export function originInstead({ host = '' }: IncomingHttpHeaders, address: string, { isSecure }: DoorOptions): string | null {
  if (isSecure || nameOf(host) !== 'localhost' || !isLoopback(address)) return null;
  const [, port = ''] = /(:\d+)$/.exec(host) ?? [];
  return `http://${address.includes(':') ? `[${address}]` : address}${port}`;
}

/**
 * As `checkHost`, on the unix socket, which somebody may forward to a port: no other address, and no name that a page can have. Clients
 * send plain names, or the path of the socket. @throws OnejobError E_API_ORIGIN
 */
export function checkSocketHost({ host = '' }: IncomingHttpHeaders): void {
  const name = nameOf(host);
  if (host === '' || /[%/]/.test(host) || (name !== null && (isLoopbackName(name) || !/[.:]/.test(name)))) return;
  throw new OnejobError(
    'E_API_ORIGIN',
    `Cannot answer requests for the host ${JSON.stringify(host.slice(0, 100))} on the socket.`,
    {
      hint: 'Use a name without a dot, such as http://onejob/v1/status.',
    },
  );
}

/** Refuses what a page of another origin asks for, even if it has a token or a login. @throws OnejobError E_API_ORIGIN */
export function checkOrigin(headers: IncomingHttpHeaders, { hosts, isSecure }: DoorOptions): void {
  const { origin, host = '' } = headers;
  const site = headers['sec-fetch-site'];
  const isFromHere = site === undefined || site === 'same-origin' || site === 'none';
  const isOwn = origin === undefined || (isOwnOrigin(origin, host, hosts) && (!isSecure || origin.startsWith('https:')));
  if (isFromHere && isOwn) return;
  const who = origin === undefined ? 'a page of another site' : `a page of ${JSON.stringify(origin.slice(0, 100))}`;
  throw new OnejobError('E_API_ORIGIN', `Cannot answer a request of ${who}.`, {
    hint: 'Open the dashboard by its own address.',
  });
}

/** Whether a request comes from a browser. */
export function isBrowser(headers: IncomingHttpHeaders): boolean {
  return headers.origin !== undefined || headers['sec-fetch-site'] !== undefined;
}

/** A proxy may pass on another name than the browser's. Other ports of this host are other origins, perhaps of other users. */
function isOwnOrigin(origin: string, host: string, hosts: readonly string[]): boolean {
  const [, rest = ''] = /^https?:\/\/(.+)$/.exec(origin) ?? [];
  if (rest !== '' && rest === host.toLowerCase()) return true;
  const name = nameOf(rest);
  return name !== null && !isLoopbackName(name) && hosts.includes(name);
}

/** The name in a `Host`; null if it is not one. */
function nameOf(host: string): string | null {
  const [, bare, bracketed] = /^(?:([a-z0-9._-]+)|\[([0-9a-f:.]+)\])(?::\d{1,5})?$/.exec(host.toLowerCase()) ?? [];
  return bare ?? bracketed ?? null;
}

function isLoopbackName(name: string): boolean {
  return name === 'localhost' || (isIP(name) !== 0 && isLoopback(name));
}
