/** Keys for tests, made once for each file of tests: RSA takes its time. */
import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { makeKey, parseKeys, type SecretKey, type SecretKeys } from '../../src/secrets/keys.ts';

export function rsaKey(bits = 2048): { readonly key: KeyObject; readonly pem: string; readonly publicPem: string } {
  const { privateKey, publicKey } = generateKeyPairSync('rsa', {
    modulusLength: bits,
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
    publicKeyEncoding: { type: 'spki', format: 'pem' },
  });
  return { key: createPrivateKey(privateKey), pem: privateKey, publicPem: publicKey };
}

export type AgeKey = Extract<SecretKey, { kind: 'x25519' }>;

export async function ageKey(): Promise<{ readonly key: AgeKey; readonly text: string }> {
  const text = await makeKey('x25519', 'for a test');
  const [key] = (await parseKeys(text)).keys;
  if (key?.kind !== 'x25519') throw new Error('no X25519 key was made');
  return { key, text };
}

export function keysOf(...keys: readonly (SecretKey | KeyObject)[]): SecretKeys {
  return { keys: keys.map((each) => ('kind' in each ? each : { kind: 'rsa', id: '00000000', key: each })) };
}
