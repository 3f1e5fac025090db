/** Jobs that are cancelled while they run: their agents end them, or else onejob does. */
import { describe, expect, it } from 'vitest';
import { createEarly } from './early.ts';
import { openAcquiring } from './testing-acquire.ts';
import { carriedAgent, fakeBroker, heldAgent } from './testing-broker.ts';
import { type Manager, openManager, testPool, trustedEnv } from './testing-manager.ts';

const pools = [testPool({ stopGrace: 35_000 })];
/** ms: that, and half a minute. */
const late = 65_000;

const early = (): Manager => {
  const made = openManager({ pools, make: (parts) => createEarly({ ...parts, isLive: () => true, silentFor: () => null }) });
  made.broker.up();
  return made;
};
const held = (): Manager => {
  const made = openManager({ pools });
  made.broker.up();
  return made;
};
const acquired = (): Manager => {
  const made = openAcquiring({ pools });
  made.live.add('agent1');
  return made;
};
const agent = heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' });
const carried = carriedAgent('agent1', { env: trustedEnv, phase: 'running' });
const end = (job: string) => ({ kind: 'cancel', job, agent: 'agent1', grace: 0 });

describe('a running job that is cancelled', () => {
  it.each([
    ['late', held, agent],
    ['early', early, carried],
    ['acquired', acquired, carried],
  ] as const)('(%s) is ended where its agent has not done it half a minute after its time', async (_, make, of) => {
    await using one = make();
    await one.watch();
    one.broker.put({ ...of, cancelled: true });
    await one.pass(late - 1_000);
    expect(one.of('cancel')).toEqual([]);
    await one.pass(2_000);
    expect(one.of('cancel')).toEqual([end(of.job?.id ?? '')]);
    expect(one.store.serviceJobs.get(of.job?.id ?? '')?.note).toMatch(/did not end it/);
  });

  it('is left to its agent, which ends it in time', async () => {
    await using one = held();
    await one.watch();
    one.broker.put({ ...agent, cancelled: true });
    await one.pass(late - 5_000);
    one.broker.put({ ...agent, cancelled: true, phase: 'finished' });
    await one.pass(late);
    expect(one.of('cancel')).toEqual([]);
  });

  it('has its time once, however often it is heard of, and by whichever manager', async () => {
    const broker = fakeBroker();
    broker.up();
    broker.put({ ...agent, cancelled: true });
    await using one = openManager({ broker, pools });
    await one.watch();
    for (let at = 0; at < 7; at += 1) {
      broker.put({ ...agent, cancelled: true, problem: `at ${at}` });
      await one.pass(late / 6);
    }
    expect(one.of('cancel')).toEqual([end('job-a1')]);
  });

  it('is ended again, should it still be there', async () => {
    await using one = held();
    await one.watch();
    one.broker.put({ ...agent, cancelled: true });
    await one.pass(2 * late + 2_000);
    expect(one.of('cancel')).toEqual([end('job-a1'), end('job-a1')]);
  });

  it('is not ended by a manager that no longer listens, nor one that was not cancelled', async () => {
    await using one = held();
    await one.watch();
    one.broker.put(agent);
    await one.pass(2 * late);
    one.broker.put({ ...agent, cancelled: true });
    one.stop();
    await one.pass(2 * late);
    expect(one.of('cancel')).toEqual([]);
  });
});
