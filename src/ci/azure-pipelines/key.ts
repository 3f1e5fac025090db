/**
 * The key of one agent. .NET reads the parameters of a key only at their exact lengths, while a JWK leaves out leading
 * zeros: about one key in fifty would make an agent that cannot start.
 */
import { generateKeyPair, type JsonWebKey } from 'node:crypto';
import { promisify } from 'node:util';
import { OnejobError } from '../../errors.ts';

export interface AgentKey {
  /** Standard base64, big-endian, as the service takes it. */
  readonly publicKey: { readonly exponent: string; readonly modulus: string };
  /** Text of `.credentials_rsaparams`. It is the private key: whoever has it is this agent. */
  readonly rsaParameters: string;
}

const bits = 2048;
const whole = bits / 8;
const half = whole / 2;

/** Bytes of each part of a private key, by its name in a JWK (.NET `RSAParameters`). */
const lengths = { n: whole, d: whole, p: half, q: half, dp: half, dq: half, qi: half } as const;

/** A new RSA-2048 key; takes a tenth of a second or so, not on the main thread. */
export async function makeAgentKey(): Promise<AgentKey> {
  const { privateKey } = await promisify(generateKeyPair)('rsa', { modulusLength: bits, publicExponent: 0x10001 });
  return agentKeyOf(privateKey.export({ format: 'jwk' }));
}

/** @throws OnejobError E_BUG when a part is missing or longer than an RSA-2048 key has it */
export function agentKeyOf(jwk: JsonWebKey): AgentKey {
  const part = (name: keyof typeof lengths): string => {
    const bytes = Buffer.from(jwk[name] ?? '', 'base64url');
    const length = lengths[name];
    if (bytes.length === 0 || bytes.length > length) {
      throw new OnejobError('E_BUG', `Cannot make an agent's key: ${name} has ${bytes.length} bytes, not ${length}.`, {
        retry: true,
      });
    }
    return Buffer.concat([Buffer.alloc(length - bytes.length), bytes]).toString('base64');
  };
  const exponent = Buffer.from(jwk.e ?? '', 'base64url').toString('base64');
  const modulus = part('n');
  const parameters = {
    d: part('d'),
    dp: part('dp'),
    dq: part('dq'),
    exponent,
    inverseQ: part('qi'),
    modulus,
    p: part('p'),
    q: part('q'),
  };
  return { publicKey: { exponent, modulus }, rsaParameters: JSON.stringify(parameters) };
}
