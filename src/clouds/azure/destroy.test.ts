import { describe, expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, owner, patient, run } from '../../../test/kit/azure-cloud.ts';
import { location, subscription } from '../../../test/standins/azure-cloud/azure-cloud.ts';

const scope = { places: [], everywhere: false };
const group = { kind: 'group', id: `/subscriptions/${subscription}/resourceGroups/${run}`, place: location } as const;
const machine = { kind: 'machine', id: `${group.id}/providers/Microsoft.Compute/virtualMachines/${run}`, place: location } as const;

async function withMachine() {
  const one = azureWorld();
  await one.settled(one.cloud.create(one.order(), patient));
  const list = async () =>
    (await one.settled(one.cloud.list(owner, scope, patient))).things.map(({ kind, state }) => `${kind} ${state}`);
  const sent = (pattern: RegExp) => one.azure.sent.map((each) => each.split('\n')[0]).filter((line) => pattern.test(line ?? ''));
  return {
    ...one,
    list,
    sent,
    destroy: (thing: Parameters<typeof one.cloud.destroy>[0]) => one.settled(one.cloud.destroy(thing, patient)),
  };
}

it('a machine by force, with all that goes with it', async () => {
  const { destroy, sent, pass, world, list } = await withMachine();
  await destroy(machine);
  expect(sent(/^DELETE/)).toEqual([expect.stringContaining('forceDeletion=true')]);
  expect(await list()).toEqual(['group running', 'machine ending']);
  await pass(20_000);
  expect([await list(), world.resources.size]).toEqual([['group running'], 0]);
});

it('a group by force, and without where Azure refuses that', async () => {
  const { destroy, sent, pass, world } = await withMachine();
  await destroy(machine);
  await pass(20_000);
  await destroy(group);
  expect(sent(/^DELETE \S+resourceGroups\/[^/]+\?/)).toEqual([
    expect.stringContaining('forceDeletionTypes=Microsoft.Compute%2FvirtualMachines'),
    expect.not.stringContaining('forceDeletionTypes'),
  ]);
  await pass(60_000);
  expect(world.groups.size).toBe(0);
});

it('again and again is fine: while it goes, and when it has gone', async () => {
  const { destroy, pass } = await withMachine();
  for (let count = 0; count < 2; count += 1) for (const thing of [machine, group]) await destroy(thing);
  await pass(100_000);
  for (const thing of [machine, group]) await destroy(thing);
});

describe('the answer proves nothing', () => {
  it('a removal that is "done" while the machine lives', async () => {
    const { destroy, world, pass, list } = await withMachine();
    world.faults.lyingRemovals = 1;
    await destroy(machine);
    await pass(20_000);
    expect([await list(), [...world.operations.values()].at(-1)?.state]).toEqual([
      ['group running', 'machine running'],
      'Succeeded',
    ]);
    await destroy(machine);
    await pass(20_000);
    expect(await list()).toEqual(['group running']);
  });

  it('a removal of a group that is rolled back', async () => {
    const { destroy, world, pass, list } = await withMachine();
    world.faults.blockedGroups = 1;
    await destroy(group);
    expect(await list()).toEqual(['group ending', 'machine running']);
    await pass(60_000);
    expect([await list(), [...world.operations.values()].at(-1)?.error?.code]).toEqual([
      ['group running', 'machine running'],
      'ResourceGroupDeletionBlocked',
    ]);
    await destroy(group);
    await pass(60_000);
    expect(await list()).toEqual([]);
  });

  it.each([
    'lost',
    { status: 500, code: 'InternalServerError' },
    { status: 429, code: 'TooManyRequests' },
    { status: 409, code: 'ResourceGroupDeletionBlocked' },
  ] as const)('an error is told, and another try removes it: %j', async (how) => {
    const { destroy, azure, pass, list } = await withMachine();
    azure.fail({ at: /^DELETE/, how });
    const error = await cloudErrorOf(destroy(group));
    expect(error.message).toContain(`Cannot remove resource group ${run}`);
    await destroy(group);
    await pass(60_000);
    expect(await list()).toEqual([]);
  });

  it('a credential that ends in the middle is told, and renewed for the next try', async () => {
    const { destroy, azure, pass, list } = await withMachine();
    await destroy(machine);
    azure.expireTokens();
    const error = await cloudErrorOf(destroy(group));
    expect([error.code, error.reason, error.retry]).toEqual(['E_CLOUD_CREDENTIAL', 'ExpiredAuthenticationToken', true]);
    await destroy(group);
    await pass(60_000);
    expect(await list()).toEqual([]);
  });
});

describe('it removes nothing that is not named as onejob names it', () => {
  it.each(['onejob-shared', 'prod', 'onejob-0123456789abcdeg', `${run}-2`])('group %s', async (name) => {
    const { cloud, azure, settled } = azureWorld();
    azure.world.makeGroup(name, location, {});
    const id = `/subscriptions/${subscription}/resourceGroups/${name}`;
    const error = await cloudErrorOf(settled(cloud.destroy({ kind: 'group', id, place: location }, patient)));
    expect([error.code, azure.calls]).toEqual(['E_CLOUD_REQUEST', []]);
  });

  it.each([
    ['schedule', machine.id],
    ['spot-request', machine.id],
    ['disk', machine.id],
    ['machine', group.id],
    ['group', machine.id],
    ['machine', 'i-0123'],
  ] as const)('%s %s', async (kind, id) => {
    const { cloud, azure, settled } = azureWorld();
    const error = await cloudErrorOf(settled(cloud.destroy({ kind, id, place: location }, patient)));
    expect([error.code, azure.calls]).toEqual(['E_CLOUD_REQUEST', []]);
  });
});
