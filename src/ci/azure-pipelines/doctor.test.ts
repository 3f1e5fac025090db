import { describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { inside, type Manager } from '../../../test/kit/azure-manager.ts';
import { worlds } from '../../../test/kit/azure-service.ts';
import { registerByHand } from '../../../test/standins/azure-devops/hand-agent.ts';

const open = worlds();

async function said(one: Manager, level?: 'ok' | 'warning' | 'error'): Promise<string> {
  const found = await one.service.check(patient);
  for (const finding of found) if (finding.level !== 'ok') expect(finding.hint).not.toBeNull();
  return found
    .filter((finding) => level === undefined || finding.level === level)
    .map(({ message }) => message)
    .join('\n');
}

it('finds nothing to say against a good day, and changes nothing', async () => {
  const { world, one } = await open.one();
  await one.register('a1');
  await one.watch();
  const before = world.azure.agents(world.pool);
  const text = await said(one, 'ok');
  expect(text).toContain(`${world.azure.url} answers`);
  expect(text).toContain('Agent pool "gpu" has 2 entries, 1 of them for agents of this host.');
  expect(text).toContain('jobs wait in it while it has no agent (one placeholder)');
  expect(text).toContain('The agent in the images is version 5.278.0');
  expect(await said(one, 'warning')).toBe('');
  expect(await said(one, 'error')).toBe('');
  expect(world.azure.agents(world.pool)).toEqual(before);
});

it('says that the credential is refused, once', async () => {
  const world = await open();
  world.azure.expirePat(world.azure.pat);
  const one = world.manager();
  expect(await one.service.check(patient)).toMatchObject([{ level: 'error', message: /does not accept the token/ }]);
});

it('names the pools there are for one that is missing', async () => {
  const world = await open();
  expect(await said(world.manager({ pools: [{ name: 'ci', queue: 'cpu', tags: [] }] }), 'error')).toContain(
    'It shows Default, gpu',
  );
});

it('says that the pool may not be managed', async () => {
  const { world, one } = await open.one();
  await one.register('a1');
  world.azure.faults.add({ kind: 'denied' }, { method: 'PATCH' });
  expect(await said(one, 'error')).toContain('does not allow it');
});

it('says that there is no placeholder yet, or none any more', async () => {
  const { world, one } = await open.one();
  expect(await said(one, 'warning')).toContain('has no placeholder of this host yet');
  await one.register('a1');
  await one.client.deleteAgent(world.pool, world.azure.agents(world.pool)[0]?.id ?? 0, patient);
  expect(await said(one, 'warning')).toContain('is gone from the service');
});

it('says when the service does not count the placeholder', async () => {
  const { world, one } = await open.one();
  await one.register('a1');
  await registerByHand(world.azure, world.pool, `box-1-${one.store.owner.slice(0, 8)}-b1`, { capabilities: { cobol: 'yes' } });
  one.slots.set('b1', { pool: 'ci', since: null });
  world.azure.queue(world.pool, { demands: ['cobol'] });
  await one.watch();
  expect(await said(one, 'warning')).toContain('does not count the placeholder');
});

it('warns of a pool that updates its agents automatically', async () => {
  const world = await open();
  world.azure.addPool('auto', { autoUpdate: true });
  expect(await said(world.manager({ pools: [{ name: 'ci', queue: 'auto', tags: [] }] }))).toContain(
    'updates its agents automatically',
  );
});

it('warns of an agent that is older than what the service hands out', async () => {
  const { one } = await open.one();
  await one.register('a1', { inside: inside().replace('5.278.0', '5.99.12') });
  expect(await said(one, 'warning')).toContain('The agent in the images is version 5.99.12; the service offers 5.278.0');
});

it.each([
  [50, ''],
  [120, "clock is 120 s behind the service's"],
  [-600, "clock is 600 s ahead of the service's"],
])('sees a clock that is %i s off', async (seconds, text) => {
  const { world, one } = await open.one();
  await one.register('a1');
  world.azure.faults.skew = seconds * 1000;
  const found = (await said(one, 'warning')) + (await said(one, 'error'));
  expect(found.replace(/(\d)\d s/, (_, tens) => `${tens}0 s`).replace('119', '120')).toContain(text);
});

describe('the way of registration', () => {
  it.each(['in-agent', 'image'] as const)('warns that the token enters sandboxes: %s', async (registration) => {
    const world = await open();
    expect(await said(world.manager({ config: { registration } }), 'warning')).toContain('the token enters their sandboxes');
  });

  it('warns only when it is so, where onejob chooses it', async () => {
    const { one } = await open.one({ config: { registration: 'auto' } });
    await one.register('a1');
    expect(await said(one, 'warning')).toBe('');
    await one.register('a2', { inside: 'start=/azp/start.sh\nuid=0\n' });
    expect(await said(one, 'warning')).toContain('the token enters their sandboxes');
  });
});

it('names placeholders of kinds of which no agent was made for a week', async () => {
  const pools = [{ name: 'ci', queue: 'gpu', tags: ['driver=1'] }];
  const { world, one: first } = await open.one({ pools });
  await first.register('a1');
  const old = world.names().find((name) => name.startsWith('onejob-placeholder'));
  const second = first.next({ pools: [{ name: 'ci', queue: 'gpu', tags: ['driver=2'] }] });
  await second.register('a2');
  world.clock.advance(6 * 86_400_000);
  await second.register('a3');
  expect(await said(second, 'warning')).toBe('');
  world.clock.advance(2 * 86_400_000);
  expect(await said(second, 'warning')).toMatch(new RegExp(`for a week: ${old}\\. Jobs`));
  await second.client.deleteAgent(world.pool, world.azure.agents(world.pool).find(({ name }) => name === old)?.id ?? 0, patient);
  expect(await said(second, 'warning')).toBe('');
});

it('says what is left at a service that no pool uses any more', async () => {
  const { world, one: first } = await open.one();
  await first.register('a1');
  const second = first.next({ pools: [] });
  const left = await said(second, 'warning');
  expect(left).toContain('No pool of the config uses service azure, which still has');
  for (const name of world.names()) expect(left).toContain(name);
});

it('leaves a placeholder disabled that somebody has disabled, and says so', async () => {
  const { world, one } = await open.one();
  await one.register('a1');
  await one.client.setEnabled(world.pool, world.azure.agents(world.pool)[0]?.id ?? 0, false, patient);
  expect(await said(one, 'warning')).toContain('is disabled at the service');
  expect(world.azure.agents(world.pool)[0]?.enabled).toBe(false);
});
