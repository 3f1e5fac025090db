import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, owner, patient, run } from '../../../test/kit/azure-cloud.ts';
import { galleryImage, galleryVersion, ownImage } from '../../../test/standins/azure-cloud/azure-cloud.ts';
import { usualImage } from './config.ts';
import { allows, allPermissions } from './permissions.ts';
import { azure } from './type.ts';

const scope = { places: [], everywhere: false };
const plan = {
  host: 'burst',
  types: ['Standard_NC4as_T4_v3'],
  spot: 'prefer',
  disk: 128,
  max: 1,
  lifetime: 3_600_000,
  budget: null,
  prices: {},
} as const;
const tags = { 'onejob-owner': owner, 'onejob-run': run };

/** Every path of the adapter. */
async function everything({ cloud, azure: standin, world, settled, order }: ReturnType<typeof azureWorld>): Promise<void> {
  for (const from of [usualImage.from, ownImage, galleryImage, galleryVersion])
    await settled(cloud.preflight({ ...plan, image: { from, has: 'nothing' } }, patient));
  const own = [ownImage, galleryImage, galleryVersion].map((from, index) => ({
    image: { from, has: 'driver' } as const,
    run: `onejob-000000000000000${index}`,
  }));
  for (const more of own) await settled(cloud.create(order(more), patient));
  const made = await settled(cloud.create(order(), patient));
  await settled(cloud.setEnd(order(), made, patient));
  standin.consoles.set(run, 'hello');
  await settled(cloud.console(made, patient));
  await settled(cloud.deliver(made, 'stay 1 -', patient));
  for (const kind of ['disk', 'interface', 'address'] as const) world.place(kind, 'elsewhere', run, tags);
  const { things, unknown } = await settled(cloud.list(owner, scope, patient));
  expect(unknown).toEqual([]);
  for (const thing of things) await settled(cloud.destroy(thing, patient));
}

it('are exactly those that its calls ask for', async () => {
  const one = azureWorld();
  await everything(one);
  expect([...one.azure.used].sort()).toEqual(azure.permissions);
});

it('are enough', async () => {
  const one = azureWorld();
  one.azure.grant(...allPermissions);
  await everything(one);
});

it('are each needed', async () => {
  for (const missing of allPermissions) {
    const one = azureWorld();
    one.azure.grant(...allPermissions.filter((each) => each !== missing));
    const error = await everything(one).then(
      () => null,
      (found: unknown) => found,
    );
    const { bad } = await one
      .settled(one.cloud.preflight({ ...plan, image: usualImage }, patient))
      .then((found) => ({ bad: found.filter(({ level }) => level === 'error') }));
    expect(error !== null || bad.length > 0, missing).toBe(true);
  }
});

it('make the role in deploy/', () => {
  const role = JSON.parse(readFileSync(join(import.meta.dirname, '../../../deploy/cloud/azure-role.json'), 'utf8')) as {
    Actions: string[];
  };
  expect(role.Actions).toEqual(azure.permissions);
  expect(role.Actions.filter((action) => action.includes('*'))).toEqual([]);
});

it('are allowed by roles as Azure reads them', () => {
  const role = (actions: string[], notActions: string[] = []) => [{ actions, notActions }];
  expect(allows(role(['*']), 'Microsoft.Compute/disks/write')).toBe(true);
  expect(allows(role(['microsoft.compute/*']), 'Microsoft.Compute/disks/write')).toBe(true);
  expect(allows(role(['Microsoft.Compute/*/read']), 'Microsoft.Compute/disks/write')).toBe(false);
  expect(allows(role(['*'], ['Microsoft.Compute/disks/*']), 'Microsoft.Compute/disks/write')).toBe(false);
  expect(
    allows(
      [...role(['*'], ['Microsoft.Compute/disks/*']), ...role(['Microsoft.Compute/disks/write'])],
      'Microsoft.Compute/disks/write',
    ),
  ).toBe(true);
  expect(allows(role(['MicrosoftXCompute/disks/write']), 'Microsoft.Compute/disks/write')).toBe(false);
  expect(allows([], 'Microsoft.Compute/disks/write')).toBe(false);
});

it('one that is missing is named', async () => {
  const one = azureWorld();
  one.azure.grant(...allPermissions.filter((each) => each !== 'Microsoft.Network/virtualNetworks/subnets/join/action'));
  const error = await cloudErrorOf(one.settled(one.cloud.create(one.order(), patient)));
  expect(error.hint).toBe(
    'Give the credential a role with Microsoft.Network/virtualNetworks/subnets/join/action; deploy/cloud/azure-role.json has all that onejob needs.',
  );
});
