/** One entry for one agent, whatever answer is lost and whenever the manager dies. */
import { describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { filesOf } from '../../../test/kit/azure-manager.ts';
import { type World, worlds } from '../../../test/kit/azure-service.ts';
import type { Fault } from '../../../test/standins/azure-devops/standin.ts';

const open = worlds();
const ofAgents = { method: 'POST', route: 'agents' };

/** Entries for agents, without placeholders. */
const agents = (world: World) => world.azure.agents(world.pool).filter(({ name }) => !name.startsWith('onejob-placeholder'));

it('finds by its name what it had made when the answer was lost', async () => {
  const { world, one } = await open.one();
  await one.register('a1');
  world.azure.faults.add({ kind: 'lost' }, { ...ofAgents, times: 1 });
  expect((await world.failure(one.register('a2'))).code).toBe('E_CI_UNREACHABLE');
  expect(agents(world)).toHaveLength(2);
  const again = await one.register('a2');
  expect(agents(world).map(({ id }) => String(id))).toEqual([expect.any(String), again.id]);
});

it('replaces an entry with its own name that the store does not know', async () => {
  const { world, one } = await open.one();
  const lost = await one.register('a1');
  one.store.registrations.forget('a1');
  const again = await one.register('a1');
  expect(agents(world).map(({ id }) => String(id))).toEqual([again.id]);
  expect(again.id).not.toBe(lost.id);
});

it('leaves an entry alone that a stranger has made, and says what to do', async () => {
  const { world, one } = await open.one();
  await one.register('a0');
  world.azure.faults.add({ kind: 'error', status: 409, typeKey: 'TaskAgentExistsException' }, ofAgents);
  const failure = await world.failure(one.register('a1'));
  expect(failure).toMatchObject({ code: 'E_CI_NAME_TAKEN', retry: true, hint: expect.stringContaining('another "name"') });
  expect(world.asked(0, 'agents/{agentId}', 'DELETE')).toBe(0);
});

describe('a manager that was killed', () => {
  it.each<[string, Fault]>([
    ['between its intent and the request', { kind: 'reset' }],
    ['between the request and the record', { kind: 'lost' }],
  ])('%s: the next one has exactly one entry', async (_, fault) => {
    const { world, one: first } = await open.one();
    await first.register('a0');
    world.azure.faults.add(fault, { ...ofAgents, times: 1 });
    await world.failure(first.register('a1'));
    const second = first.next();
    const { id } = await second.register('a1');
    expect(agents(world).map((each) => String(each.id))).toEqual([expect.any(String), id]);
  });

  it('after the record: the next one registers the agent anew, with another identity', async () => {
    const { world, one: first } = await open.one();
    const before = filesOf((await first.register('a1')).script);
    const second = first.next();
    const after = filesOf((await second.register('a1')).script);
    expect(agents(world)).toHaveLength(1);
    expect(after['.credentials']).not.toBe(before['.credentials']);
  });

  it('with an agent that is not there any more: the next one removes its entry', async () => {
    const { world, one: first } = await open.one();
    await first.register('a0');
    world.azure.faults.add({ kind: 'lost' }, { ...ofAgents, times: 1 });
    await world.failure(first.register('a1'));
    const second = first.next();
    await second.watch();
    await world.pass(20_000);
    expect(agents(world)).toEqual([]);
    expect(second.store.registrations.open('azure').map(({ placeholder }) => placeholder)).toEqual([true]);
  });
});

it('is not misled by a look at an entry that is being replaced', async () => {
  const { world, one: first } = await open.one();
  const { id: old } = await first.register('a1');
  const second = first.next();
  // A look takes its list before the entry is replaced, and is told of it while the new one is being made.
  world.azure.faults.add({ kind: 'delay', ms: 60 }, { ...ofAgents, times: 1 });
  const replacing = second.register('a1');
  await second.watch();
  const { id } = await replacing;
  expect(second.store.registrations.get('a1')).toMatchObject({ state: 'made', remote: id });
  expect(id).not.toBe(old);
  await second.service.retire('a1', patient);
  expect(agents(world)).toMatchObject([{ id: Number(id), enabled: false }]);
});

it('keeps jobs from an agent that is gone while the service still takes it for one that works', async () => {
  const { world, one } = await open.online();
  const first = world.azure.queue(world.pool);
  await one.end('a1');
  expect(agents(world)).toMatchObject([{ online: true, enabled: false, request: first.requestId }]);
  // When that one is given up, the next must not go to the ghost.
  const second = world.azure.queue(world.pool);
  await world.pass(11 * 60_000);
  world.azure.sweep();
  expect(first.view().result).toBe('abandoned');
  expect(second.view()).toMatchObject({ state: 'waiting', agent: null });
});
