import { afterEach, beforeEach, expect, test } from 'vitest';
import { asking, basic, registration } from './asking.ts';
import { newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

const POOLS = '_apis/distributedtask/pools';
let azure: AzureDevOps;
let pool: number;
beforeEach(async () => {
  azure = await startAzureDevOps({ pollHoldMs: 20 });
  pool = azure.addPool('gpu');
});
afterEach(() => azure[Symbol.asyncDispose]());

test('without a credential connectionData asks for one, in the words that make clients send it', async () => {
  const { status, headers } = await asking(azure, null)('GET', '_apis/connectionData');
  expect(status).toBe(401);
  expect(headers.get('www-authenticate')).toMatch(/^Bearer .*, Basic /);
});

test('a PAT has the shape by which it is recognised in logs', () => {
  expect(azure.pat).toMatch(/^.{76}AZDO.{4}$/);
});

test('an unknown or expired PAT meets a sign-in page, a redirect, or JSON, as the method and the headers say', async () => {
  azure.expirePat(azure.pat);
  const ask = asking(azure);
  expect(await ask('GET', POOLS)).toMatchObject({ status: 203, json: null, text: expect.stringContaining('Sign In') });
  expect(await ask('PATCH', `${POOLS}/${pool}`, {})).toMatchObject({
    status: 401,
    json: { typeKey: 'UnauthorizedRequestException', message: expect.stringMatching(/^TF400813/) },
  });
  const redirect = await ask('GET', POOLS, undefined, { 'x-tfs-fedauthredirect': 'no' });
  expect(redirect).toMatchObject({ status: 302 });
  expect(redirect.headers.get('location')).toContain('/_signin');
  expect(await asking(azure, basic(`${azure.pat}\n`))('GET', POOLS)).toMatchObject({ status: 401, text: '' });
});

test.each([
  ['agentpools', 200, 403],
  ['agentpools_manage', 200, 200],
  ['build', 403, 403],
] as const)('the scope %s reads pools: %i, adds agents: %i', async (scope, read, add) => {
  const ask = asking(azure, basic(azure.addPat({ scopes: [scope] })));
  expect((await ask('GET', POOLS)).status).toBe(read);
  expect((await ask('POST', `${POOLS}/${pool}/agents`, registration('one'))).status).toBe(add);
});

test('the right scope without the role on the pool does not add agents', async () => {
  const ask = asking(azure, basic(azure.addPat({ scopes: ['agentpools_manage'], poolAdmin: false })));
  expect((await ask('GET', POOLS)).status).toBe(200);
  expect(await ask('POST', `${POOLS}/${pool}/agents`, registration('one'))).toMatchObject({
    status: 403,
    json: { typeKey: 'AccessDeniedException' },
  });
});

test('a PAT sent as a bearer token is refused, and still counted as the PAT', async () => {
  expect((await asking(azure, `Bearer ${azure.pat}`)('GET', `${POOLS}/${pool}/messages?sessionId=x`)).status).toBe(401);
  expect(azure.log.at(-1)).toMatchObject({ route: 'messages', identity: 'pat' });
});

test('an agent acts for itself only, and not at all once its registration is gone', async () => {
  const key = newKey();
  const [one, two] = [await registerByHand(azure, pool, 'one', { key }), await registerByHand(azure, pool, 'two', { key })];
  const asOne = asking(azure, `Bearer ${await one.signIn()}`);
  const session = { ownerName: 'x', agent: { id: two.identity.agentId, name: 'two' } };
  expect((await asOne('POST', `${POOLS}/${pool}/sessions`, session)).status).toBe(403);
  await asking(azure)('DELETE', `${POOLS}/${pool}/agents/${one.identity.agentId}`);
  expect(await asOne('POST', `${POOLS}/${pool}/sessions`, session)).toMatchObject({
    status: 404,
    json: { typeKey: 'TaskAgentNotFoundException' },
  });
});

test("a job's token opens its own plan, and nothing of another", async () => {
  const agent = await registerByHand(azure, pool, 'one');
  await agent.open();
  azure.queue(pool);
  const first = await agent.take();
  await agent.complete(first, 'succeeded', { leaving: false });
  azure.queue(pool);
  const second = await agent.take();
  const stolen = { ...first, message: { ...first.message, plan: second.message.plan, timeline: second.message.timeline } };
  await expect(agent.feed(stolen, ['x'])).rejects.toThrow(/^403 .*another plan/);
});

test('a secret of the manager in a path or a body is noticed', async () => {
  const ask = asking(azure);
  await ask('GET', `${POOLS}?poolName=${azure.pat}`);
  await ask('POST', `${POOLS}/${pool}/agents`, registration('one', { systemCapabilities: { AZP_TOKEN: azure.pat } }));
  await ask('POST', '_apis/oauth2/token', new URLSearchParams({ password: azure.principal.secret }));
  await ask('GET', POOLS);
  expect(azure.log.map((entry) => entry.leaked)).toEqual([true, true, true, false]);
});

test('another organisation is a page that does not exist', async () => {
  const { status, json, text } = await asking(azure)('GET', `${azure.url}x/${POOLS}`);
  expect({ status, json }).toEqual({ status: 404, json: null });
  expect(text).toContain('<html');
});

test('another collection of the same server is not ours either', async () => {
  await using server = await startAzureDevOps({ collectionPath: 'tfs/DefaultCollection' });
  const ask = asking(server);
  expect((await ask('GET', POOLS)).status).toBe(200);
  expect((await ask('GET', `${new URL(server.url).origin}/tfs/Other/${POOLS}`)).status).toBe(404);
});

test('only GET may leave out the api-version, and a preview must be called so', async () => {
  const ask = asking(azure);
  expect((await ask('GET', POOLS, undefined, { accept: '*/*' })).status).toBe(200);
  const post = (accept: string) => ask('POST', `${POOLS}/${pool}/agents`, registration('one'), { accept });
  expect(await post('application/json')).toMatchObject({ status: 400, json: { typeKey: 'VssVersionNotSpecifiedException' } });
  expect(await post('application/json;api-version=7.2')).toMatchObject({
    status: 400,
    json: { typeKey: 'VssInvalidPreviewVersionException' },
  });
  expect((await post('application/json;api-version=7.2-preview.1')).status).toBe(200);
});
