import { describe, expect, it } from 'vitest';
import { azureConfig, azureWorld, cloudErrorOf, owner, patient, run } from '../../../test/kit/azure-cloud.ts';
import {
  clientSecret,
  galleryImage,
  location,
  ownImage,
  securityGroup,
  subnet,
} from '../../../test/standins/azure-cloud/azure-cloud.ts';
import { isGoodKey } from '../../../test/standins/azure-cloud/bodies.ts';
import { createMachine, machineBody, throwAwayKey } from './machine.ts';

const scope = { places: [], everywhere: false };
const size = 'Standard_NC4as_T4_v3';

describe('what is asked for', () => {
  const { order } = azureWorld();
  const plain = machineBody(order(), azureConfig, 'ssh-rsa AAAA');

  it('one request makes machine, disk, interface and address, all of which end together and have tags', () => {
    expect(plain.tags).toEqual({
      'onejob-owner': owner,
      'onejob-run': run,
      'onejob-host': 'burst',
      'onejob-born': '1893456000',
      'onejob-expires': '1893477600',
    });
    const { storageProfile, networkProfile, osProfile } = plain.properties;
    expect(storageProfile.osDisk).toEqual({
      name: run,
      createOption: 'FromImage',
      deleteOption: 'Delete',
      diskSizeGB: 128,
      managedDisk: { storageAccountType: 'Premium_LRS' },
    });
    const { tags } = plain;
    const address = { deleteOption: 'Delete', publicIPAllocationMethod: 'Static' };
    expect(networkProfile).toEqual({
      networkApiVersion: '2022-11-01',
      networkInterfaceConfigurations: [
        {
          name: run,
          tags,
          properties: {
            deleteOption: 'Delete',
            primary: true,
            networkSecurityGroup: { id: securityGroup },
            ipConfigurations: [
              {
                name: run,
                properties: {
                  subnet: { id: subnet },
                  publicIPAddressConfiguration: { name: run, sku: { name: 'Standard' }, tags, properties: address },
                },
              },
            ],
          },
        },
      ],
    });
    expect(osProfile.linuxConfiguration.disablePasswordAuthentication).toBe(true);
    expect(JSON.stringify(plain)).not.toMatch(/adminPassword|priority|identity|zones|"userData"/);
  });

  it('spot: Azure removes the machine, and no price ends it', () => {
    const { properties } = machineBody(order({ offer: { type: size, spot: true, zone: '2' } }), azureConfig, 'k');
    expect(properties).toMatchObject({ priority: 'Spot', evictionPolicy: 'Delete', billingProfile: { maxPrice: -1 } });
  });

  it('without an address, without a group, with an own image', () => {
    const bare = { ...azureConfig, publicIp: false, securityGroup: null };
    const own = machineBody(order({ image: { from: ownImage, has: 'everything' } }), bare, 'k');
    expect(JSON.stringify(own)).not.toMatch(/publicIPAddress|networkSecurityGroup/);
    expect(own.properties.storageProfile.imageReference).toEqual({ id: ownImage });
  });

  it('sizes without premium disks get others', () => {
    const other = machineBody(order({ offer: { type: 'Standard_D2_v3', spot: false, zone: null } }), azureConfig, 'k');
    expect(other.properties.storageProfile.osDisk.managedDisk.storageAccountType).toBe('StandardSSD_LRS');
  });

  it('a key that nobody has the other half of', async () => {
    expect(isGoodKey(await throwAwayKey())).toBe(true);
  });

  it.each(['ubuntu', 'a:b:c', 'a:b:c:d:e', '/subscriptions/x', 'a:b:c:d/e'])('not an image: %s', async (from) => {
    const one = azureWorld();
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order({ image: { from, has: 'nothing' } }), patient)));
    expect([error.code, error.hint, one.world.groups.size]).toEqual(['E_CLOUD_REQUEST', expect.stringContaining('PUBLISHER'), 0]);
  });

  it('a text for cloud-init that Azure would refuse is not sent', async () => {
    const one = azureWorld();
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order({ userData: 'x'.repeat(65_536) }), patient)));
    expect([error.code, error.message, one.azure.calls]).toEqual(['E_CLOUD_REQUEST', expect.stringContaining('65535'), []]);
  });
});

describe('it waits for Azure', () => {
  it('as long as Azure asks, by the given clock', async () => {
    const one = azureWorld({ retryAfter: 17 });
    await one.settled(one.cloud.create(one.order(), patient));
    // 45 s until it has reported.
    expect(one.azure.calls.filter((call) => call.includes('/operations/'))).toHaveLength(3);
    expect(one.clock.now()).toBe(51_000);
  });

  it('at the machine itself where Azure names no operation', async () => {
    const one = azureWorld();
    const asked: string[] = [];
    const headers = new Headers();
    const answer = (body: unknown) => ({ status: 200, ok: true, body, headers, said: { code: '', message: '' }, wait: 0 });
    const states = ['Creating', 'Creating', 'Succeeded'];
    const arm = {
      refuse: () => new Error(),
      read: () => Promise.reject(new Error()),
      pages: () => Promise.reject(new Error()),
      bodyAs: (schema: { parse(value: unknown): unknown }, _: unknown, { body }: { body: unknown }) => schema.parse(body),
      async carryOut({ method, path }: { method: string; path: string }) {
        asked.push(`${method} ${path.split('/').at(-2)}`);
        return answer(method === 'GET' ? { properties: { provisioningState: states.shift() } } : {});
      },
    } as unknown as Parameters<typeof createMachine>[0]['arm'];
    const making = { config: azureConfig, arm, clock: one.clock, sshKey: async () => 'k' };
    const made = await one.settled(createMachine(making, one.order(), patient));
    expect([made.place, asked]).toEqual([
      location,
      ['PUT resourceGroups', 'PUT virtualMachines', 'GET virtualMachines', 'GET virtualMachines', 'GET virtualMachines'],
    ]);
  });

  it('not for ever', async () => {
    const one = azureWorld({ timing: { report: 3_600_000 } });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.isAmbiguous, error.message]).toEqual([
      'E_CLOUD_ANSWER',
      true,
      expect.stringContaining('after 10 minutes'),
    ]);
    expect(one.clock.now()).toBeLessThan(620_000);
  });

  it('and stops with its signal', async () => {
    const one = azureWorld();
    const stop = new AbortController();
    const making = one.cloud.create(one.order(), stop.signal);
    while (one.world.machines().length === 0) await one.pass(100);
    stop.abort(new Error('enough'));
    await expect(one.settled(making)).rejects.toThrow('enough');
  });

  it('also while Azure limits requests', async () => {
    const one = azureWorld();
    one.azure.fail({ at: /\/operations\//, how: { status: 429, code: 'TooManyRequests', headers: { 'Retry-After': '20' } } });
    expect((await one.settled(one.cloud.create(one.order(), patient))).place).toBe(location);
  });
});

describe('refused: no machine, so it is not ambiguous', () => {
  it('a quota, with its numbers', async () => {
    const one = azureWorld();
    const family = 'Standard NCASv3_T4 Family';
    one.azure.quotas.set(family, { title: family, limit: 2 });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.reason, error.isAmbiguous, error.retry]).toEqual([
      'E_CLOUD_QUOTA',
      'OperationNotAllowed',
      false,
      false,
    ]);
    expect(error.message).toBe(
      `Cannot create a ${size} in ${location}: Azure answered OperationNotAllowed: the quota "${family} Cores" in ${location} has 2, of which 0 are used; 4 more are needed, so ask for at least 4.`,
    );
    expect([one.world.machines(), one.world.groups.size]).toEqual([[], 1]);
  });

  it('a size that is not there now', async () => {
    const one = azureWorld();
    one.world.faults.notOffered.add(size);
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.reason, error.isAmbiguous]).toEqual(['E_CLOUD_CAPACITY', 'SkuNotAvailable', false]);
    expect(one.azure.calls.filter((call) => call.startsWith('PUT'))).toHaveLength(2);
  });

  it('capacity that turns out to be missing later, whose code is deep in the operation', async () => {
    const one = azureWorld();
    one.world.faults.exhausted.add(size);
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.reason, error.isAmbiguous]).toEqual(['E_CLOUD_CAPACITY', 'AllocationFailed', false]);
    expect(error.message).toContain('Azure ended it with AllocationFailed: Allocation failed.');
    // What is left is found by its tags, and costs no machine.
    const { things } = await one.settled(one.cloud.list(owner, scope, patient));
    expect([things.map(({ kind, run: its }) => [kind, its]), one.world.billed()]).toEqual([
      [
        ['group', run],
        ['machine', run],
      ],
      [],
    ]);
  });

  it('a permission, by its name', async () => {
    const one = azureWorld();
    one.azure.grant('Microsoft.Resources/subscriptions/resourceGroups/write', 'Microsoft.Compute/virtualMachines/write');
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.isAmbiguous, error.retry]).toEqual(['E_CLOUD_DENIED', false, false]);
    expect(error.hint).toContain('Microsoft.Compute/disks/write');
  });

  it('an image that does not exist', async () => {
    const one = azureWorld();
    const image = { from: 'Canonical:ubuntu-24_04-lts:server:1.2.3', has: 'nothing' } as const;
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order({ image }), patient)));
    expect([error.code, error.reason]).toEqual(['E_CLOUD_REQUEST', 'PlatformImageNotFound']);
  });

  it('an own image is one more permission', async () => {
    const one = azureWorld();
    await one.settled(one.cloud.create(one.order({ image: { from: galleryImage, has: 'everything' } }), patient));
    expect(one.azure.used).toContain('Microsoft.Compute/galleries/images/read');
  });
});

describe('whatever happens to the request for the group, there is no machine', () => {
  it.each([
    ['lost', { how: 'lost' }, 'E_CLOUD_UNREACHABLE'],
    ['not sent', { how: 'reset' }, 'E_CLOUD_UNREACHABLE'],
    ['never answered', { how: 'silent' }, 'E_CLOUD_UNREACHABLE'],
    ['a failure', { how: { status: 500, code: 'InternalServerError' } }, 'E_CLOUD_UNREACHABLE'],
    ['throttled', { how: { status: 429, code: 'TooManyRequests' } }, 'E_CLOUD_THROTTLED'],
    ['in the middle of its removal', { how: { status: 409, code: 'ResourceGroupBeingDeleted' } }, 'E_CLOUD_REQUEST'],
  ] as const)('%s', async (_, fault, code) => {
    const one = azureWorld();
    one.azure.fail({ at: /^PUT \S+resourceGroups\/[^/]+\?/, ...fault });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.code, error.isAmbiguous, one.world.machines()]).toEqual([code, false, []]);
  });
});

describe('the request for the machine', () => {
  it.each([
    ['is lost with its answer', { how: 'lost' }, true, 1],
    ['is not sent', { how: 'reset' }, false, 0],
    ['is never answered', { how: 'silent' }, true, 0],
    ['fails at Azure', { how: { status: 500, code: 'InternalServerError' } }, true, 0],
    ['fails at Azure, which has done it', { how: { status: 500, code: 'InternalServerError', isDone: true } }, true, 1],
    ['meets a gateway that is down', { how: { status: 503, code: 'ServiceUnavailable' } }, true, 0],
    ['is refused for capacity with an odd status', { how: { status: 500, code: 'AllocationFailed' } }, false, 0],
    ['is throttled', { how: { status: 429, code: 'TooManyRequests' } }, false, 0],
    ['is refused for its token', { how: { status: 401, code: 'InvalidAuthenticationToken' } }, false, 0],
  ] as const)('%s', async (_, fault, isAmbiguous, machines) => {
    const one = azureWorld();
    one.azure.fail({ at: /^PUT \S+virtualMachines/, ...fault });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.isAmbiguous, one.world.machines().length]).toEqual([isAmbiguous, machines]);
    expect(one.azure.calls.filter((call) => call.startsWith('PUT') && call.includes('virtualMachines'))).toHaveLength(1);
  });

  it.each([
    'lost',
    'reset',
    { status: 500, code: 'InternalServerError' },
    { status: 401, code: 'ExpiredAuthenticationToken' },
  ] as const)('is taken, and one look at it fails: %j', async (how) => {
    const one = azureWorld();
    one.azure.fail({ at: /\/operations\//, how, times: 2 });
    expect((await one.settled(one.cloud.create(one.order(), patient))).place).toBe(location);
  });

  it.each([
    'lost',
    'silent',
    { status: 500, code: 'InternalServerError' },
    { status: 401, code: 'ExpiredAuthenticationToken' },
    { status: 404, code: 'NotFound' },
    { status: 403, code: 'AuthorizationFailed' },
  ] as const)('is taken, and then nobody says what became of it: %j', async (how) => {
    const one = azureWorld();
    one.azure.fail({ at: /\/operations\//, how, times: 99 });
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.isAmbiguous, one.world.billed().length]).toEqual([true, 1]);
  });

  it('is taken, and then the credential is gone', async () => {
    const variables: Record<string, string> = { AZURE_SECRET: clientSecret };
    const one = azureWorld({ variables });
    const making = cloudErrorOf(one.cloud.create(one.order(), patient));
    while (one.world.machines().length === 0) await one.pass(100);
    delete variables.AZURE_SECRET;
    const error = await one.settled(making);
    expect([error.code, error.isAmbiguous, error.message]).toEqual([
      'E_CLOUD_CREDENTIAL',
      true,
      expect.stringContaining('AZURE_SECRET'),
    ]);
  });

  it('is taken, and the machine runs but does not report to Azure', async () => {
    const one = azureWorld();
    one.world.faults.isMute = true;
    const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
    expect([error.reason, error.isAmbiguous, one.world.billed().length]).toEqual(['OSProvisioningTimedOut', true, 1]);
  });

  it.each(['https://evil.example/operations/1', '//evil.example/operations/1', 'http://['])(
    'a token is sent to no other address: %s',
    async (address) => {
      const one = azureWorld();
      const headers = { 'Azure-AsyncOperation': address };
      one.azure.fail({ at: /^PUT \S+virtualMachines/, how: { status: 201, code: 'none', headers } });
      const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
      expect([error.code, error.isAmbiguous, error.message]).toEqual([
        'E_CLOUD_ANSWER',
        true,
        expect.stringContaining('Azure refers to'),
      ]);
      expect(one.azure.sent.join()).not.toContain('evil');
    },
  );
});
