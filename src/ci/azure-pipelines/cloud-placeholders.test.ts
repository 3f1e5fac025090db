/** A pool whose agents are on machines in a cloud: this host counts its jobs, keeps them waiting, and tidies up after its machines. */
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { type World, worlds } from '../../../test/kit/azure-service.ts';

const open = worlds();
const away = [{ name: 'burst.gpu', queue: 'gpu', tags: ['fast'], elsewhere: { host: 'burst', pool: 'gpu' } }];
const there = [{ name: 'gpu', queue: 'gpu', tags: ['fast'] }];
const placeholders = (world: World) => world.names().filter((name) => name.startsWith('onejob-placeholder'));
const isOurs = (name: string) => name.startsWith('burst-3fa9c1-');
const onMachine = { pool: 'gpu', name: 'burst-3fa9c1-gpu-1' };

it('has jobs that wait for it counted, also before there was any machine, and keeps them waiting', async () => {
  const { world, one: controller } = await open.watching({ pools: away });
  // Making its key takes real time.
  await expect.poll(() => placeholders(world), { timeout: 10_000 }).toHaveLength(1);
  const job = world.azure.queue(world.pool, { demands: ['fast', 'Agent.Version -gtVersion 2.182.1'] });
  expect(job.view().state).toBe('waiting');
  expect(world.azure.queue(world.pool, { demands: ['slow'] }).view().failedAtQueue).toBe(true);
  await world.pass(20_000);
  expect(controller.service.waiting('burst.gpu')).toBe(1);
  expect([...controller.held.keys()]).toEqual([]);
});

it('keeps one placeholder over a restart, and makes it again when somebody has removed it', async () => {
  const { world, one: first } = await open.watching({ pools: away });
  await world.pass(20_000);
  const [made] = placeholders(world);
  first.stop();
  const second = world.manager({ pools: away, dir: first.dir });
  await second.watch();
  await world.pass(40_000);
  expect(placeholders(world)).toEqual([made]);
  const id = world.azure.agents(world.pool).find(({ name }) => name === made)?.id ?? 0;
  await second.client.deleteAgent(world.pool, id, patient);
  await world.pass(40_000);
  expect(placeholders(world)).toEqual([made]);
});

it('says what agents of machines say, and still does after these are gone and what they left was removed', async () => {
  const { world, one: controller } = await open.one({ pools: away });
  const machine = world.manager({ pools: there });
  await controller.watch();
  await machine.watch();
  const agent = await machine.start('a1', { ...onMachine, says: { 'onejob.pool': 'gpu', cobol: '/usr/bin/cobc' } });
  await world.pass(30_000);
  expect(placeholders(world)).toHaveLength(2);
  expect(await controller.service.removeNamed(isOurs, patient)).toMatchObject({
    removed: [],
    left: [expect.stringMatching(/-a1$/)],
  });
  // The machine is killed.
  machine.stop();
  await agent.close();
  expect(await controller.service.removeNamed(isOurs, patient)).toEqual({
    removed: [expect.stringMatching(/^onejob-placeholder-/), expect.stringMatching(/^burst-3fa9c1-gpu-1-.*-a1$/)],
    left: [],
    unknown: [],
  });
  expect(world.names()).toHaveLength(1);
  expect(world.azure.queue(world.pool, { demands: ['fast', 'cobol'] }).view().state).toBe('waiting');
  await world.pass(20_000);
  expect(controller.service.waiting('burst.gpu')).toBe(1);
  expect(placeholders(world)).toHaveLength(1);
});

it('has a placeholder removed whose machine died between two agents', async () => {
  const { world, one: controller } = await open.one({ pools: away });
  const machine = world.manager({ pools: there });
  await controller.watch();
  await machine.register('a1', onMachine);
  await world.pass(30_000);
  await machine.end('a1');
  machine.stop();
  expect(placeholders(world)).toHaveLength(2);
  const found = await controller.service.removeNamed(isOurs, patient);
  expect(found).toEqual({ removed: [expect.stringMatching(/^onejob-placeholder-/)], left: [], unknown: [] });
  expect(placeholders(world)).toHaveLength(1);
  expect(await controller.service.removeNamed((name) => name.startsWith('box-'), patient)).toMatchObject({ removed: [] });
});

it('has its agents left when their placeholder cannot be removed, since only they tell whose it is', async () => {
  const { world, one: machine } = await open.one({ pools: there });
  await machine.register('a1', onMachine);
  machine.stop();
  const controller = world.manager({ pools: away });
  world.azure.faults.add({ kind: 'broken' }, { method: 'DELETE', times: 1 });
  const failed = await controller.service.removeNamed(isOurs, patient);
  expect(failed).toMatchObject({ removed: [], unknown: [expect.stringMatching(/./)] });
  expect(failed.left).toHaveLength(2);
  expect((await controller.service.removeNamed(isOurs, patient)).removed).toHaveLength(2);
  expect(world.names()).toEqual([]);
});

it('does not have removed what another installation with such a name still uses', async () => {
  const { world, one: machine } = await open.one({ pools: there });
  await machine.register('a1', onMachine);
  await machine.register('b1', { pool: 'gpu', name: 'other' });
  const controller = world.manager({ pools: away });
  expect((await controller.service.removeNamed(isOurs, patient)).removed).toEqual([expect.stringMatching(/-a1$/)]);
  expect(placeholders(world)).toHaveLength(1);
});
