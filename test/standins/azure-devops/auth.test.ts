/** What the stand-in refuses and notices, where no test of onejob would miss it. */
import { afterEach, expect, test } from 'vitest';
import { handAgent, newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

let azure: AzureDevOps;
afterEach(() => azure[Symbol.asyncDispose]());

/** The status that a request gets, below the organisation; as the manager unless another header is given. */
async function asked(method: string, path: string, body?: string | URLSearchParams, authorization?: string): Promise<number> {
  const { status } = await fetch(path.startsWith('http') ? path : `${azure.url}/_apis/${path}`, {
    method,
    headers: {
      accept: 'application/json; api-version=7.1',
      authorization: authorization ?? `Basic ${Buffer.from(`:${azure.pat}`).toString('base64')}`,
    },
    ...(body !== undefined && { body }),
  });
  return status;
}

test('an agent signs in with the key of its registration for the audience that it was told, and not otherwise', async () => {
  azure = await startAzureDevOps({ collectionPath: 'tfs/DefaultCollection' });
  const { identity } = await registerByHand(azure, azure.addPool('gpu'), 'one');
  expect(await handAgent(identity).signIn()).toMatch(/^agent\./);
  expect(new URL(identity.authorizationUrl).hostname).toBe('tfs.stand-in.invalid');
  await expect(handAgent({ ...identity, key: newKey() }).signIn()).rejects.toThrow(/^400 .*The client is not valid/);
  await expect(handAgent({ ...identity, authorizationUrl: identity.tokenUrl }).signIn()).rejects.toThrow(/^400 .*audience/);
});

test('a PAT sent as a bearer token is refused, and still counted as the PAT', async () => {
  azure = await startAzureDevOps();
  const pool = azure.addPool('gpu');
  expect(await asked('GET', `distributedtask/pools/${pool}/messages?sessionId=x`, undefined, `Bearer ${azure.pat}`)).toBe(401);
  expect(azure.log.at(-1)).toMatchObject({ route: 'messages', identity: 'pat' });
});

test('a secret of the manager is noticed in a path and a body, but not where it belongs; and Entra takes no other', async () => {
  azure = await startAzureDevOps();
  const { tenant, client, secret, authority } = azure.principal;
  const grant = (client_secret: string) => {
    const scope = '499b84ac-1321-427f-aa17-267ca6975798/.default';
    const form = new URLSearchParams({ grant_type: 'client_credentials', client_id: client, client_secret, scope });
    return asked('POST', `${authority}/${tenant}/oauth2/v2.0/token`, form);
  };
  await asked('GET', `distributedtask/pools?poolName=${azure.pat}`);
  await asked('POST', 'distributedtask/pools/1/agents', JSON.stringify({ systemCapabilities: { AZP_TOKEN: azure.pat } }));
  await asked('POST', 'oauth2/token', new URLSearchParams({ password: secret }));
  await asked('GET', 'distributedtask/pools');
  expect([await grant(secret), await grant('wrong')]).toEqual([200, 401]);
  expect(azure.log.map(({ leaked }) => leaked)).toEqual([true, true, true, false, false, false]);
});
