import { afterEach, expect, test } from 'vitest';
import { handAgentFromFiles, newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

let azure: AzureDevOps;
afterEach(() => azure[Symbol.asyncDispose]());

test('three files make the agent that they describe, and a value that is too short is refused', async () => {
  azure = await startAzureDevOps({ pollHoldMs: 20 });
  const pool = azure.addPool('gpu');
  const key = newKey();
  const { identity } = await registerByHand(azure, pool, 'one', { key });
  const jwk = key.export({ format: 'jwk' });
  const wide = (value: string | undefined, length: number) => {
    const bytes = Buffer.from(value ?? '', 'base64url');
    return Buffer.concat([Buffer.alloc(length - bytes.length), bytes]).toString('base64');
  };
  const rsa = {
    modulus: wide(jwk.n, 256),
    exponent: 'AQAB',
    d: wide(jwk.d, 256),
    p: wide(jwk.p, 128),
    q: wide(jwk.q, 128),
    dp: wide(jwk.dp, 128),
    dq: wide(jwk.dq, 128),
    inverseQ: wide(jwk.qi, 128),
  };
  const files = (parameters: object) => ({
    '.agent': JSON.stringify({
      agentId: identity.agentId,
      agentName: 'one',
      poolId: pool,
      serverUrl: `${azure.url}/`,
      workFolder: '_work',
    }),
    '.credentials': JSON.stringify({
      scheme: 'OAuth',
      data: { clientId: identity.clientId, authorizationUrl: identity.authorizationUrl, oauthEndpointUrl: identity.tokenUrl },
    }),
    '.credentials_rsaparams': JSON.stringify(parameters),
  });
  const agent = handAgentFromFiles(files(rsa));
  await agent.open();
  azure.queue(pool, { script: 'true' });
  expect((await agent.take()).script).toBe('true');
  expect(() => handAgentFromFiles(files({ ...rsa, dp: Buffer.alloc(127).toString('base64') }))).toThrow('must be 128 bytes');
});
