/** Agents that are there without their job: one that never heard of it is ended, and nobody else. */
import { expect, it } from 'vitest';
import { worlds } from '../../../test/kit/azure-service.ts';

const open = worlds();
const minutes = (count: number) => count * 60_000;
/** A job is lost after a minute, and an agent that does not listen stays for an hour. */
const lostSoon = { lockMs: minutes(1), sessionMs: minutes(60) };

it('ends an agent whose job was given up before it heard of it, once it can get no other', async () => {
  const { world, one } = await open.watching(lostSoon);
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

it('leaves one alone that was given another job', async () => {
  const { world, one } = await open.watching(lostSoon);
  const agent = await one.start('a1');
  world.azure.queue(world.pool);
  await world.pass(minutes(4));
  const { requestId } = world.azure.queue(world.pool);
  // Its first message is of the job that is gone.
  const first = await agent.poll();
  const second = await agent.poll(first?.messageId);
  expect(second?.body.requestId).toBe(requestId);
  for (let n = 0; n < 10; n++) {
    await agent.renew(requestId);
    await world.pass(30_000);
  }
  expect(one.of('jobDone')).toEqual([]);
});

it('leaves one alone that waits for its first job', async () => {
  const { world, one } = await open.watching(lostSoon);
  await one.start('a1');
  await world.pass(minutes(20));
  expect(one.of('jobDone')).toEqual([]);
});
