/** Days on which nobody can look: nothing is begun, nothing is ended, the service is not stormed, and it continues by itself. */
import { writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { Manager } from '../../../test/kit/azure-manager.ts';
import { type World, worlds } from '../../../test/kit/azure-service.ts';
import type { Fault } from '../../../test/standins/azure-devops/standin.ts';

const open = worlds();
const shapes = ['203', '302', '401-json', '401-bare'] as const;

/** No event that would end an agent, or take one for gone. */
const disturbed = (one: Manager) => [...one.of('cancel'), ...one.of('silent')];

async function withAgent(world: World): Promise<Manager> {
  const one = world.manager();
  await one.watch();
  await one.start('a1');
  await world.pass(10_000);
  expect([...one.held.keys()]).toEqual([]);
  return one;
}

describe.each(shapes)('a credential refused with %s', (shape) => {
  it('at the start holds the pool with one reason, and asks a handful of times in an hour', async () => {
    const world = await open();
    world.azure.faults.add({ kind: 'rejected', shape }, { identity: 'pat' });
    const one = world.manager();
    await one.watch();
    await world.pass(3_600_000);
    const reasons = new Set(one.of('hold').map(({ reason }) => reason));
    expect([...reasons]).toEqual([expect.stringContaining('does not accept the token')]);
    expect([...reasons][0]).toContain(`Put it into file ${world.tokenFile}`);
    expect(world.asked(0)).toBeLessThanOrEqual(7);
    expect(await world.failure(one.register('a1'))).toMatchObject({ code: 'E_CI_CREDENTIAL', retry: false });
    expect(world.names()).toEqual([]);
  });

  it('in the middle of a day ends nothing, and work continues as soon as there is another one', async () => {
    const world = await open();
    const one = await withAgent(world);
    const recover = world.azure.faults.add({ kind: 'rejected', shape }, { identity: 'pat' });
    const from = world.azure.log.length;
    await world.pass(1_000_000);
    expect(world.asked(from)).toBeLessThanOrEqual(4);
    expect(one.held.get('ci')).toContain('does not accept the token');
    expect(disturbed(one)).toEqual([]);
    recover();
    const fresh = world.azure.addPat({ scopes: ['agentpools_manage'] });
    world.secrets.push(fresh);
    writeFileSync(world.tokenFile, fresh);
    await world.pass(66_000);
    expect([...one.held.keys()]).toEqual([]);
  });
});

it('says what may be wrong with an address of no organisation', async () => {
  const world = await open();
  const one = world.manager({ config: { url: `${new URL(world.azure.url).origin}/nobody` } });
  await one.watch();
  await world.pass(600_000);
  expect(one.held.get('ci')).toContain('the organisation or collection does not seem to exist');
  expect(world.asked(0)).toBeLessThanOrEqual(15);
});

it('names the pools there are when the one that config names is missing, and finds it once it is made', async () => {
  const { world, one } = await open.watching({ pools: [{ name: 'ci', queue: 'gpu pool', tags: [] }] });
  expect(one.held.get('ci')).toContain('no agent pool with that name. It shows Default, gpu.');
  expect((await world.failure(one.register('a1'))).code).toBe('E_CI_POOL');
  world.azure.addPool('GPU pool');
  await world.pass(60_000);
  expect([...one.held.keys()]).toEqual([]);
});

it('does not hold another pool of the same service for one that is missing', async () => {
  const pools = [
    { name: 'ci', queue: 'gpu', tags: [] },
    { name: 'lab', queue: 'absent', tags: [] },
  ];
  const { world, one } = await open.watching({ pools });
  await world.pass(60_000);
  expect([...one.held.keys()]).toEqual(['lab']);
});

it.each<[string, Fault]>([
  ['refused for an hour', { kind: 'throttled', retryAfter: 3_600 }],
  ['refused again and again for a second', { kind: 'throttled', retryAfter: 1 }],
])('leaves a service alone that asks for it: %s', async (_, fault) => {
  const world = await open();
  const one = await withAgent(world);
  const recover = world.azure.faults.add(fault);
  const from = world.azure.log.length;
  await world.pass(3_600_000);
  expect(one.held.get('ci')).toContain('asked onejob to send no requests until');
  expect(world.asked(from)).toBeLessThanOrEqual(90);
  expect(disturbed(one)).toEqual([]);
  recover();
  await world.pass(700_000);
  expect([...one.held.keys()]).toEqual([]);
});

it('slows down for a service that says so with its answers, and holds nothing', async () => {
  const world = await open();
  const one = await withAgent(world);
  world.azure.faults.add({ kind: 'slowed', retryAfter: 25 });
  const from = world.azure.log.length;
  await world.pass(600_000);
  expect(world.asked(from)).toBeLessThanOrEqual(60);
  expect(one.held.get('ci')).toBeUndefined();
});

it('sits out an hour without the service', async () => {
  const world = await open();
  const one = await withAgent(world);
  const before = world.names();
  await world.azure.faults.down();
  await world.pass(3_600_000);
  expect(one.held.get('ci')).toMatch(/nothing listens there|connection was cut/);
  expect((await world.failure(one.register('a2'))).code).toBe('E_CI_UNREACHABLE');
  await world.azure.faults.up();
  const events = one.events.length;
  await world.pass(66_000);
  expect([...one.held.keys()]).toEqual([]);
  expect(disturbed(one)).toEqual([]);
  expect(one.events.slice(events)).toContainEqual({ kind: 'online', agent: 'a1' });
  expect(world.names()).toEqual(before);
});

it.each<Fault>([{ kind: 'broken' }, { kind: 'garbage' }, { kind: 'reset' }])('concludes nothing from %o', async (fault) => {
  const world = await open();
  const one = await withAgent(world);
  world.azure.faults.add(fault, { method: 'GET' });
  await world.pass(600_000);
  expect(one.held.has('ci')).toBe(true);
  expect(disturbed(one)).toEqual([]);
  expect(world.names()).toHaveLength(2);
});

it('holds nothing when only the cleaning up is refused', async () => {
  const world = await open();
  const one = await withAgent(world);
  world.azure.faults.add({ kind: 'denied' }, { method: 'DELETE' });
  await one.end('a1');
  one.events.length = 0;
  await world.pass(120_000);
  expect(one.of('hold').filter(({ reason }) => reason !== null)).toEqual([]);
});
