/** The client against the stand-in for Azure DevOps: every method, in the cloud's way and in that of a Server of one's own. */
import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { failureOf, memory, patient } from '../../../test/kit/azure.ts';
import { type AzureDevOps, NAMED_FAULTS, startAzureDevOps } from '../../../test/standins/azure-devops/standin.ts';
import { systemClock } from '../../system/system-clock.ts';
import { AzureClient } from './client.ts';
import { createCredential } from './credential.ts';
import { agentFiles, makeAgentKey } from './script.ts';
import { requestState } from './wire.ts';

const parts = { clock: systemClock };
function clientOf(service: AzureDevOps, token = service.pat, timeout = 20_000) {
  const credential = createCredential({ kind: 'pat', token: memory(token) }, { ...parts, url: service.url });
  return new AzureClient({ url: service.url, credential, clock: systemClock, version: '0', timeout });
}
async function newAgent(name: string, systemCapabilities: Record<string, string> = {}) {
  const { publicKey } = await makeAgentKey();
  return { name, version: '5.278.0', osDescription: 'Linux', systemCapabilities, publicKey };
}

describe.each([
  ['in the cloud', {}],
  ['on a Server', { collectionPath: 'tfs/Default Collection' }],
])('%s', (_, options) => {
  it('every method', async () => {
    await using service = await startAzureDevOps(options);
    const client = clientOf(service);
    const id = service.addPool('GPU größe', { autoUpdate: false });

    const connection = await client.connection(patient);
    expect(connection.user).toEqual(expect.any(String));
    expect(Math.abs(connection.skew ?? Number.NaN)).toBeLessThan(60_000);

    expect(await client.findPool('gpu GRÖSSE'.replace('SS', 'ß'), patient)).toMatchObject({ id, autoUpdate: false });
    expect(await client.findPool('nowhere', patient)).toBeNull();
    expect((await client.pools(patient)).map(({ name }) => name)).toEqual(expect.arrayContaining(['Default', 'GPU größe']));

    const made = await client.addAgent(id, await newAgent('gpu-0', { cuda: '12.4' }), patient);
    expect(made).toMatchObject({ name: 'gpu-0', authorization: { clientId: expect.any(String) } });
    expect(await failureOf(client.addAgent(id, await newAgent('gpu-0'), patient))).toMatchObject({ code: 'E_CI_NAME_TAKEN' });

    expect(await client.setUserCapabilities(id, made.id, { 'gpu.model': 'A100' }, patient)).toBe('done');
    expect(await client.setEnabled(id, made.id, false, patient)).toBe('done');
    const all = { capabilities: true, assigned: true };
    const seen = { id: made.id, status: 'offline', enabled: false, userCapabilities: { 'gpu.model': 'A100' } };
    expect(await client.agent(id, made.id, all, patient)).toMatchObject({ ...seen, systemCapabilities: { cuda: '12.4' } });
    expect(await client.agents(id, { name: 'gpu-0', ...all }, patient)).toMatchObject([seen]);
    expect(await client.agents(id, {}, patient)).toMatchObject([{ id: made.id, systemCapabilities: null }]);
    expect(await client.agents(id, { name: 'other' }, patient)).toEqual([]);
    expect(await client.setEnabled(id, made.id, true, patient)).toBe('done');

    const queued = service.queue(id, { name: 'train', demands: ['cuda'], definition: 'nightly', branch: 'main', fork: true });
    const [request] = await client.requests(id, { unfinished: true }, patient);
    expect(request).toMatchObject({ requestId: queued.requestId, demands: expect.arrayContaining(['cuda']), result: null });
    expect(request && requestState(request)).toBe('waiting');
    expect(request?.matchedAgents?.map((one) => one.id)).toEqual([made.id]);
    expect(await client.requests(id, { agent: made.id }, patient)).toEqual([]);
    expect(await client.build(request?.scopeId ?? '', request?.owner?.id ?? 0, patient)).toMatchObject({
      sourceBranch: 'main',
    });
    expect(await client.build(request?.scopeId ?? '', 987_654, patient)).toBeNull();

    expect(await client.deleteAgent(id, made.id, patient)).toBe('deleted');
    expect(await client.deleteAgent(id, made.id, patient)).toBe('absent');
    expect(await client.agent(id, made.id, {}, patient)).toBeNull();
    expect(await failureOf(client.agents(9_999, {}, patient))).toMatchObject({ code: 'E_CI_POOL' });
  });

  it('the files of an agent name addresses that answer', async () => {
    await using service = await startAzureDevOps(options);
    const client = clientOf(service);
    const id = service.addPool('gpu');
    const key = await makeAgentKey();
    const agent = await client.addAgent(id, { ...(await newAgent('gpu-0')), publicKey: key.publicKey }, patient);
    const files = agentFiles(agent, { id, name: 'gpu' }, { url: service.url, name: 'gpu-0', key });
    const data = JSON.parse(files[1]?.text ?? '').data as { oauthEndpointUrl: string };
    // Without an assertion it refuses, in its own words.
    const answer = await fetch(data.oauthEndpointUrl, {
      method: 'POST',
      body: new URLSearchParams({ grant_type: 'client_credentials' }),
    });
    expect([answer.status, await answer.json()]).toEqual([400, expect.objectContaining({ error: expect.any(String) })]);
  });
});

it('as an Entra application', async () => {
  await using service = await startAzureDevOps();
  const { tenant, client: application, secret, authority } = service.principal;
  const config = { kind: 'principal', tenant, client: application, secret: memory(secret), authority } as const;
  const credential = createCredential(config, { ...parts, url: service.url });
  const client = new AzureClient({ url: service.url, credential, clock: systemClock, version: '0' });
  expect((await client.pools(patient)).length).toBeGreaterThan(0);
  expect(service.log.filter(({ path }) => path.includes('/pools')).map(({ identity }) => identity)).toEqual(['principal']);
});

it('an expired token, and one without the rights', async () => {
  await using service = await startAzureDevOps();
  const pool = service.addPool('gpu');
  const expired = service.addPat({ scopes: ['agentpools_manage'], expired: true });
  expect(await failureOf(clientOf(service, expired).pools(patient))).toMatchObject({ code: 'E_CI_CREDENTIAL' });
  const reader = clientOf(service, service.addPat({ scopes: ['agentpools'] }));
  expect(await reader.agents(pool, {}, patient)).toEqual([]);
  expect(await failureOf(reader.addAgent(pool, await newAgent('x'), patient))).toMatchObject({ code: 'E_CI_DENIED' });
  const noAdmin = clientOf(service, service.addPat({ scopes: ['agentpools_manage'], poolAdmin: false }));
  expect(await failureOf(noAdmin.addAgent(pool, await newAgent('x'), patient))).toMatchObject({ code: 'E_CI_DENIED' });
});

describe('on a bad day', () => {
  const expected: Record<keyof typeof NAMED_FAULTS, string | null> = {
    'rejected-203': 'E_CI_CREDENTIAL',
    'rejected-302': 'E_CI_CREDENTIAL',
    'rejected-401': 'E_CI_CREDENTIAL',
    'rejected-bare': 'E_CI_CREDENTIAL',
    denied: 'E_CI_DENIED',
    slowed: null,
    delay: 'E_CI_UNREACHABLE',
    hang: 'E_CI_UNREACHABLE',
    half: 'E_CI_UNREACHABLE',
    reset: 'E_CI_UNREACHABLE',
    lost: 'E_CI_UNREACHABLE',
    broken: 'E_CI_UNREACHABLE',
    garbage: 'E_CI_ANSWER',
    redirect: 'E_CI_ANSWER',
  };

  const isSilent = new Set(['delay', 'hang', 'half']);

  it.each(Object.entries(expected))('%s: %s', async (name, code) => {
    const fault = NAMED_FAULTS[name]?.fault;
    if (fault === undefined) throw new Error(`The stand-in has no fault ${name}.`);
    await using service = await startAzureDevOps();
    const pool = service.addPool('gpu');
    service.faults.add(fault);
    const client = clientOf(service, service.pat, isSilent.has(name) ? 500 : 20_000);
    const asked = client.agents(pool, {}, patient);
    if (code === null) expect(await asked).toEqual([]);
    else expect(await failureOf(asked)).toMatchObject({ code });
    expect(service.strays).toEqual([]);
    expect(service.log.some(({ leaked }) => leaked)).toBe(false);
  });

  it('asks to be left alone for longer than a call may wait', async () => {
    await using service = await startAzureDevOps();
    service.faults.add({ kind: 'throttled', retryAfter: 100 });
    expect(await failureOf(clientOf(service).pools(patient))).toMatchObject({ code: 'E_CI_THROTTLED' });
  });

  it('an answer that was lost: the agent is there, and was sent once', async () => {
    await using service = await startAzureDevOps();
    const pool = service.addPool('gpu');
    service.faults.add({ kind: 'lost' }, { method: 'POST' });
    const client = clientOf(service);
    expect(await failureOf(client.addAgent(pool, await newAgent('gpu-0'), patient))).toMatchObject({ code: 'E_CI_UNREACHABLE' });
    expect(service.agents(pool).map(({ name }) => name)).toEqual(['gpu-0']);
    expect(service.log.filter(({ method, path }) => method === 'POST' && path.endsWith('/agents'))).toHaveLength(1);
  });

  it('an agent that is not given up', async () => {
    await using service = await startAzureDevOps();
    const pool = service.addPool('gpu');
    const client = clientOf(service);
    const { id } = await client.addAgent(pool, await newAgent('gpu-0'), patient);
    const refused = NAMED_FAULTS['delete-refused']?.fault;
    if (refused !== undefined) service.faults.add(refused, { method: 'DELETE', times: 1 });
    expect(await client.deleteAgent(pool, id, patient)).toEqual({ refused: expect.stringContaining('running a job') });
    expect(await client.deleteAgent(pool, id, patient)).toBe('deleted');
  });

  it('a service that went away, and came back', async () => {
    await using service = await startAzureDevOps();
    const client = clientOf(service);
    await client.pools(patient);
    await service.faults.down();
    expect(await failureOf(client.pools(patient))).toMatchObject({ code: 'E_CI_UNREACHABLE' });
    await service.faults.up();
    expect((await client.pools(patient)).length).toBeGreaterThan(0);
  });

  it('clocks that are apart', async () => {
    await using service = await startAzureDevOps();
    service.faults.skew = 600_000;
    const { skew } = await clientOf(service).connection(patient);
    expect(Math.abs((skew ?? 0) - 600_000)).toBeLessThan(60_000);
  });
});

it('packages, with the checksum of what is handed out', async () => {
  await using service = await startAzureDevOps();
  const client = clientOf(service);
  const folder = await mkdtemp(join(tmpdir(), 'onejob-package-'));
  try {
    const file = join(folder, 'agent.tar.gz');
    await writeFile(file, 'not really');
    for (const version of ['4.275.0', '5.278.0', '5.99.1']) await service.addPackage({ version, file });
    const found = await client.packages('linux-x64', patient);
    expect(found.map(({ version }) => version)).toEqual(['5.278.0', '5.99.1', '4.275.0']);
    const [newest] = found;
    const body = Buffer.from(await (await fetch(newest?.url ?? '')).arrayBuffer());
    expect(createHash('sha256').update(body).digest('hex')).toBe(newest?.sha256);
  } finally {
    await rm(folder, { recursive: true });
  }
});
