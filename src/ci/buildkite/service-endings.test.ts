/** Jobs that onejob ends: what is said of them before their agents are told. */
import { describe, expect, it } from 'vitest';
import type { StopReason } from '../../core/slot.ts';
import type { EndingAgent } from '../ci-service.ts';
import { heldAgent } from './testing-broker.ts';
import { openManager, testPool, trustedEnv } from './testing-manager.ts';

const job = 'job-a1';

const patient = new AbortController().signal;
const ended = (why: StopReason, of = job): EndingAgent => ({ agent: 'agent1', job: of, why, released: true });

describe('a job', () => {
  it.each([
    ['timeout', /^onejob ended this job: pool ci lets a job run for 2h at most\.$/],
    ['shutdown', /^onejob ended this job: it was told to stop\.$/],
  ] as const)('that is ended by %s has the reason said to the broker before its agent is told', async (why, words) => {
    await using one = openManager({ pools: [testPool({ timeout: 7_200_000 })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' }));
    await one.service.ending?.(ended(why), patient);
    expect(one.broker.posted('/a1/explain')).toEqual([{ reason: expect.stringMatching(words) }]);
    expect(one.store.serviceJobs.get(job)?.note).toMatch(words);
  });

  it('that is ended for what the service knows is not explained, and a broker that is away holds up no end', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' }));
    await one.service.ending?.(ended('cancelled'), patient);
    await one.service.ending?.(ended('timeout', 'stranger'), patient);
    one.broker.instead = () => Promise.reject(new Error('full'));
    await one.service.ending?.(ended('timeout'), patient);
    one.broker.down();
    await one.pass(50);
    await one.service.ending?.(ended('timeout'), patient);
    expect(one.broker.posted('/explain')).toHaveLength(1);
  });

  it('that is ended while the broker is away is explained once that is back', async () => {
    await using one = openManager({ pools: [testPool({ timeout: 7_200_000 })] });
    await one.watch();
    await one.service.ending?.(ended('timeout'), patient);
    one.broker.put(heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' }));
    one.broker.up();
    await one.pass(3_000);
    expect(one.broker.posted('/a1/explain')).toEqual([{ reason: expect.stringContaining('at most') }]);
  });
});
