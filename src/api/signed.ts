/**
 * What a browser and the daemon sign for each other, the same text on both sides. A port is not a proof of who answers there: while
 * the daemon is stopped, another program of this host can have it. So a page sends nothing that could be used elsewhere or later,
 * and shows nothing that the daemon of its login has not signed. Pure, and part of the page.
 */

/** A public key on P-256, as JWK has it. */
export interface PublicKey {
  readonly x: string;
  readonly y: string;
}

/** Of the page: bytes at random in base64url, other ones for each request. */
export const nonceHeader = 'onejob-nonce';
/** Of the daemon, in the answer: `CHALLENGE.SIGNATURE`. */
export const proofHeader = 'onejob-proof';

/** The scheme of the header `authorization`. */
export const scheme = 'Onejob';

export interface SignedRequest {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  /** SHA-256 of the body in base64url, also of an empty one. */
  readonly body: string;
  /** Of the listener: what was signed for another one, or for an earlier daemon, is worth nothing. */
  readonly challenge: string;
  /** The daemon's wall clock, ms. */
  readonly at: number;
  readonly nonce: string;
}

export function requestText({ method, path, body, challenge, at, nonce }: SignedRequest): string {
  return ['onejob request', method, path, body, challenge, at, nonce].join('\n');
}

/** `port`: where the daemon listens, which is not where an impostor does who passes requests on to it. */
export function proofText({
  nonce,
  challenge,
  port,
}: {
  readonly nonce: string;
  readonly challenge: string;
  readonly port: number;
}) {
  return ['onejob answer', nonce, challenge, port].join('\n');
}

/** The header `authorization` of a request that was signed with the key of a login. */
export function authorizationOf(
  { session, signature }: { readonly session: string; readonly signature: string },
  { at, nonce, body }: SignedRequest,
): string {
  return `${scheme} session=${session}, at=${at}, nonce=${nonce}, body=${body}, signature=${signature}`;
}

const sent = new RegExp(
  `^${scheme} session=(ojs_[\\w.-]{1,2000}), at=(\\d{1,15}), nonce=([\\w-]{22}), body=([\\w-]{43}), signature=([\\w-]{86})$`,
);

/** null for another header. */
export function parseAuthorization(header: string) {
  const [, session = '', at = '', nonce = '', body = '', signature = ''] = sent.exec(header) ?? [];
  return session === '' ? null : { session, at: Number(at), nonce, body, signature };
}
