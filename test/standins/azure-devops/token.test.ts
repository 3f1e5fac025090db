import { afterEach, expect, test } from 'vitest';
import { asking, basic } from './asking.ts';
import { handAgent, newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from './standin.ts';

const MINUTE = 60_000;
const POOLS = '_apis/distributedtask/pools';
let azure: AzureDevOps;
afterEach(() => azure[Symbol.asyncDispose]());

async function registered(o: StandInOptions = {}) {
  azure = await startAzureDevOps(o);
  const pool = azure.addPool('gpu');
  return { pool, agent: await registerByHand(azure, pool, 'one') };
}

test('an assertion signed with the key of the registration gives a token', async () => {
  const { agent } = await registered();
  expect(await agent.signIn()).toMatch(/^agent\./);
  expect(azure.log.at(-1)).toMatchObject({ route: 'oauth2/token', identity: 'none', leaked: false });
});

test('another key, or a registration that is gone, is not a valid client', async () => {
  const { pool, agent } = await registered();
  await expect(handAgent({ ...agent.identity, key: newKey() }).signIn()).rejects.toThrow(/^400 .*The client is not valid/);
  await asking(azure)('DELETE', `${POOLS}/${pool}/agents/${agent.identity.agentId}`);
  await expect(agent.signIn()).rejects.toThrow(/^400 .*The client is not valid/);
});

test('a clock that differs by more than assertions bear is named', async () => {
  const { agent } = await registered();
  await agent.signIn(Date.now() - 4 * MINUTE);
  azure.faults.skew = 30 * MINUTE;
  await expect(agent.signIn()).rejects.toThrow(/^400 .*Current server time is/);
});

test('on-premises the audience is the name that the service gives itself', async () => {
  const { agent } = await registered({ collectionPath: 'tfs/DefaultCollection' });
  expect(new URL(agent.identity.authorizationUrl).hostname).toBe('tfs.stand-in.invalid');
  await agent.signIn();
  const mistaken = handAgent({ ...agent.identity, authorizationUrl: agent.identity.tokenUrl });
  await expect(mistaken.signIn()).rejects.toThrow(/^400 .*audience/);
});

test('a token ends with its time', async () => {
  let now = Date.now();
  const { pool, agent } = await registered({ now: () => now, tokenMs: MINUTE });
  const token = await agent.signIn();
  now += MINUTE;
  expect(await asking(azure, `Bearer ${token}`)('GET', `${POOLS}/${pool}/messages?sessionId=x`)).toMatchObject({
    status: 401,
    json: { typeKey: 'TaskAgentAccessTokenExpiredException' },
  });
});

const grant = (o: Partial<Record<string, string>> = {}, tenant = azure.principal.tenant) =>
  asking(azure, null)(
    'POST',
    `${azure.principal.authority}/${tenant}/oauth2/v2.0/token`,
    new URLSearchParams({
      grant_type: 'client_credentials',
      client_id: azure.principal.client,
      client_secret: azure.principal.secret,
      scope: '499b84ac-1321-427f-aa17-267ca6975798/.default',
      ...o,
    }),
  );

test("the principal's secret gives a token with the manager's rights, and is not a leak where it belongs", async () => {
  azure = await startAzureDevOps();
  const { status, json } = await grant();
  expect({ status, json }).toMatchObject({ status: 200, json: { token_type: 'Bearer', expires_in: 3600 } });
  expect(azure.log.at(-1)).toMatchObject({ route: 'entra/token', leaked: false });
  const ask = asking(azure, `Bearer ${json?.access_token}`);
  expect((await ask('GET', POOLS)).status).toBe(200);
  expect(azure.log.at(-1)?.identity).toBe('principal');
  azure.expirePrincipal();
  expect((await ask('GET', POOLS)).status).toBe(401);
  expect(await grant()).toMatchObject({ status: 401, json: { error: 'invalid_client', error_codes: [7000222] } });
});

test('Entra says what is wrong in its own words', async () => {
  azure = await startAzureDevOps();
  expect(await grant({ client_secret: 'wrong' })).toMatchObject({
    status: 401,
    json: { error: 'invalid_client', error_description: expect.stringMatching(/^AADSTS7000215/) },
  });
  expect(await grant({ client_id: 'wrong' })).toMatchObject({ status: 400, json: { error: 'unauthorized_client' } });
  expect(await grant({ scope: 'wrong' })).toMatchObject({ status: 400, json: { error: 'invalid_scope' } });
  expect(await grant({}, 'wrong')).toMatchObject({ status: 400, json: { error_codes: [90002] } });
});

test('on-premises knows no principals', async () => {
  azure = await startAzureDevOps({ collectionPath: 'tfs/DefaultCollection' });
  const { json } = await grant();
  expect((await asking(azure, `Bearer ${json?.access_token}`)('GET', POOLS)).status).toBe(401);
  expect((await asking(azure, basic(azure.pat))('GET', POOLS)).status).toBe(200);
});
