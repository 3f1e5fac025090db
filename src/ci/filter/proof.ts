/**
 * How the filter proves to the manager that it answers at an address: with an HMAC of a nonce, by a key of the installation. A program
 * of another user may take the filter's port at an address where the filter does not listen, and forward what it is asked to the filter
 * at another one. So the HMAC covers address and port at which the filter itself was asked: what it says there proves nothing elsewhere.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingMessage } from 'node:http';
import https from 'node:https';
import { z } from 'zod';
import { codeOf, messageOf } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { isNamed } from '../../http/address.ts';
import { bytesOf } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';

/** What the filter proves itself with. `version`: of onejob. */
export interface Identity {
  readonly key: Uint8Array;
  readonly version: string;
}

/** What `GET /who?nonce=…` is answered with. */
const said = z.object({ version: z.string(), proof: z.string() });

const nonceBytes = 32;
/** Milliseconds, and bytes of an answer. */
const [patience, most] = [3_000, 4096];

/** `at`: as the kernel writes an address, which has one form only. */
function proofOf({ key, version }: Identity, nonce: string, at: { readonly address: string; readonly port: number }): string {
  const about = JSON.stringify(['onejob filter', nonce, at.address, at.port, version]);
  return createHmac('sha256', key).update(about).digest('base64url');
}

/** The answer of the filter; null: the question is invalid. `query`: as it came, without its `?`. */
export function proveAt(
  identity: Identity,
  query: string,
  { socket }: Pick<IncomingMessage, 'socket'>,
): z.output<typeof said> | null {
  const [, nonce] = /^nonce=([\w-]{43})$/.exec(query) ?? [];
  const { localPort: port } = socket;
  // Of a connection of IPv4 to a listener of both families.
  const address = socket.localAddress?.replace(/^::ffff:(?=\d+\.)/, '');
  if (nonce === undefined || address === undefined || port === undefined) return null;
  return { version: identity.version, proof: proofOf(identity, nonce, { address, port }) };
}

/**
 * `other`: a program that is not this installation's filter answers. `silent`: nothing answers. `absent`: this host has no such address
 * now.
 */
export type Who =
  | { readonly kind: 'filter'; readonly version: string }
  | { readonly kind: 'other' }
  | { readonly kind: 'silent'; readonly why: string }
  | { readonly kind: 'absent' };

/**
 * Asks who answers at an address of this host, on a connection of its own. Never throws. `host`: or a name that leads to this host, which
 * is not used: a pod may not reach itself by the name of its Service. `ca`: of the only certificate that it may have
 * there, in PEM; null: it answers without TLS.
 */
export async function whoAnswers(
  key: Uint8Array,
  host: string,
  port: number,
  clock: Clock,
  ca: string | null = null,
): Promise<Who> {
  const nonce = randomBytes(nonceBytes).toString('base64url');
  using limit = deadline(clock, patience);
  const { signal } = limit;
  try {
    // From the same address: so no host behind a route can answer for an address that this host has lost.
    const own = isNamed(host) ? '127.0.0.1' : host;
    const how = { host: own, port, path: `/who?nonce=${nonce}`, agent: false, localAddress: own, signal } as const;
    const asked = ca === null ? http.get(how) : https.get({ ...how, ca, ...(isNamed(host) && { servername: host }) });
    const [answer] = (await once(asked, 'response')) as [IncomingMessage];
    const { remoteAddress: address = '' } = answer.socket;
    const found = said.safeParse(jsonOf((await bytesOf(answer, most, () => new TooLong())).toString()));
    const { version, proof } = found.data ?? { version: '', proof: '' };
    return isEqual(proof, proofOf({ key, version }, nonce, { address, port })) ? { kind: 'filter', version } : { kind: 'other' };
  } catch (error) {
    const code = codeOf(error);
    if (code === 'EADDRNOTAVAIL') return { kind: 'absent' };
    // Something answers, in another protocol or at length.
    const isOther = code.startsWith('HPE_') || code === 'EPROTO' || /CERT|SSL|SIGNATURE/.test(code);
    if (error instanceof TooLong || isOther) return { kind: 'other' };
    return { kind: 'silent', why: signal.aborted ? `no answer within ${patience / 1000} s` : messageOf(error) };
  }
}

class TooLong extends Error {}

function isEqual(one: string, other: string): boolean {
  const [a, b] = [Buffer.from(one), Buffer.from(other)];
  return a.length === b.length && timingSafeEqual(a, b);
}
