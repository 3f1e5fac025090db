/** Jobs that do not run: refused, cancelled, given up, or told to a slot that is no more. */
import { describe, expect, it } from 'vitest';
import { OnejobError } from '../../errors.ts';
import { away, heldAgent } from './testing-broker.ts';
import { forkEnv, type Manager, openManager, patient, testPool, trustedEnv } from './testing-manager.ts';

const job = 'job-a1';
const failure = { code: 'E_IMAGE_PULL', message: 'Cannot pull "debian".', retry: true } as const;

/** A manager with an accepted job that it has decided about. */
async function withJob(env = trustedEnv): Promise<Manager> {
  const one = openManager();
  one.broker.up();
  await one.watch();
  one.broker.put(heldAgent('a1', { env }));
  await one.pass(0);
  return one;
}

describe('a job that no rule allows', () => {
  it('is refused with the rule, and no slot is ever asked', async () => {
    await using one = await withJob(forkEnv);
    expect(one.broker.refused).toEqual([
      {
        id: 'a1',
        reason: expect.stringMatching(/^onejob refused this job: it is pull request 12 .*trust\.forks: refuse/),
        signalReason: 'agent_refused',
      },
    ]);
    expect([one.of('waiting'), one.service.next('ci', 'ci/1')]).toEqual([[], null]);
    await expect(one.service.register(one.context('agent1', job), patient)).rejects.toMatchObject({ code: 'E_JOB_GONE' });
    expect(one.broker.posted('/hand')).toEqual([]);
  });

  it('is shown with the reason, and one that runs without secrets with why', async () => {
    await using one = openManager({
      pools: [testPool(), testPool({ name: 'open', trust: { ...testPool().trust, forks: 'run-without-secrets' } })],
    });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: forkEnv }));
    one.broker.put(heldAgent('b1', { env: forkEnv, slot: 'open/1', pool: 'open' }));
    await one.pass(0);
    const noteOf = (id: string) => one.store.serviceJobs.get(id)?.note;
    expect(noteOf('job-a1')).toMatch(/^onejob refused this job: .*fork/s);
    expect(noteOf('job-b1')).toMatch(/^The job runs without secrets, and without the caches of its pool: (?!The job).*fork/s);
  });

  it('is refused again by whoever could not say so', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.instead = async () => Promise.reject(away());
    one.broker.put(heldAgent('a1', { env: forkEnv }));
    await one.pass(0);
    one.broker.instead = null;
    one.broker.down();
    one.broker.up();
    await one.pass(3_000);
    expect(one.broker.refused.map(({ signalReason }) => signalReason)).toEqual(['agent_refused']);
  });
});

it('refuses what cannot be decided, with the reason', async () => {
  const rule = () => Promise.reject(new OnejobError('E_SECRET', 'The key file "/k" cannot be read.', { hint: 'Make it.' }));
  await using one = openManager({ parts: { rule } });
  one.broker.up();
  await one.watch();
  one.broker.put(heldAgent('a1', { env: trustedEnv }));
  await one.pass(0);
  expect(one.broker.refused).toEqual([
    { id: 'a1', reason: expect.stringContaining('The key file "/k" cannot be read.'), signalReason: 'process_run_error' },
  ]);
});

it('decides once about a job, however often the broker tells of it', async () => {
  let asked = 0;
  const ruling = Promise.withResolvers<never>();
  const rule = () => {
    asked += 1;
    return ruling.promise;
  };
  await using one = openManager({ parts: { rule } });
  one.broker.up();
  await one.watch();
  for (let n = 0; n < 3; n++) one.broker.put(heldAgent('a1', { env: trustedEnv }));
  await one.pass(0);
  expect(asked).toBe(1);
});

describe('a cancelled job', () => {
  it('is offered to nobody any more', async () => {
    await using one = await withJob();
    one.broker.put(heldAgent('a1', { env: trustedEnv, cancelled: true }));
    expect(one.service.next('ci', 'ci/1')).toBeNull();
  });

  it('that has a sandbox ends there', async () => {
    await using one = await withJob();
    one.lanes.set('ci/1', [job]);
    await one.service.register(one.context('agent1', job), patient);
    one.broker.put(heldAgent('a1', { env: trustedEnv, phase: 'handed', agent: 'agent1', cancelled: true }));
    expect(one.of('cancel')).toEqual([{ kind: 'cancel', job, agent: 'agent1', grace: null }]);
  });

  it('that runs is left to its agent, which the service tells itself', async () => {
    await using one = await withJob();
    one.lanes.set('ci/1', [job]);
    one.broker.put(heldAgent('a1', { env: trustedEnv, phase: 'running', agent: 'agent1', cancelled: true }));
    expect(one.of('cancel')).toEqual([]);
  });

  it('while it is being decided about is refused by its rule all the same', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: forkEnv }));
    one.broker.put(heldAgent('a1', { env: forkEnv, phase: 'ending' }));
    await one.pass(0);
    expect([one.broker.refused, one.of('waiting')]).toEqual([[], []]);
  });
});

describe('a sandbox that cannot be made', () => {
  it('is tried three times, and then the service is told why', async () => {
    await using one = await withJob();
    for (let n = 1; n <= 2; n++) {
      one.commit({ change: 'returned', job, agent: `agent${n}`, failure });
      expect(one.service.next('ci', 'ci/1')?.job).toBe(job);
      await one.pass(0);
      expect(one.of('waiting')).toHaveLength(n + 1);
    }
    one.commit({ change: 'returned', job, agent: 'agent3', failure });
    // At once: the slot is planned in the same moment.
    expect(one.service.next('ci', 'ci/1')).toBeNull();
    await one.pass(0);
    expect(one.broker.refused).toEqual([
      {
        id: 'a1',
        reason: 'onejob could not make a sandbox for this job: Cannot pull "debian".',
        signalReason: 'process_run_error',
      },
    ]);
  });

  it('is not tried again where that is of no use', async () => {
    await using one = await withJob();
    one.commit({ change: 'returned', job, agent: 'agent1', failure: { ...failure, retry: false } });
    await one.pass(0);
    expect(one.broker.refused).toHaveLength(1);
  });

  it('counts only where something failed', async () => {
    await using one = await withJob();
    for (let n = 1; n <= 5; n++) one.commit({ change: 'returned', job, agent: `agent${n}`, failure: null });
    await one.pass(0);
    expect([one.broker.refused, one.service.next('ci', 'ci/1')?.job]).toEqual([[], job]);
  });

  it('is tried again when the broker could not be told to give the job up', async () => {
    await using one = await withJob();
    one.broker.instead = async () => Promise.reject(away());
    one.commit({ change: 'returned', job, agent: 'agent1', failure: { ...failure, retry: false } });
    await one.pass(0);
    one.broker.instead = null;
    one.broker.down();
    one.broker.up();
    await one.pass(3_000);
    expect(one.service.next('ci', 'ci/1')?.job).toBe(job);
  });
});

describe('time', () => {
  it('is up for a job that no sandbox was ready for', async () => {
    await using one = await withJob();
    await one.pass(179_000);
    expect(one.broker.refused).toEqual([]);
    await one.pass(2_000);
    expect(one.broker.refused).toEqual([
      { id: 'a1', reason: 'onejob gave this job up: no sandbox was ready for it within 3 min.', signalReason: 'process_run_error' },
    ]);
    expect(one.service.next('ci', 'ci/1')).toBeNull();
  });

  it('is up for an agent that does not call in, and its sandbox with it', async () => {
    await using one = await withJob();
    one.lanes.set('ci/1', [job]);
    await one.service.register(one.context('agent1', job), patient);
    await one.pass(59_000);
    expect(one.broker.refused).toEqual([]);
    await one.pass(2_000);
    expect(one.broker.refused[0]?.reason).toContain('did not call in within 1 min');
    expect(one.of('cancel')).toEqual([{ kind: 'cancel', job, agent: 'agent1', grace: 0 }]);
  });

  it('is up again where the broker was away when it was up', async () => {
    await using one = await withJob();
    one.broker.down();
    await one.pass(200_000);
    expect(one.broker.refused).toEqual([]);
    one.broker.up();
    await one.pass(3_000);
    await one.pass(181_000);
    expect(one.broker.refused[0]?.reason).toContain('no sandbox was ready');
  });

  it.each(['connected', 'running', 'ending', 'gone'] as const)('is not up for one that is %s', async (phase) => {
    await using one = await withJob();
    one.broker.put(heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase }));
    await one.pass(400_000);
    expect([one.broker.refused, one.of('cancel')]).toEqual([[], []]);
  });

  it('is not up for one that the broker has forgotten', async () => {
    await using one = await withJob();
    one.broker.lose('a1');
    one.broker.down();
    one.broker.up();
    await one.pass(400_000);
    expect([one.broker.refused, one.service.next('ci', 'ci/1')]).toEqual([[], null]);
  });
});

describe('a slot that is no more', () => {
  it('refuses the job it has not begun, and keeps the one it has', async () => {
    await using one = await withJob();
    one.broker.put(heldAgent('b1', { env: trustedEnv, slot: 'ci/2' }));
    await one.pass(0);
    one.lanes.set('ci/2', ['job-b1']);
    one.service.offer('ci/1', 'gone');
    one.service.offer('ci/2', 'gone');
    await one.pass(0);
    expect(one.broker.refused).toEqual([
      { id: 'a1', reason: 'onejob was told to stop before this job had begun.', signalReason: 'agent_stop' },
    ]);
  });

  it('refuses a job that came for it when its pool had left the config', async () => {
    await using one = openManager();
    one.broker.up();
    one.broker.put(heldAgent('a1', { env: trustedEnv, slot: 'old/1', pool: 'old' }));
    await one.watch();
    expect(one.broker.refused).toEqual([
      { id: 'a1', reason: expect.stringContaining('not in the config'), signalReason: 'agent_stop' },
    ]);
  });

  it('keeps a job that it runs, whose pool had left the config', async () => {
    await using one = openManager({ pools: [testPool()] });
    one.broker.up();
    one.lanes.set('old/1', [job]);
    one.broker.put(heldAgent('a1', { env: trustedEnv, slot: 'old/1', pool: 'old', phase: 'running', agent: 'agent1' }));
    await one.watch();
    expect(one.broker.refused).toEqual([]);
  });
});
