import { createPrivateKey, createPublicKey, createSign, createVerify, type JsonWebKey } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { readStrictly } from '../../../test/kit/azure.ts';
import { agentKeyOf, makeAgentKey } from './script.ts';

it('real keys are read by the agent, and belong together', { timeout: 120_000 }, async () => {
  // A few, since each takes long to make: of what differs between keys, the next test has every case.
  const keys = await Promise.all(Array.from({ length: 20 }, makeAgentKey));
  for (const key of keys) readStrictly(key);
  expect(new Set(keys.map(({ publicKey }) => publicKey.modulus)).size).toBe(keys.length);
  const [key] = keys;
  if (key === undefined) return;
  const { exponent, modulus, d, p, q, dp, dq, inverseQ } = readStrictly(key);
  const url = (bytes: Buffer) => bytes.toString('base64url');
  const jwk = {
    kty: 'RSA',
    n: url(modulus),
    e: url(exponent),
    d: url(d),
    p: url(p),
    q: url(q),
    dp: url(dp),
    dq: url(dq),
    qi: url(inverseQ),
  };
  const signature = createSign('RSA-SHA256')
    .update('x')
    .sign(createPrivateKey({ key: jwk, format: 'jwk' }));
  const theirs = createPublicKey({ key: { kty: 'RSA', n: url(modulus), e: url(exponent) }, format: 'jwk' });
  expect(createVerify('RSA-SHA256').update('x').verify(theirs, signature)).toBe(true);
});

const number = (most: number, least = 1) =>
  fc.uint8Array({ minLength: least, maxLength: most }).map((bytes) => {
    // A JWK leaves out leading zeros.
    if (bytes[0] === 0) bytes[0] = 1;
    return Buffer.from(bytes);
  });

it('a part that begins with zeros keeps its length and its value', () => {
  const parts = fc.record({
    n: number(256, 256),
    d: number(256),
    p: number(128),
    q: number(128),
    dp: number(128),
    dq: number(128),
    qi: number(128),
  });
  fc.assert(
    fc.property(parts, (given) => {
      const jwk: JsonWebKey = { kty: 'RSA', e: 'AQAB' };
      for (const [name, bytes] of Object.entries(given)) jwk[name] = bytes.toString('base64url');
      const read = readStrictly(agentKeyOf(jwk));
      const value = (bytes: Buffer) => BigInt(`0x${bytes.toString('hex')}`);
      expect([read.modulus, read.d, read.p, read.q, read.dp, read.dq, read.inverseQ].map(value)).toEqual(
        [given.n, given.d, given.p, given.q, given.dp, given.dq, given.qi].map(value),
      );
    }),
    { numRuns: 3000 },
  );
});

it('a key of another size is refused', () => {
  const long = Buffer.alloc(129, 1).toString('base64url');
  expect(() => agentKeyOf({ kty: 'RSA', n: long, e: 'AQAB', d: long, p: long })).toThrow(/p has 129 bytes|dp has 0/);
});
