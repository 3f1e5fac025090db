/** What a page of the dashboard does to log in and to sign its requests, without a browser. */
import { createHash, createPublicKey, generateKeyPairSync, randomBytes, sign, verify } from 'node:crypto';
import { authorizationOf, nonceHeader, type PublicKey, proofHeader, proofText, requestText } from '../../src/api/signed.ts';

export interface Link {
  readonly base: string;
  readonly code: string;
}

/** The parts of what `onejob dashboard` prints. */
export function parseLink(url: string): Link {
  const [, base = '', code = ''] = /^(.*)\/login\/[\w-]{22}#(.+)$/.exec(url) ?? [];
  if (code === '') throw new Error(`not a link: ${url}`);
  return { base, code };
}

export function browserKey() {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const { x = '', y = '' } = publicKey.export({ format: 'jwk' });
  return {
    key: { x, y },
    sign: (text: string) => sign('sha256', Buffer.from(text), { key: privateKey, dsaEncoding: 'ieee-p1363' }).toString('base64url'),
  };
}

export const newNonce = (): string => randomBytes(16).toString('base64url');
export const hashOf = (body: string): string => createHash('sha256').update(body).digest('base64url');

/** Whether an answer is of the daemon with this key. */
export function isProof(header: string | null, about: { nonce: string; port: number; key: PublicKey }): boolean {
  const [challenge = '', signature = ''] = header?.split('.') ?? [];
  const key = createPublicKey({ key: { kty: 'EC', crv: 'P-256', ...about.key }, format: 'jwk' });
  const text = Buffer.from(proofText({ nonce: about.nonce, challenge, port: about.port }));
  return verify('sha256', text, { key, dsaEncoding: 'ieee-p1363' }, Buffer.from(signature, 'base64url'));
}

export interface Signed {
  readonly session: string;
  readonly sign: (text: string) => string;
}

/** The header `authorization` of one request. */
export function authorize(
  { session, sign: by }: Signed,
  about: { method: string; path: string; body?: string; challenge: string; at: number },
): string {
  const { method, path, challenge, at } = about;
  const request = { method, path, challenge, at, nonce: newNonce(), body: hashOf(about.body ?? '') };
  return authorizationOf({ session, signature: by(requestText(request)) }, request);
}

/** Logs in, and returns what asks as a page does. @throws for an answer of somebody else */
export async function logIn(url: string) {
  const { base, code } = parseLink(url);
  const own = browserKey();
  const answer = await fetch(`${base}/v1/login`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', origin: base },
    body: JSON.stringify({ code, key: own.key }),
  });
  if (!answer.ok) throw new Error(await answer.text());
  const { session, daemon } = (await answer.json()) as { session: string; daemon: { key: PublicKey; port: number } };
  const signed = { session, sign: own.sign };
  const challenge = async () => {
    const nonce = newNonce();
    const said = await fetch(`${base}/v1/challenge`, { headers: { [nonceHeader]: nonce } });
    if (!isProof(said.headers.get(proofHeader), { nonce, ...daemon })) throw new Error('an answer of somebody else');
    return (await said.json()) as { challenge: string; at: number };
  };
  return {
    base,
    signed,
    challenge,
    /** Headers for one request. */
    async headers(path: string, { method = 'GET', body }: { method?: string; body?: string } = {}) {
      const about = { method, path, ...(await challenge()) };
      const json = body === undefined ? {} : { 'content-type': 'application/json' };
      return { ...json, authorization: authorize(signed, body === undefined ? about : { ...about, body }) };
    },
  };
}
