/** A job whose demands nobody in the pool meets fails; these are the ones who meet them while there is no agent. */
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { inside, type Manager } from '../../../test/kit/azure-manager.ts';
import { type World, worlds } from '../../../test/kit/azure-service.ts';

const open = worlds();
const placeholders = (world: World) => world.azure.agents(world.pool).filter(({ name }) => name.startsWith('onejob-placeholder'));
/** An agent that came online with this, was seen, and is gone. */
async function pastAgent(world: World, one: Manager, agent: string, says: Record<string, string>): Promise<void> {
  const online = await one.start(agent, { says });
  await world.pass(20_000);
  await online.close();
  await one.end(agent);
}

it('is there before the first agent', async () => {
  const world = await open();
  const order: string[] = [];
  world.azure.on((event) => {
    if (event.kind === 'agentAdded') order.push(event.name);
  });
  await world.manager().register('a1');
  expect(order).toEqual([expect.stringMatching(/^onejob-placeholder-/), expect.stringContaining('-a1')]);
});

it('is one for all agents of a kind, and another for each other kind or pool', async () => {
  const pools = [
    { name: 'ci', queue: 'gpu', tags: ['x'] },
    { name: 'lab', queue: 'gpu', tags: ['x'] },
  ];
  const { world, one } = await open.one({ pools });
  await Promise.all(['a1', 'a2', 'a3'].map((agent) => one.register(agent)));
  await one.register('b1', { pool: 'lab' });
  expect(placeholders(world)).toHaveLength(2);
});

it('keeps jobs waiting while there is no agent, also over a restart', async () => {
  const { world, one: first } = await open.one();
  await first.register('a1');
  await first.end('a1');
  first.stop();
  const waits = world.azure.queue(world.pool, { demands: ['git'] });
  const fails = world.azure.queue(world.pool, { demands: ['git', 'cobol'] });
  expect([waits.view(), fails.view()]).toMatchObject([{ state: 'waiting' }, { failedAtQueue: true }]);
  const before = placeholders(world);
  const second = world.manager({ dir: first.dir });
  await second.register('a2');
  expect(placeholders(world)).toEqual(before);
  expect(world.asked(0, 'usercapabilities')).toBe(0);
});

it('never goes to work, and never ends with an agent', async () => {
  const { world, one } = await open.watching();
  await pastAgent(world, one, 'a1', {});
  await world.pass(900_000);
  expect(placeholders(world)).toMatchObject([{ online: false, everOnline: false }]);
});

it('says what agents say once they are online: a job that only they can do waits', async () => {
  const { world, one } = await open.watching();
  await pastAgent(world, one, 'a1', { cobol: '/usr/bin/cobc', 'Agent.Name': 'a1' });
  expect(placeholders(world)).toMatchObject([{ userCapabilities: { cobol: '/usr/bin/cobc' } }]);
  expect(placeholders(world)[0]?.userCapabilities).not.toHaveProperty('Agent.Name');
  expect(world.azure.queue(world.pool, { demands: ['cobol'] }).view().state).toBe('waiting');
});

it('still says it when the next manager has made its first agent, which is not online yet', async () => {
  const { world, one: first } = await open.watching();
  await pastAgent(world, first, 'a1', { cobol: '/usr/bin/cobc' });
  const second = first.next();
  await second.register('a2', { inside: inside('tool=mvn=/usr/bin/mvn\n') });
  await second.end('a2');
  expect(world.azure.queue(world.pool, { demands: ['cobol', 'mvn'] }).view().state).toBe('waiting');
});

it('says what a new image has as soon as an agent is made of it, and what it has not no longer than that one is online', async () => {
  const { world, one } = await open.watching();
  await pastAgent(world, one, 'a1', { cobol: '/usr/bin/cobc' });
  const next = inside('tool=mvn=/usr/bin/mvn\n');
  await one.register('a2', { inside: next });
  await one.end('a2');
  expect(world.azure.queue(world.pool, { demands: ['mvn', 'cobol'] }).view().state).toBe('waiting');
  const online = await one.start('a3', { inside: next, says: { mvn: '/usr/bin/mvn' } });
  await world.pass(20_000);
  await online.close();
  await one.end('a3');
  expect(world.azure.queue(world.pool, { demands: ['cobol'] }).view().failedAtQueue).toBe(true);
});

it('learns again what could not be told the first time', async () => {
  const { world, one } = await open.watching();
  world.azure.faults.add({ kind: 'broken' }, { route: 'usercapabilities', times: 1 });
  await one.start('a1', { says: { cobol: '/usr/bin/cobc' } });
  await world.pass(20_000);
  expect(placeholders(world)).toMatchObject([{ userCapabilities: { cobol: '/usr/bin/cobc' } }]);
});

it('is made again with the next agent when somebody has removed it', async () => {
  const { world, one } = await open.watching();
  await one.register('a1');
  const [first] = placeholders(world);
  await one.client.deleteAgent(world.pool, first?.id ?? 0, patient);
  await world.pass(20_000);
  await one.register('a2');
  expect(placeholders(world)).toMatchObject([{ name: first?.name }]);
});

it('is made again with the next agent after the first attempt failed', async () => {
  const { world, one } = await open.one();
  world.azure.faults.add({ kind: 'broken' }, { method: 'POST', times: 1 });
  await world.failure(one.register('a1'));
  expect(world.names()).toEqual([]);
  await one.register('a1');
  expect(placeholders(world)).toHaveLength(1);
});

it('goes with the others when all are to be forgotten and one of them cannot', async () => {
  const pools = ['ci', 'lab'].map((name) => ({ name, queue: 'gpu', tags: [name] }));
  const { world, one } = await open.one({ pools });
  await one.register('a1');
  await one.register('b1', { pool: 'lab' });
  world.azure.faults.add({ kind: 'broken' }, { method: 'DELETE', times: 1 });
  await world.failure(one.service.forget(patient));
  expect(placeholders(world)).toHaveLength(1);
  await one.service.forget(patient);
  expect(placeholders(world)).toEqual([]);
});

it('is taken over when the answer to its making was lost, so that it is there all the time', async () => {
  const { world, one: first } = await open.one();
  world.azure.faults.add({ kind: 'lost' }, { method: 'POST', route: 'agents', times: 1 });
  await world.failure(first.register('a1'));
  const [made] = placeholders(world);
  expect(made).toBeDefined();
  const second = first.next();
  await second.register('a1');
  expect(placeholders(world)).toEqual([made]);
  expect(world.asked(0, 'agents/{agentId}', 'DELETE')).toBe(0);
  await second.service.forget(patient);
  expect(placeholders(world)).toEqual([]);
});
