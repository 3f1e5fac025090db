/**
 * The three files that make an agent out of a sandbox, as `config.sh` would leave them (agent `ConfigurationStore.cs`,
 * `ConfigurationManager.cs`, `OAuthCredential.cs`). They hold the agent's own key, never the manager's credential.
 */

import { generateKeyPair, type JsonWebKey } from 'node:crypto';
import { promisify } from 'node:util';
import { OnejobError } from '../../errors.ts';
import { baseOf, isHostedAzure } from './url.ts';
import type { RegisteredAgent } from './wire.ts';

export interface AgentFileParts {
  readonly agent: RegisteredAgent;
  readonly pool: { readonly id: number; readonly name: string };
  /** Of the organisation or collection. */
  readonly url: string;
  /** The agent's name at the service. */
  readonly name: string;
  /** Where it works, relative to its root or absolute; not empty. */
  readonly workFolder: string;
  readonly key: Pick<AgentKey, 'rsaParameters'>;
}

/** Name in the agent's root and text of each. @throws OnejobError E_CI_ANSWER when the service gave the agent no way to sign in */
export function agentFiles(parts: AgentFileParts): { readonly name: string; readonly text: string }[] {
  const { agent, pool, name, workFolder, key } = parts;
  const url = baseOf(parts.url);
  if (agent.authorization === null) {
    throw new OnejobError('E_CI_ANSWER', `Cannot start agent ${name}: ${url} registered it without a way to sign in.`, {
      hint: 'Azure DevOps Server before 2017 cannot do this; set "registration: in-agent" for it.',
      retry: true,
    });
  }
  const { clientId, authorizationUrl } = agent.authorization;
  const settings = {
    acceptTeeEula: true,
    agentId: agent.id,
    agentName: name,
    poolId: pool.id,
    poolName: pool.name,
    serverUrl: agent.serverUrl === null ? url : onHostOf(url, agent.serverUrl),
    workFolder,
  };
  // The first is the audience of the agent's assertion and stays as the service has it. A Server behind another name than
  // its own is only reached by the one that is configured.
  const data = {
    clientId,
    authorizationUrl,
    oauthEndpointUrl: isHostedAzure(url) ? authorizationUrl : onHostOf(url, authorizationUrl),
  };
  return [
    { name: '.agent', text: JSON.stringify(settings) },
    { name: '.credentials', text: JSON.stringify({ scheme: 'OAuth', data }) },
    { name: '.credentials_rsaparams', text: key.rsaParameters },
  ];
}

/** `there` at scheme, host and port of `url`; `url` itself when `there` is no address. */
function onHostOf(url: string, there: string): string {
  const found = URL.parse(there);
  if (found === null) return url;
  const moved = new URL(url);
  moved.pathname = found.pathname;
  moved.search = found.search;
  return moved.href;
}

export interface AgentKey {
  /** Standard base64, big-endian, as the service takes it. */
  readonly publicKey: { readonly exponent: string; readonly modulus: string };
  /** Text of `.credentials_rsaparams`. It is the private key: whoever has it is this agent. */
  readonly rsaParameters: string;
}

const bits = 2048;
const whole = bits / 8;
const half = whole / 2;

/**
 * Bytes of each part of a private key, by its name in a JWK (.NET `RSAParameters`). .NET reads them only at their exact lengths, while
 * a JWK leaves out leading zeros: about one key in fifty would make an agent that cannot start.
 */
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
  const exponents = { d: part('d'), dp: part('dp'), dq: part('dq'), exponent };
  const parameters = { ...exponents, inverseQ: part('qi'), modulus, p: part('p'), q: part('q') };
  return { publicKey: { exponent, modulus }, rsaParameters: JSON.stringify(parameters) };
}
