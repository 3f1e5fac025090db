import { describe, expect, it } from 'vitest';
import { azureConfig, azureWorld, cloudErrorOf, orderOf, owner, patient, run } from '../../../test/kit/azure-cloud.ts';
import { location, subscription } from '../../../test/standins/azure-cloud/azure-cloud.ts';
import { machineBody as strictBody } from '../../../test/standins/azure-cloud/bodies.ts';
import type { Thing } from '../../ports/cloud.ts';
import { usualImage } from './config.ts';
import { machineBody } from './machine.ts';

const scope = { places: [], everywhere: false };
const other = 'onejob-fedcba9876543210';
const tags = {
  'onejob-owner': owner,
  'onejob-run': run,
  'onejob-host': 'burst',
  'onejob-born': '1893456000',
  'onejob-expires': '1893477600',
};
const body = strictBody.parse(machineBody(orderOf({ usualImage }, 1893456000), azureConfig, 'ssh-rsa A'));
const short = (things: readonly Thing[]) => things.map(({ kind, run: its, state }) => [kind, its, state]);

async function withMachine(...options: Parameters<typeof azureWorld>) {
  const one = azureWorld(...options);
  await one.settled(one.cloud.create(one.order(), patient));
  return { ...one, list: () => one.settled(one.cloud.list(owner, scope, patient)), machine: one.world.machines()[0] };
}

it('costs the same few requests for any number of machines', async () => {
  const one = azureWorld();
  const runs = Array.from({ length: 40 }, (_, index) => `onejob-${String(index).padStart(16, '0')}`);
  for (const its of runs) {
    one.world.makeGroup(its, location, { ...tags, 'onejob-run': its });
    one.world.placeMachine(its, its, { ...tags, 'onejob-run': its }, body);
  }
  const { things, unknown } = await one.settled(one.cloud.list(owner, scope, patient));
  expect([things.length, unknown, one.azure.calls.length]).toEqual([80, [], 5]);
});

it('follows pages', async () => {
  const one = azureWorld();
  one.azure.pages(7);
  for (let index = 0; index < 20; index += 1) {
    const its = `onejob-${String(index).padStart(16, '0')}`;
    one.world.makeGroup(its, location, { ...tags, 'onejob-run': its });
  }
  expect((await one.settled(one.cloud.list(owner, scope, patient))).things).toHaveLength(20);
});

describe('states', () => {
  it('from its beginning to its end', async () => {
    const one = azureWorld();
    const list = async () => short((await one.settled(one.cloud.list(owner, scope, patient))).things)[1]?.[2];
    const making = one.cloud.create(one.order(), patient);
    while (one.world.machines().length === 0) await one.pass(100);
    expect(await list()).toBe('starting');
    await one.settled(making);
    expect(await list()).toBe('running');
    const [machine] = one.world.machines();
    if (machine === undefined) throw new Error('There is no machine.');
    // It is billed as before.
    one.world.guestShutdown(machine);
    expect(await list()).toBe('running');
    machine.power = 'deallocated';
    expect(await list()).toBe('stopped');
    machine.provisioning = 'Deleting';
    expect(await list()).toBe('ending');
  });

  it('a spot machine that Azure took away is gone, its group is not', async () => {
    const one = azureWorld();
    const offer = { type: 'Standard_NC4as_T4_v3', spot: true, zone: null };
    await one.settled(one.cloud.create(one.order({ offer }), patient));
    const list = async () => (await one.settled(one.cloud.list(owner, scope, patient))).things;
    expect((await list())[1]?.offer).toEqual(offer);
    const ended: string[] = [];
    one.world.hooks.onEnd = ({ name }) => ended.push(name);
    for (const machine of one.world.machines()) one.world.preempt(machine);
    expect([ended, short(await list())]).toEqual([[run], [['group', run, 'running']]]);
  });

  it('a machine without a state counts as running', async () => {
    const { azure, list } = await withMachine();
    azure.fail({ at: /statusOnly/, how: { status: 403, code: 'AuthorizationFailed' } });
    const { things, unknown } = await list();
    expect(short(things)).toEqual([
      ['group', run, 'running'],
      ['machine', run, 'running'],
    ]);
    expect(unknown).toEqual([`states of machines of subscription ${subscription} (AuthorizationFailed)`]);
  });
});

describe('what could not be listed is unknown, and what was listed stays', () => {
  it.each([
    [/GET \S+\/resourcegroups\?/, ['machine'], 'resource groups'],
    [/GET \S+\/virtualMachines\?/, ['group', 'machine'], 'machines'],
    [/GET \S+\/resources\?/, ['group', 'machine'], 'resources with tags'],
  ])('%s', async (at, kinds, what) => {
    for (const [how, why] of [
      ['lost', 'no answer'],
      [{ status: 403, code: 'AuthorizationFailed' }, 'AuthorizationFailed'],
      [{ status: 429, code: 'TooManyRequests' }, 'TooManyRequests'],
      [{ status: 500, code: 'InternalServerError' }, 'InternalServerError'],
      [{ status: 401, code: 'ExpiredAuthenticationToken' }, 'ExpiredAuthenticationToken'],
    ] as const) {
      const { azure, list } = await withMachine();
      azure.fail({ at, how });
      const { things, unknown } = await list();
      expect([things.map(({ kind }) => kind), unknown]).toEqual([kinds, [`${what} of subscription ${subscription} (${why})`]]);
    }
  });

  it('also when only the second page is refused', async () => {
    const one = azureWorld();
    for (const its of [run, other]) one.world.makeGroup(its, location, { ...tags, 'onejob-run': its });
    one.azure.pages(1);
    one.azure.fail({ at: /resourcegroups\?.*skiptoken/, how: { status: 429, code: 'SubscriptionRequestsThrottled' } });
    const { things, unknown } = await one.settled(one.cloud.list(owner, scope, patient));
    expect([short(things), unknown]).toEqual([
      [['group', run, 'running']],
      [`resource groups of subscription ${subscription} (SubscriptionRequestsThrottled)`],
    ]);
  });

  it('a page of another address is not fetched', async () => {
    const { azure, list } = await withMachine();
    const json = { value: [], nextLink: 'https://evil.example/more' };
    azure.fail({ at: /resourcegroups\?/, how: { status: 200, code: '', json } });
    const { unknown } = await list();
    expect([unknown.length, azure.calls.join().includes('more')]).toEqual([1, false]);
  });

  it.each([{ value: null }, { error: 1 }, 'a page', { value: [{ id: 7 }] }])(
    'a broken answer is not an empty list: %j',
    async (json) => {
      const { azure, list } = await withMachine();
      azure.fail({ at: /resourcegroups\?/, how: { status: 200, code: '', json } });
      expect((await list()).unknown).toEqual([`resource groups of subscription ${subscription} (no answer)`]);
    },
  );

  it('nothing at all without a credential', async () => {
    const { azure, list } = await withMachine();
    azure.expireTokens();
    azure.lock();
    const error = await cloudErrorOf(list());
    expect(error.code).toBe('E_CLOUD_CREDENTIAL');
  });
});

it('a machine that appears late in lists', async () => {
  const one = azureWorld();
  one.world.faults.lateInLists = 120_000;
  one.azure.fail({ at: /^PUT \S+virtualMachines/, how: 'lost' });
  await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
  const list = async () => short((await one.settled(one.cloud.list(owner, scope, patient))).things).map(([kind]) => kind);
  expect(await list()).toEqual([]);
  await one.pass(120_000);
  expect(await list()).toEqual(['group', 'machine']);
});

describe('what lies about outside of a group of its own', () => {
  it('is found by its tags, which the general list leaves out', async () => {
    const one = azureWorld();
    const shared = 'onejob-shared';
    one.world.makeGroup(shared, location, {});
    one.world.place('disk', shared, run, tags);
    one.world.place('interface', shared, `${run}-nic-1`, tags);
    one.world.place('address', shared, `${run}-ip-1`, tags);
    one.world.placeMachine(shared, run, tags, body);
    const { things, unknown } = await one.settled(one.cloud.list(owner, scope, patient));
    expect([short(things), unknown]).toEqual([
      ...[
        [
          ['machine', run, 'running'],
          ['disk', run, 'running'],
          ['interface', run, 'running'],
          ['address', run, 'running'],
        ],
      ],
      [],
    ]);
    expect(things.every(({ expires, host }) => expires === 1893477600 && host === 'burst')).toBe(true);
    for (const thing of things) await one.settled(one.cloud.destroy(thing, patient));
    await one.pass(60_000);
    expect([one.world.resources.size, one.world.groups.size]).toEqual([0, 1]);
  });

  it('whose tags cannot be read is unknown', async () => {
    const one = azureWorld();
    one.world.place('disk', 'somewhere', run, tags);
    one.azure.fail({ at: /\/disks\//, how: { status: 403, code: 'AuthorizationFailed' } });
    const { things, unknown } = await one.settled(one.cloud.list(owner, scope, patient));
    expect([things, unknown.length]).toEqual([[], 1]);
  });

  it('a disk that survives its machine keeps its group, which stays listed', async () => {
    const { world, cloud, settled, list, pass } = await withMachine();
    world.faults.survivingDisks = 1;
    const group = { kind: 'group', id: `/subscriptions/${subscription}/resourceGroups/${run}`, place: location } as const;
    await settled(cloud.destroy(group, patient));
    await pass(60_000);
    expect([short((await list()).things), [...world.resources.values()].map(({ kind }) => kind)]).toEqual([
      [['group', run, 'running']],
      ['disk'],
    ]);
    await settled(cloud.destroy(group, patient));
    await pass(60_000);
    expect([(await list()).things, world.resources.size]).toEqual([[], 0]);
  });
});

describe('what is not ours', () => {
  it('is not listed: another owner, no tags, or a value that only begins like it', async () => {
    const one = azureWorld();
    one.world.makeGroup(other, location, { ...tags, 'onejob-owner': 'lab-2' });
    one.world.placeMachine(other, other, { ...tags, 'onejob-owner': 'lab-2' }, body);
    one.world.makeGroup('prod', location, {});
    one.world.placeMachine('prod', 'web', {}, body);
    one.world.place('disk', 'prod', 'data', { 'onejob-owner': `${owner}0` });
    expect(await one.settled(one.cloud.list(owner, scope, patient))).toEqual({ things: [], unknown: [] });
  });

  it('is shown without a run, so that nobody removes it, when it only has our tags', async () => {
    const one = azureWorld();
    one.world.makeGroup('prod', location, tags);
    one.world.placeMachine('prod', 'web', tags, body);
    one.world.place('disk', 'data', 'data', tags);
    one.world.makeGroup(other, location, { ...tags, 'onejob-run': 'anything' });
    const { things } = await one.settled(one.cloud.list(owner, scope, patient));
    expect(things.map(({ kind, run: its }) => [kind, its])).toEqual([
      ['group', null],
      ['group', null],
      ['machine', null],
      ['disk', null],
    ]);
  });
});
