/** What a look is followed by: silence that is told in time and never too early, and what waits for whom. */
import { describe, expect, it } from 'vitest';
import { inside, type Manager } from '../../../test/kit/azure-manager.ts';
import { worlds } from '../../../test/kit/azure-service.ts';
import { registerByHand } from '../../../test/standins/azure-devops/hand-agent.ts';

const open = worlds();
const minutes = (count: number) => count * 60_000;

/** A registered agent's script has begun; it does not come online. */
async function released(one: Manager, agent: string, now: number): Promise<void> {
  await one.register(agent);
  one.slots.set(agent, { pool: 'ci', since: now });
}

describe('an agent that does not come online', () => {
  it('is reported once its time is over', async () => {
    const { world, one } = await open.watching();
    await released(one, 'a1', world.clock.now());
    await world.pass(minutes(3));
    expect(one.of('silent')).toEqual([]);
    await world.pass(20_000);
    expect(one.of('silent')[0]).toMatchObject({ agent: 'a1', failure: { code: 'E_AGENT_SILENT', retry: true } });
    expect(one.of('silent')[0]?.failure.message).toMatch(/started 19\d s ago and has not come online at http/);
  });

  it('is also reported when it was to register itself, because its "config.sh" can try forever', async () => {
    const { world, one } = await open.watching({ config: { registration: 'in-agent' } });
    await released(one, 'a1', world.clock.now());
    await world.pass(minutes(4));
    expect(one.of('silent')[0]).toMatchObject({ agent: 'a1' });
  });

  it('is not blamed for an outage, nor right after one', async () => {
    const { world, one } = await open.watching();
    await released(one, 'a1', world.clock.now());
    await world.azure.faults.down();
    await world.pass(minutes(60));
    await world.azure.faults.up();
    await world.pass(minutes(3));
    expect(one.of('silent')).toEqual([]);
    await world.pass(minutes(2));
    expect(one.of('silent')).not.toEqual([]);
  });

  it('is not reported before the first look, nor at the first look of a new manager', async () => {
    const { world, one } = await open.one();
    await released(one, 'a1', world.clock.now() - minutes(30));
    await one.watch();
    expect(one.of('silent')).toEqual([]);
  });
});

it('ends an agent whose job was given up before it heard of it, once it can get no other', async () => {
  // A job is lost after a minute, and an agent that does not listen stays for an hour.
  const { world, one } = await open.watching({ lockMs: minutes(1), sessionMs: minutes(60) });
  await one.start('a1');
  const lost = world.azure.queue(world.pool);
  await world.pass(minutes(2));
  expect([one.of('jobSeen').length > 0, lost.view().result]).toEqual([true, 'abandoned']);
  await world.pass(minutes(3));
  expect(one.of('jobDone')).toEqual([]);
  await world.pass(minutes(2));
  expect(one.of('jobDone')[0]).toEqual({ kind: 'jobDone', agent: 'a1' });
  expect(world.azure.queue(world.pool).view().state).toBe('waiting');
});

it('looks on while the service takes its time with what a look is followed by', async () => {
  const { world, one } = await open.online({ notAwaited: 'includeCapabilities' });
  world.azure.faults.add({ kind: 'hang' }, { method: 'GET', route: 'agents/{agentId}' });
  await one.watch();
  await one.start('a2');
  await world.pass(20_000);
  expect(one.of('online')).toContainEqual({ kind: 'online', agent: 'a2' });
});

describe('two services of one host on the same agent pool', () => {
  it('report only their own agents', async () => {
    const { world, one: first, agent } = await open.online();
    const { requestId } = world.azure.queue(world.pool);
    await agent.take();
    const second = first.next({ config: { name: 'other' }, opened: ['azure'] });
    second.slots.set('a1', { pool: 'ci', since: null });
    await second.watch();
    await world.pass(20_000);
    expect([...second.of('online'), ...second.of('jobSeen')]).toEqual([]);
    expect(second.store.serviceJobs.get(`other-${requestId}`)).toBeNull();
    expect(world.names()).toHaveLength(2);
  });

  it('do not count what waits for the other one', async () => {
    const { world, one: first } = await open.one();
    await first.register('a1');
    first.stop();
    world.azure.queue(world.pool, { demands: ['git'] });
    const pools = [{ name: 'lab', queue: 'gpu', tags: [] }];
    const second = world.manager({ dir: first.dir, config: { name: 'other' }, opened: ['azure'], pools });
    await second.watch();
    expect(second.service.waiting('lab')).toBe(0);
  });
});

it('looks once at an agent pool that two pools name, each in its own case', async () => {
  const pools = ['gpu', 'GPU'].map((queue) => ({ name: `ci ${queue}`, queue, tags: [] }));
  const { world, one } = await open.watching({ pools });
  const from = world.azure.log.length;
  await world.pass(60_000);
  expect(world.asked(from)).toBe(12);
  expect(one.service.waiting('ci gpu')).toBe(0);
  expect(one.service.waiting('ci GPU')).toBe(0);
});

it('reports all agents at once, and looks again, although the service is slow to describe jobs', async () => {
  const { world, one } = await open.one({ notAwaited: '/build/builds/' });
  for (const agent of ['a1', 'a2']) {
    const online = await one.start(agent);
    world.azure.queue(world.pool);
    await online.take();
  }
  world.azure.faults.add({ kind: 'hang' }, { route: 'builds/{buildId}' });
  await one.watch();
  await world.pass(20_000);
  expect(
    one
      .of('jobSeen')
      .slice(0, 2)
      .map(({ agent }) => agent),
  ).toEqual(['a1', 'a2']);
  expect(world.asked(0, 'jobrequests')).toBeGreaterThan(2);
});

describe('waiting jobs', () => {
  it('are counted for the pools whose agents would do, online or not', async () => {
    const pools = [
      { name: 'ci', queue: 'gpu', tags: ['small'] },
      { name: 'lab', queue: 'gpu', tags: ['large'] },
    ];
    const { world, one } = await open.one({ pools });
    expect(one.service.waiting('ci')).toBeNull();
    await one.register('a1');
    await one.register('b1', { pool: 'lab' });
    await one.end('b1');
    world.azure.queue(world.pool, { demands: ['small'] });
    world.azure.queue(world.pool, { demands: ['large'] });
    world.azure.queue(world.pool, { demands: ['large'] });
    world.azure.queue(world.pool);
    await one.watch();
    expect(['ci', 'lab'].map((pool) => one.service.waiting(pool))).toEqual([2, 3]);
    expect(one.service.serviceJobs().map(({ pool, state }) => `${pool} ${state}`)).toEqual([
      'ci waiting',
      'lab waiting',
      'lab waiting',
      'ci waiting',
    ]);
  });

  it("of other hosts' agents in the same pool are not ours", async () => {
    const { world, one } = await open.one();
    await registerByHand(world.azure, world.pool, 'somebody', { capabilities: { cobol: 'yes' } });
    await one.register('a1');
    world.azure.queue(world.pool, { demands: ['cobol'] });
    await one.watch();
    expect(one.service.waiting('ci')).toBe(0);
  });

  it('are shown that no agent of the pool would do, also none of another host', async () => {
    const { world, one } = await open.one();
    await one.register('a1');
    await registerByHand(world.azure, world.pool, 'somebody', { capabilities: { cobol: 'yes' } });
    world.azure.queue(world.pool, { demands: ['cobol'] });
    const other = await registerByHand(world.azure, world.pool, 'leaves', { capabilities: { fortran: 'yes' } });
    world.azure.queue(world.pool, { demands: ['fortran'] });
    await fetch(`${world.azure.url}/_apis/distributedtask/pools/${world.pool}/agents/${other.identity.agentId}`, {
      method: 'DELETE',
      headers: {
        accept: 'application/json; api-version=7.1-preview',
        authorization: `Basic ${Buffer.from(`:${world.azure.pat}`).toString('base64')}`,
      },
    });
    await one.watch();
    expect(one.service.unfit()).toEqual([]);
    world.clock.advance(300_000);
    expect(one.service.unfit()).toMatchObject([{ jobs: 1, how: expect.stringContaining('for an agent with fortran, which') }]);
  });

  it('are counted by the placeholder that a former manager left', async () => {
    const { world, one: first } = await open.one();
    await first.register('a1');
    await first.end('a1');
    const second = first.next();
    world.azure.queue(world.pool, { demands: ['git'] });
    await second.watch();
    expect(second.service.waiting('ci')).toBe(1);
  });

  it('of one agent pool are still known after a look at another one', async () => {
    const world = await open();
    const lab = world.azure.addPool('lab');
    const pools = [
      { name: 'ci', queue: 'gpu', tags: [] },
      { name: 'lab', queue: 'lab', tags: [] },
    ];
    const one = world.manager({ pools });
    await one.register('a1');
    await one.register('b1', { pool: 'lab', inside: inside() });
    const [here] = [world.azure.queue(world.pool), world.azure.queue(lab)];
    await one.watch();
    await world.pass(30_000);
    expect(one.service.serviceJobs().map(({ pool }) => pool)).toEqual(expect.arrayContaining(['ci', 'lab']));
    world.azure.cancel(here.requestId);
    await world.pass(10_000);
    expect(one.service.serviceJobs().map(({ pool }) => pool)).toEqual(['lab']);
  });
});
