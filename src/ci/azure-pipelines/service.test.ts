/** Days without trouble: hosted and on premises, with a token and with a principal, with few agents and with many. */
import { expect, it } from 'vitest';
import { memory } from '../../../test/kit/azure.ts';
import { worlds } from '../../../test/kit/azure-service.ts';

const open = worlds();
const placeholder = expect.stringMatching(/^onejob-placeholder-/);

it.each([
  ['hosted', {}],
  ['on premises', { collectionPath: 'tfs/Default Collection' }],
])('makes a standby known, sees it come online, tells its job, and forgets it: %s', async (_, options) => {
  const { world, one } = await open.watching(options);
  const agent = await one.start('a1');
  expect(world.names()).toEqual([placeholder, `box-1-${one.store.owner.slice(0, 8)}-a1`]);
  await world.pass(10_000);
  expect(one.of('online')).toContainEqual({ kind: 'online', agent: 'a1' });
  const queued = world.azure.queue(world.pool, { name: 'build' });
  const job = await agent.take();
  await world.pass(10_000);
  expect(one.of('jobSeen')).toContainEqual({ kind: 'jobSeen', agent: 'a1', job: `azure-${queued.requestId}` });
  await agent.complete(job);
  await agent.close();
  expect(await queued.finished).toMatchObject({ result: 'succeeded' });
  expect(await one.end('a1')).toEqual({ ran: `azure-${queued.requestId}` });
  expect(world.names()).toEqual([placeholder]);
});

it('tells a job that came and went between two looks', async () => {
  const { world, one } = await open.watching();
  const agent = await one.start('a1');
  const queued = world.azure.queue(world.pool);
  await agent.complete(await agent.take(), 'failed');
  await agent.close();
  expect(await one.end('a1')).toEqual({ ran: `azure-${queued.requestId}` });
  expect(one.store.serviceJobs.get(`azure-${queued.requestId}`)).toMatchObject({ state: 'done', result: 'failed', agent: 'a1' });
});

it('asks as often for fifty agents as for two', async () => {
  const { world, one } = await open.watching();
  const hour = async (count: number): Promise<number> => {
    for (let at = one.slots.size; at < count; at += 1) await (at < 2 ? one.start(`a${at}`) : one.register(`a${at}`));
    // Learns once what its kind says.
    await world.pass(10_000);
    const from = world.azure.log.length;
    await world.pass(600_000);
    return world.asked(from);
  };
  expect([await hour(2), await hour(50)]).toEqual([120, 120]);
});

it('does a whole job with an Entra application instead of a token', async () => {
  const world = await open();
  const { secret, ...known } = world.azure.principal;
  const one = world.manager({ config: { credential: { kind: 'principal', ...known, secret: memory(secret) } } });
  await one.watch();
  const agent = await one.start('a1');
  const { finished } = world.azure.queue(world.pool);
  await agent.complete(await agent.take());
  expect(await finished).toMatchObject({ result: 'succeeded' });
  await one.end('a1');
  expect(world.azure.log.some(({ identity }) => identity === 'pat')).toBe(false);
});

it('removes placeholders only when it is told to forget, and makes them again when it is needed again', async () => {
  const { world, one: first } = await open.online();
  await first.end('a1');
  const second = first.next();
  expect(world.names()).toEqual([placeholder]);
  await second.service.forget(AbortSignal.timeout(5_000));
  expect(world.names()).toEqual([]);
  await second.register('a2');
  expect(world.names()).toEqual([placeholder, expect.stringContaining('-a2')]);
  await second.end('a2');
  await second.service.forget(AbortSignal.timeout(5_000));
  expect(world.names()).toEqual([]);
});
