/** What onejob registered is removed, and what somebody else registered stays. */
import { describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import type { Manager } from '../../../test/kit/azure-manager.ts';
import { type World, worlds } from '../../../test/kit/azure-service.ts';
import { registerByHand } from '../../../test/standins/azure-devops/hand-agent.ts';

const open = worlds();
const minutes = (count: number) => count * 60_000;
const rest = (world: World) => world.names().filter((name) => !name.startsWith('onejob-placeholder'));
const markOf = (one: Manager) => one.store.owner.slice(0, 8);

/** As of an agent pool that somebody has removed at the service. */
function ghost(one: Manager): void {
  const row = { agent: 'a0', service: 'azure', place: '999', name: `box-1-${markOf(one)}-a0`, placeholder: false };
  one.store.registrations.intend(row, 1);
  one.store.registrations.made('a0', '1', 1);
}

it('gets rid of an entry once the lock of a job has run out whose agent vanished', async () => {
  const { world, one } = await open.watching();
  const agent = await one.start('a1');
  const { requestId } = world.azure.queue(world.pool);
  await agent.take();
  // It is killed in the middle of its job, and the service hears of nothing.
  const from = world.azure.log.length;
  expect(await one.end('a1')).toEqual({ ran: `azure-${requestId}` });
  expect(rest(world)).toHaveLength(1);
  await world.pass(minutes(9));
  expect(rest(world)).toHaveLength(1);
  expect(world.asked(from, 'agents/{agentId}', 'DELETE')).toBeLessThanOrEqual(8);
  await world.pass(minutes(7));
  expect(rest(world)).toEqual([]);
  expect(one.store.serviceJobs.get(`azure-${requestId}`)).toMatchObject({ state: 'done', result: 'abandoned' });
});

it('removes the others although one cannot be removed, and tries that one less and less', async () => {
  const { world, one } = await open.one();
  ghost(one);
  await one.register('a1');
  // Gone with its slot.
  one.slots.clear();
  await one.watch();
  await world.pass(10_000);
  expect(rest(world)).toEqual([]);
  const from = world.azure.log.length;
  await world.pass(minutes(20));
  expect(world.asked(from, 'agents/{agentId}', 'DELETE')).toBeLessThanOrEqual(8);
  expect(one.of('hold').every(({ reason }) => reason === null)).toBe(true);
});

it('removes entries with its own mark that the store does not know, after it has seen them twice', async () => {
  const pools = [
    { name: 'ci', queue: 'gpu', tags: [] },
    { name: 'lab', queue: 'Default', tags: [] },
  ];
  const { world, one } = await open.one({ pools });
  const agent = `box-1-${markOf(one)}-0123456789`;
  const placeholder = `onejob-placeholder-${markOf(one)}-01234567`;
  await registerByHand(world.azure, world.pool, agent);
  await registerByHand(world.azure, world.pool, placeholder);
  await one.watch();
  expect(world.names()).toEqual([agent, placeholder]);
  await world.pass(10_000);
  expect(world.names()).toEqual([]);
});

it('never touches what it did not make', async () => {
  const { world, one } = await open.one();
  const mark = markOf(one);
  const foreign = ['somebody', 'box-1-ffffffff-a1', 'onejob-placeholder-ffffffff-01234567', `box-1-${mark}`, `x${mark}-a1`];
  for (const name of foreign) await registerByHand(world.azure, world.pool, name);
  await one.watch();
  await one.register('a1');
  await one.end('a1');
  await world.pass(minutes(10));
  await one.service.forget(patient);
  expect(world.names()).toEqual(foreign);
});

it('leaves an agent alone that a slot still has', async () => {
  const { world, one } = await open.one();
  await one.register('a1');
  one.store.registrations.forget('a1');
  await one.watch();
  await world.pass(minutes(1));
  expect(rest(world)).toHaveLength(1);
});

it('leaves an online agent alone whose registration was lost', async () => {
  const { world, one } = await open.online();
  one.slots.clear();
  one.store.registrations.forget('a1');
  await one.watch();
  await world.pass(minutes(5));
  expect(rest(world)).toHaveLength(1);
});

it('removes unknown entries although a known one cannot be removed', async () => {
  const { world, one } = await open.one();
  ghost(one);
  await registerByHand(world.azure, world.pool, `box-1-${markOf(one)}-0123456789`);
  await one.watch();
  await world.pass(10_000);
  expect(world.names()).toEqual([]);
});

it('takes entries for gone whose agent pool has not been shown for a day, and says so', async () => {
  const { world, one } = await open.one({ config: { pollEvery: minutes(20) } });
  ghost(one);
  await one.watch();
  await world.pass(minutes(23 * 60));
  expect(one.store.registrations.open('azure')).toHaveLength(1);
  await world.pass(minutes(90));
  expect(one.store.registrations.open('azure')).toEqual([]);
  expect(world.said.filter((line) => line.includes('count as gone'))).toHaveLength(1);
});

it('takes nothing for gone while the credential is shown no pool at all', async () => {
  const { world, one } = await open.one({ config: { pollEvery: minutes(20) } });
  ghost(one);
  await one.watch();
  const real = one.client.pools;
  Object.assign(one.client, { pools: async () => [] });
  await world.pass(minutes(26 * 60));
  Object.assign(one.client, { pools: real });
  expect(one.store.registrations.open('azure')).toHaveLength(1);
});

it('continues for a service that no pool uses any more; its placeholder goes when it is to be forgotten', async () => {
  const { world, one: first } = await open.one();
  await first.register('a1');
  await first.register('a2');
  const second = first.next({ pools: [] });
  second.slots.set('a2', { pool: 'ci (leaving)', since: null });
  await second.watch();
  expect(rest(world)).toEqual([expect.stringContaining('-a2')]);
  second.slots.clear();
  await world.pass(20_000);
  expect(rest(world)).toEqual([]);
  expect(world.names()).toHaveLength(1);
  const from = world.azure.log.length;
  await world.pass(minutes(10));
  expect(world.asked(from)).toBe(0);
  await second.service.forget(patient);
  expect(world.names()).toEqual([]);
});

describe('after a service was given another name', () => {
  it('removes what it made under its old one, and closes the registrations of that', async () => {
    const { world, one: first } = await open.one();
    await first.register('a1');
    const second = first.next({ config: { name: 'new' } });
    await second.register('a2');
    await second.watch();
    await world.pass(20_000);
    expect(rest(world)).toEqual([expect.stringContaining('-a2')]);
    expect(second.store.registrations.services()).toEqual(['new']);
  });

  it('leaves that to the old one while config still has it', async () => {
    const { world, one: first } = await open.one();
    await first.register('a1');
    const second = first.next({ config: { name: 'new' }, opened: ['azure'] });
    await second.watch();
    await world.pass(20_000);
    expect(rest(world)).toHaveLength(1);
  });

  it('makes an agent of the same id anew without a call for the old entry at the new place', async () => {
    const world = await open();
    const lab = world.azure.addPool('lab');
    const first = world.manager();
    await first.register('a1');
    first.stop();
    const pools = [{ name: 'ci', queue: 'lab', tags: [] }];
    const second = world.manager({ dir: first.dir, config: { name: 'new' }, opened: ['azure'], pools });
    await second.register('a1');
    expect(world.asked(0, 'agents/{agentId}', 'DELETE')).toBe(0);
    second.stop();
    const third = world.manager({ dir: first.dir });
    third.slots.set('a1', { pool: 'ci', since: null });
    await third.watch();
    await world.pass(10_000);
    expect(rest(world)).toEqual([]);
    expect(world.names(lab)).toHaveLength(2);
  });
});
