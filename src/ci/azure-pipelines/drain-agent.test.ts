/** Idle agents that are told to end: a job that is on its way to one arrives first, and nothing is waited for in vain. */
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { worlds } from '../../../test/kit/azure-service.ts';
import type { StopReason } from '../../core/slot.ts';
import type { EndingAgent } from '../../ports/ci-service.ts';

const open = worlds();
const idle = (why: StopReason = 'shutdown'): EndingAgent => ({ agent: 'a1', job: null, why, released: true });

/** Whether the end may go on. */
function watched(ending: Promise<void> | undefined): { isOver: boolean } {
  const watch = { isOver: false };
  void ending?.then(() => {
    watch.isOver = true;
  });
  return watch;
}

it('continues at once without a job, and gets no more', async () => {
  const { world, one } = await open.online();
  await one.service.ending?.(idle(), patient);
  expect(world.azure.queue(world.pool).view().state).toBe('waiting');
});

it('waits until a job that is on its way has arrived', async () => {
  const { world, one, agent } = await open.online();
  const queued = world.azure.queue(world.pool);
  const end = watched(one.service.ending?.(idle(), patient));
  await world.pass(1_000);
  expect(end.isOver).toBe(false);
  const job = await agent.take();
  await world.pass(100);
  expect(end.isOver).toBe(true);
  expect(one.service.serviceJobs()).toMatchObject([{ id: `azure-${queued.requestId}` }]);
  await agent.complete(job, 'canceled');
});

it('waits also for one that was seen and has not arrived: an agent does not listen all the time', async () => {
  const { world, one, agent } = await open.online();
  const { requestId } = world.azure.queue(world.pool);
  const end = watched(one.service.ending?.({ ...idle(), job: `azure-${requestId}` }, patient));
  await world.pass(15_000);
  expect(end.isOver).toBe(false);
  const job = await agent.take();
  await world.pass(600);
  expect(end.isOver).toBe(true);
  await agent.complete(job, 'canceled');
});

it('waits twenty seconds at most for a job that does not arrive, and three for a service that does not answer', async () => {
  const { world, one } = await open.online({ notAwaited: '/agents/' });
  world.azure.queue(world.pool);
  const first = watched(one.service.ending?.(idle(), patient));
  await world.pass(19_900);
  expect(first.isOver).toBe(false);
  await world.pass(200);
  expect(first.isOver).toBe(true);
  world.azure.faults.add({ kind: 'hang' }, { method: 'PATCH' });
  const second = watched(one.service.ending?.(idle(), patient));
  await world.pass(3_100);
  expect(second.isOver).toBe(true);
  expect(world.said.filter((line) => line.includes('while the service may be giving it a job'))).toHaveLength(2);
});

it('continues when the service cannot say, and when nobody waits any more', async () => {
  const { world, one } = await open.online();
  const fixed = world.azure.faults.add({ kind: 'denied' }, { method: 'PATCH' });
  await one.service.ending?.(idle(), patient);
  fixed();
  world.azure.queue(world.pool);
  const hurried = new AbortController();
  const end = watched(one.service.ending?.(idle(), hurried.signal));
  await world.pass(200);
  hurried.abort();
  await world.quiet();
  expect(end.isOver).toBe(true);
});

it('asks nobody about one that is known to work on its job', async () => {
  const { world, one, agent } = await open.online();
  const { requestId } = world.azure.queue(world.pool);
  const job = await agent.take();
  // The first end finds out that it runs.
  await one.service.ending?.({ ...idle(), job: `azure-${requestId}` }, patient);
  const before = world.azure.log.length;
  await one.service.ending?.({ ...idle(), job: `azure-${requestId}` }, patient);
  expect(world.asked(before)).toBe(0);
  await agent.complete(job, 'canceled');
});

it.each([
  ['that was kept from jobs before', idle('renewal')],
  ['that nobody knows', { ...idle(), agent: 'stranger' }],
])('asks nobody about one %s', async (_, agent) => {
  const { world, one } = await open.online();
  const before = world.azure.log.length;
  await one.service.ending?.(agent, patient);
  expect(world.asked(before)).toBe(0);
});
