import { expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, owner, patient, run } from '../../../test/kit/azure-cloud.ts';
import { location, subscription } from '../../../test/standins/azure-cloud/azure-cloud.ts';

const scope = { places: [], everywhere: false };
const group = `/subscriptions/${subscription}/resourceGroups/${run}`;
const id = `${group}/providers/Microsoft.Compute/virtualMachines/${run}`;

it('makes a machine with a group of its own, whose end Azure holds, and removes both', async () => {
  const { cloud, world, settled, pass, order } = azureWorld();
  const birth = order();
  const made = await settled(cloud.create(birth, patient));
  expect(made).toEqual({ id, place: location, zone: null });
  expect(world.billed().map(({ size, userData }) => [size, userData])).toEqual([['Standard_NC4as_T4_v3', birth.userData]]);
  expect(await settled(cloud.setEnd(birth, made, patient))).toMatch(
    /^Microsoft\.ComputeSchedule operation \S+ at 2030-01-01T06:00:00\.000Z$/,
  );
  const about = { run, host: 'burst', born: birth.born, expires: birth.expires, place: location };
  const listed = await settled(cloud.list(owner, scope, patient));
  expect(listed).toEqual({
    unknown: [],
    things: [
      { kind: 'group', id: group, ...about, offer: null, state: 'running' },
      { kind: 'machine', id, ...about, offer: { type: 'Standard_NC4as_T4_v3', spot: false, zone: null }, state: 'running' },
    ],
  });
  expect(await settled(cloud.list('somebody-else', scope, patient))).toEqual({ things: [], unknown: [] });
  for (const thing of listed.things.toReversed()) await settled(cloud.destroy(thing, patient));
  const ending = await settled(cloud.list(owner, scope, patient));
  expect(ending.things.map(({ kind, state }) => [kind, state])).toEqual([
    ['group', 'ending'],
    ['machine', 'ending'],
  ]);
  await pass(60_000);
  expect(await settled(cloud.list(owner, scope, patient))).toEqual({ things: [], unknown: [] });
  expect([world.groups.size, world.resources.size]).toEqual([0, 0]);
  for (const thing of listed.things) await settled(cloud.destroy(thing, patient));
});

it('Azure deallocates it at its end, which a list shows as stopped', async () => {
  const { cloud, world, settled, pass, order } = azureWorld();
  const birth = order();
  await settled(cloud.setEnd(birth, await settled(cloud.create(birth, patient)), patient));
  const ended: string[] = [];
  world.hooks.onEnd = ({ name }) => ended.push(name);
  await pass(birth.expires * 1000 - world.now() + 60_000);
  expect([ended, world.billed()]).toEqual([[run], []]);
  const { things } = await settled(cloud.list(owner, scope, patient));
  expect(things.map(({ kind, state }) => [kind, state])).toEqual([
    ['group', 'running'],
    ['machine', 'stopped'],
  ]);
});

it('an answer that is lost leaves it open whether there is a machine', async () => {
  const { cloud, azure, world, settled, order } = azureWorld();
  azure.fail({ at: /^PUT .*virtualMachines/, how: 'lost' });
  const error = await cloudErrorOf(settled(cloud.create(order(), patient)));
  expect([error.code, error.isAmbiguous, world.machines().length]).toEqual(['E_CLOUD_UNREACHABLE', true, 1]);
});
