/** Google's token endpoint for service accounts (RFC 7523): it checks what was signed, and by which clock. */
import { createVerify, generateKeyPairSync } from 'node:crypto';

export interface ServiceAccount {
  readonly email: string;
  /** The file that Google generates. `origin`: of the stand-in. */
  keyFile(origin: string): string;
  /** null: the assertion is fine; else what Google answers. `now`: ms since the epoch. */
  problem(form: URLSearchParams, origin: string, now: number): string | null;
}

/** s by which a signed time may lie in the future. */
const tolerance = 300;

let made: { readonly privateKey: string; readonly publicKey: string } | undefined;
/** Made once, because it takes a while. */
function pair() {
  made ??= generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  return made;
}

export function createServiceAccount(project: string): ServiceAccount {
  const email = `onejob@${project}.iam.gserviceaccount.com`;
  const { privateKey, publicKey } = pair();
  const keyId = '0123456789abcdef0123456789abcdef01234567';
  return {
    email,
    keyFile: (origin) =>
      JSON.stringify({
        type: 'service_account',
        project_id: project,
        private_key_id: keyId,
        private_key: privateKey,
        client_email: email,
        client_id: '100000000000000000001',
        token_uri: `${origin}/token`,
        universe_domain: 'googleapis.com',
      }),
    problem(form, origin, now) {
      if (form.get('grant_type') !== 'urn:ietf:params:oauth:grant-type:jwt-bearer') return 'unsupported_grant_type';
      const [head = '', body = '', signature = ''] = (form.get('assertion') ?? '').split('.');
      const read = (part: string): Record<string, unknown> => JSON.parse(Buffer.from(part, 'base64url').toString() || '{}');
      const { alg, kid } = read(head);
      const { iss, aud, scope, iat, exp } = read(body);
      const isSigned = createVerify('RSA-SHA256').update(`${head}.${body}`).verify(publicKey, Buffer.from(signature, 'base64url'));
      if (alg !== 'RS256' || kid !== keyId || !isSigned) return 'Invalid JWT Signature.';
      if (iss !== email || aud !== `${origin}/token`) return 'Invalid JWT: wrong issuer or audience.';
      if (!String(scope).includes('cloud-platform')) return 'Invalid OAuth scope or ID token audience provided.';
      const seconds = now / 1000;
      if (Number(iat) > seconds + tolerance || Number(exp) < seconds || Number(exp) - Number(iat) > 3600)
        return 'Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim.';
      return null;
    },
  };
}
