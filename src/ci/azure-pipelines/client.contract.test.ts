/** The client against the stand-in for Azure DevOps: every method, in the cloud's way and in that of a Server of one's own. */
import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { failureOf, memory, patient } from '../../../test/kit/azure.ts';
import { type AzureDevOps, startAzureDevOps } from '../../../test/standins/azure-devops/standin.ts';
import { systemClock } from '../../system/system-clock.ts';
import { AzureClient } from './client.ts';
import { createCredential } from './credential.ts';
import { makeAgentKey } from './script.ts';
import { requestState } from './wire.ts';

function clientOf({ url, pat }: AzureDevOps) {
  const credential = createCredential({ kind: 'pat', token: memory(pat) }, { clock: systemClock, url });
  return new AzureClient({ url, credential, clock: systemClock, version: '0' });
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

    const queued = service.queue(id, { name: 'train', demands: ['cuda'], definition: 'nightly', branch: 'main' });
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
