import { describe, expect, it } from 'vitest';
import { azureWorld, patient } from '../../../test/kit/azure-cloud.ts';
import { galleryVersion, location, ownImage, securityGroup, subnet } from '../../../test/standins/azure-cloud/azure-cloud.ts';
import type { HostPlan } from '../../ports/cloud.ts';
import { usualImage } from './config.ts';
import { allPermissions } from './permissions.ts';

const size = 'Standard_NC4as_T4_v3';
const usual: HostPlan = {
  host: 'burst',
  types: [size],
  spot: 'prefer',
  image: usualImage,
  disk: 128,
  max: 4,
  lifetime: 6 * 3_600_000,
  budget: null,
  prices: {},
};

async function check(
  more: Partial<HostPlan> = {},
  change: (one: ReturnType<typeof azureWorld>) => void = () => {},
  ...options: Parameters<typeof azureWorld>
) {
  const one = azureWorld(...options);
  change(one);
  const findings = await one.settled(one.cloud.preflight({ ...usual, ...more }, patient));
  return { ...one, findings, bad: findings.filter(({ level }) => level !== 'ok') };
}

it('finds all well, and creates nothing', async () => {
  const { findings, bad, azure } = await check();
  expect(bad).toEqual([]);
  expect(azure.calls.filter((call) => !/^(GET|POST \S+\/oauth2)/.test(call))).toEqual([]);
  expect(findings.filter(({ subject }) => subject === 'permission').map(({ message }) => message)).toEqual(
    allPermissions.filter((one) => !/\/(galleries|images)\b/.test(one)),
  );
  expect(
    findings.filter(({ subject }) => subject !== 'permission').map(({ subject, message }) => `${subject}: ${message}`),
  ).toMatchInlineSnapshot(`
    [
      "credential: Entra application 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b is accepted for subscription Lab.",
      "provider: Microsoft.Compute is registered.",
      "provider: Microsoft.Network is registered.",
      "provider: Microsoft.ComputeSchedule is registered.",
      "size: Standard_NC4as_T4_v3 is offered in westeurope.",
      "quota: Standard NCASv3_T4 Family vCPUs in westeurope: 100, of which 0 are used; 4 of Standard_NC4as_T4_v3 need 16.",
      "quota: Total Regional vCPUs in westeurope: 100, of which 0 are used; 4 of Standard_NC4as_T4_v3 need 16.",
      "quota: Total Regional Spot vCPUs in westeurope: 100, of which 0 are used; 4 of Standard_NC4as_T4_v3 need 16.",
      "image: Canonical:ubuntu-24_04-lts:server:latest is version 24.04.202611010 now.",
      "network: /subscriptions/11111111-2222-4333-8444-555555555555/resourceGroups/onejob-shared/providers/Microsoft.Network/virtualNetworks/onejob/subnets/machines exists.",
      "network: /subscriptions/11111111-2222-4333-8444-555555555555/resourceGroups/onejob-shared/providers/Microsoft.Network/networkSecurityGroups/onejob lets nothing in by a rule of its own.",
      "end of life: Azure deallocates each machine at the end of its lifetime; onejob then removes its disk and address.",
      "price: Standard_NC4as_T4_v3 (spot) costs about 0.15 USD per hour (estimate, as of 2030-01-01).",
      "price: Standard_NC4as_T4_v3 costs about 0.63 USD per hour (estimate, as of 2030-01-01).",
    ]
  `);
});

describe('says what is wrong', () => {
  it('the credential, and nothing else then', async () => {
    const { findings } = await check({}, ({ azure }) => azure.lock());
    expect(findings.map(({ level, subject }) => [level, subject])).toEqual([['error', 'credential']]);
  });

  it('permissions, one by one', async () => {
    const missing = [
      'Microsoft.Compute/virtualMachines/delete',
      'Microsoft.ComputeSchedule/locations/virtualMachinesSubmitDeallocate/action',
    ];
    const { bad } = await check({}, ({ azure }) => azure.grant(...allPermissions.filter((one) => !missing.includes(one))));
    expect(bad.map(({ message }) => message)).toEqual(missing.map((one) => `${one} is missing.`));
  });

  it('a provider', async () => {
    const { bad } = await check({}, ({ azure }) => azure.registered.delete('Microsoft.ComputeSchedule'));
    expect(bad).toEqual([
      expect.objectContaining({
        level: 'error',
        hint: expect.stringContaining('az provider register --namespace Microsoft.ComputeSchedule'),
      }),
    ]);
    const { bad: none } = await check({}, ({ azure }) => azure.registered.delete('Microsoft.ComputeSchedule'), {
      config: { deathDate: 'manager-only' },
    });
    expect(none.map(({ level, subject }) => [level, subject])).toEqual([['warning', 'end of life']]);
  });

  it('sizes: unknown, closed, dead, or in need of another driver', async () => {
    const types = ['Standard_NC4as_T4_v9', 'Standard_NC24ads_A100_v4', 'Standard_NC6', 'Standard_NV36ads_A10_v5'];
    const { bad } = await check({ types, max: 1 });
    const about = bad.filter(({ subject }) => subject === 'size').map(({ level, message }) => [level, message]);
    expect(about).toEqual([
      ['error', `Standard_NC4as_T4_v9 does not exist in ${location}.`],
      ['error', `Standard_NC24ads_A100_v4 in ${location} is not open to this subscription (NotAvailableForSubscription).`],
      ['error', expect.stringContaining('K80')],
      ['warning', expect.stringContaining('GRID')],
    ]);
  });

  it('quotas: need against limit, on demand and spot', async () => {
    const family = 'Standard NCASv3_T4 Family';
    const { bad } = await check({}, ({ azure }) => {
      azure.quotas.set(family, { title: `${family} vCPUs`, limit: 0 });
      azure.quotas.set('lowPriorityCores', { title: 'Total Regional Spot vCPUs', limit: 8 });
    });
    expect(bad.map(({ level, message, hint }) => [level, message, hint])).toEqual([
      [
        'error',
        `${family} vCPUs in ${location}: 0, of which 0 are used; 4 of ${size} need 16.`,
        'Ask for at least 16 in the Azure portal under Quotas.',
      ],
      ['warning', expect.stringContaining('Total Regional Spot vCPUs'), expect.any(String)],
    ]);
    const { bad: spotOnly } = await check({ spot: 'only' }, ({ azure }) => azure.quotas.set(family, { title: family, limit: 0 }));
    expect(spotOnly).toEqual([]);
  });

  it('an image', async () => {
    for (const from of [ownImage, galleryVersion]) expect((await check({ image: { from, has: 'everything' } })).bad).toEqual([]);
    for (const from of ['Canonical:nothing:server:latest', `${ownImage}x`, 'ubuntu']) {
      const { bad } = await check({ image: { from, has: 'nothing' } });
      expect(bad.map(({ level, subject }) => [level, subject])).toEqual([['error', 'image']]);
    }
  });

  it('a network that is missing, without a way out, or open', async () => {
    const away = await check({}, ({ azure }) => azure.subnets.clear());
    expect(away.bad.map(({ message }) => message)).toEqual([expect.stringContaining('has no subnet "machines"')]);
    const moved = await check({}, ({ azure }) => azure.moveNetwork('eastus'));
    expect(moved.bad.map(({ message }) => message)).toEqual([expect.stringContaining('is in eastus, not in westeurope')]);
    const shut = await check({}, () => {}, { config: { publicIp: false, securityGroup: null } });
    expect(shut.bad.map(({ message }) => message)).toEqual([
      expect.stringContaining('no way out'),
      expect.stringContaining('network security group'),
    ]);
    const behind = await check(
      {},
      ({ azure }) => azure.subnets.set(subnet.toLowerCase(), { natGateway: { id: 'x' }, networkSecurityGroup: { id: 'x' } }),
      {
        config: { publicIp: false, securityGroup: null },
      },
    );
    expect(behind.bad).toEqual([]);
    const rules = [{ name: 'ssh', properties: { direction: 'Inbound', access: 'Allow' } }];
    const open = await check({}, ({ azure }) => azure.securityGroups.set(securityGroup.toLowerCase(), { location, rules }));
    expect(open.bad.map(({ level, message }) => [level, message])).toEqual([
      ['warning', expect.stringContaining('lets something in: ssh')],
    ]);
    const far = await check({}, ({ azure }) =>
      azure.securityGroups.set(securityGroup.toLowerCase(), { location: 'eastus', rules: [] }),
    );
    expect(far.bad.map(({ level }) => level)).toEqual(['error']);
  });

  it('a lifetime that Azure does not hold', async () => {
    const { bad } = await check({ lifetime: 15 * 86_400_000 });
    expect(bad.map(({ subject }) => subject)).toEqual(['end of life']);
  });

  it('a price that nobody knows', async () => {
    const { bad } = await check({ types: ['Standard_D2s_v5'], spot: 'never' }, ({ azure }) => azure.pricesAre(null));
    expect(bad.map(({ level, subject }) => [level, subject])).toEqual([['warning', 'price']]);
  });
});

it('never throws, whatever Azure answers', async () => {
  for (const how of [
    'lost',
    { status: 500, code: 'x' },
    { status: 403, code: 'AuthorizationFailed' },
    { status: 200, code: '', json: 'odd' },
  ] as const) {
    const { bad } = await check({}, ({ azure }) => azure.fail({ at: /^GET/, how, times: 999 }));
    expect(bad.length).toBeGreaterThan(0);
  }
});
