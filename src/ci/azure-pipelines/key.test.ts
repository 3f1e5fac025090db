import { createPublicKey, type JsonWebKey, sign, verify } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { privateKeyOf } from '../../../test/standins/azure-devops/hand-agent.ts';
import { RsaSchema } from '../../../test/standins/azure-devops/hand-agent-wire.ts';
import { agentKeyOf, makeAgentKey } from './script.ts';

it('real keys are read by the agent, and belong together', { timeout: 120_000 }, async () => {
  // A few, since each takes long to make: of what differs between keys, the next test has every case.
  const keys = await Promise.all(Array.from({ length: 20 }, makeAgentKey));
  expect(new Set(keys.map(({ publicKey }) => publicKey.modulus)).size).toBe(keys.length);
  for (const { publicKey, rsaParameters } of keys) {
    const { modulus } = JSON.parse(rsaParameters);
    expect(publicKey).toEqual({ exponent: 'AQAB', modulus });
    const signature = sign('RSA-SHA256', Buffer.from('x'), privateKeyOf(rsaParameters));
    const url = (base64: string) => Buffer.from(base64, 'base64').toString('base64url');
    const theirs = createPublicKey({ key: { kty: 'RSA', n: url(publicKey.modulus), e: url(publicKey.exponent) }, format: 'jwk' });
    expect(verify('RSA-SHA256', Buffer.from('x'), theirs, signature)).toBe(true);
  }
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
      const read = RsaSchema.parse(JSON.parse(agentKeyOf(jwk).rsaParameters));
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
