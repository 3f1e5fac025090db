/** The stand-in refuses what Azure refuses: otherwise a wrong request of onejob would not be seen. */
import { describe, expect, it } from 'vitest';
import { usualImage } from '../../../src/clouds/azure/config.ts';
import { machineBody } from '../../../src/clouds/azure/machine.ts';
import { azureConfig, orderOf, run } from '../../kit/azure-cloud.ts';
import { handClock } from '../../kit/core.ts';
import { azureCloud, location, securityGroup, subscription } from './azure-cloud.ts';

const base = `/subscriptions/${subscription}`;
const group = `${base}/resourceGroups/${run}`;
const machine = `${group}/providers/Microsoft.Compute/virtualMachines/${run}`;
const key = `ssh-rsa ${Buffer.concat([Buffer.from([0, 0, 0, 7]), Buffer.from('ssh-rsa'), Buffer.alloc(270)]).toString('base64')}`;
const good = machineBody(orderOf({ usualImage }, 1893456000), azureConfig, key);
type Body = typeof good;

function lab() {
  const azure = azureCloud({ clock: handClock() });
  const ask = async (
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = { Authorization: `Bearer ${azure.token()}` },
  ) => {
    const answer = await azure.fetch(`https://management.azure.com${path}`, { method, headers, body: JSON.stringify(body) });
    const text = await answer.text();
    const json = text === '' ? {} : (JSON.parse(text) as { error?: { code?: string } });
    return `${answer.status} ${json.error?.code ?? ''}`.trim();
  };
  return { azure, ask };
}

async function withGroup() {
  const one = lab();
  expect(await one.ask('PUT', `${group}?api-version=2021-04-01`, { location, tags: {} })).toBe('201');
  return { ...one, put: (body: unknown) => one.ask('PUT', `${machine}?api-version=2025-04-01`, body) };
}

/** The good body with something else in its properties. */
const changed = (change: (properties: Record<string, unknown> & Body['properties']) => void): object => {
  const copy = structuredClone(good);
  change(copy.properties as Record<string, unknown> & Body['properties']);
  return copy;
};

it('accepts what onejob sends, once', async () => {
  const { put } = await withGroup();
  expect([await put(good), await put(good)]).toEqual(['201', '409 PropertyChangeNotAllowed']);
});

describe('refuses a machine', () => {
  it.each<[string, object]>([
    ['with a field that does not exist', { ...good, maxRunDuration: 1 }],
    ['with a property that does not exist', changed((it) => void Object.assign(it, { delete_option: 'Delete' }))],
    ['with a wrong value', changed((it) => void Object.assign(it, { evictionPolicy: 'Vanish' }))],
    ['on demand with an eviction policy', changed((it) => void Object.assign(it, { evictionPolicy: 'Delete' }))],
    ['without a location', { ...good, location: undefined }],
    ['of another location', { ...good, location: 'eastus' }],
    ['of no size', changed((it) => void Object.assign(it.hardwareProfile, { vmSize: 'Standard_None' }))],
    ['with a password', changed((it) => void Object.assign(it.osProfile, { adminPassword: 'x' }))],
    ['with plain text for cloud-init', changed((it) => void Object.assign(it.osProfile, { customData: '#cloud-config' }))],
    [
      'with too much for cloud-init',
      changed((it) => void Object.assign(it.osProfile, { customData: Buffer.alloc(65_536).toString('base64') })),
    ],
    ['for root', changed((it) => void Object.assign(it.osProfile, { adminUsername: 'root' }))],
    [
      'with a short key',
      changed((it) => void Object.assign(it.osProfile.linuxConfiguration.ssh.publicKeys[0] ?? {}, { keyData: 'ssh-rsa AAAA' })),
    ],
    ['of another network version', changed((it) => void Object.assign(it.networkProfile, { networkApiVersion: '2024-01-01' }))],
    [
      'with an unknown disk',
      changed((it) => void Object.assign(it.storageProfile.osDisk, { managedDisk: { storageAccountType: 'Fast' } })),
    ],
    ['with an unknown image', changed((it) => void Object.assign(it.storageProfile, { imageReference: { id: `${base}/none` } }))],
  ])('%s', async (_, body) => {
    const { put, azure } = await withGroup();
    expect([await put(body), azure.world.resources.size]).toEqual([expect.stringMatching(/^40[04] \w+/), 0]);
  });

  it('in a group that is not there, or goes', async () => {
    const { ask } = lab();
    expect(await ask('PUT', `${machine}?api-version=2025-04-01`, good)).toBe('404 ResourceGroupNotFound');
    const { ask: other, put } = await withGroup();
    await other('DELETE', `${group}?api-version=2021-04-01`);
    expect(await put(good)).toBe('409 ResourceGroupBeingDeleted');
  });

  it('behind a security group of another location', async () => {
    const { put, azure } = await withGroup();
    azure.securityGroups.set(securityGroup.toLowerCase(), { location: 'eastus', rules: [] });
    expect(await put(good)).toBe('400 InvalidResourceReference');
  });
});

it.each([
  ['without a version', 'GET', `${base}/resourcegroups`, '400 MissingApiVersionParameter'],
  ['with a version that does not exist', 'GET', `${base}/resourcegroups?api-version=2001-01-01`, '400 NoRegisteredProviderFound'],
  ['with an unknown parameter', 'GET', `${base}/resourcegroups?api-version=2021-04-01&all=1`, '400 InvalidQueryParameter'],
  ['with another filter', 'GET', `${base}/resources?api-version=2021-04-01&$filter=name eq 'x'`, '400 InvalidFilterInQueryString'],
  ['of another subscription', 'GET', '/subscriptions/0/resourcegroups?api-version=2021-04-01', '404 SubscriptionNotFound'],
  ['of no resource', 'GET', `${base}/machines?api-version=2021-04-01`, '404 InvalidResourceType'],
  [
    'by force of another type',
    'DELETE',
    `${group}?api-version=2021-04-01&forceDeletionTypes=Microsoft.Storage/all`,
    '400 InvalidForceDeletionTypes',
  ],
])('refuses a request %s', async (_, method, path, answer) => {
  const { ask } = await withGroup();
  expect(await ask(method, path)).toBe(answer);
});

it('refuses a request without a token, with another one, and with an old one', async () => {
  const { ask, azure } = lab();
  const path = `${base}/resourcegroups?api-version=2021-04-01`;
  expect(await ask('GET', path, undefined, {})).toBe('401 InvalidAuthenticationToken');
  expect(await ask('GET', path, undefined, { Authorization: 'Bearer mine' })).toBe('401 InvalidAuthenticationToken');
  const old = { Authorization: `Bearer ${azure.token(0)}` };
  expect(await ask('GET', path, undefined, old)).toBe('401 ExpiredAuthenticationToken');
});

it.each([
  ['an end in the past', { deadline: '2029-12-31T00:00:00Z' }],
  ['an end after 14 days', { deadline: '2030-01-16T00:00:00Z' }],
  ['an end without a zone', { deadline: '2030-01-02T00:00:00' }],
  ['an end of an unknown kind', { deadlineType: 'Whenever' }],
  ['the old spelling', { deadLine: '2030-01-02T00:00:00Z' }],
])('refuses %s', async (_, more) => {
  const { ask } = lab();
  const schedule = { deadline: '2030-01-02T00:00:00Z', timezone: 'UTC', deadlineType: 'InitiateAt', ...more };
  const body = {
    schedule,
    executionParameters: {},
    resources: { ids: [machine] },
    correlationid: '0b8c0c26-94f5-4e0f-8f5a-0f3f0c9d8e7f',
  };
  const path = `${base}/providers/Microsoft.ComputeSchedule/locations/${location}/virtualMachinesSubmitDeallocate?api-version=2025-05-01`;
  expect(await ask('POST', path, body)).toMatch(/^400 Invalid/);
});

it('answers on a port, too', async () => {
  const azure = azureCloud();
  await using _server = await azure.serve();
  const headers = { Authorization: `Bearer ${azure.token()}` };
  const answer = await fetch(`${azure.url}${base}?api-version=2022-12-01`, { headers });
  expect(await answer.json()).toMatchObject({ subscriptionId: subscription });
});
