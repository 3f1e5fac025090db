/** A manager that comes back, and a broker that does: what is there is found again, in every phase. */
import { describe, expect, it } from 'vitest';
import { phases } from './broker/protocol.ts';
import { fakeBroker, heldAgent } from './testing-broker.ts';
import { forkEnv, openManager, patient, testPool, trustedEnv } from './testing-manager.ts';

const job = 'job-a1';
const unread = { all: () => Promise.reject(new Error('unread')), folder: () => Promise.reject(new Error('unread')) };

/** What a manager that begins makes of an agent in a phase. `waits`: offers its job to the slot. */
const found: Record<(typeof phases)[number], { readonly waits: boolean; readonly done: boolean; readonly row: string | null }> = {
  expected: { waits: false, done: false, row: null },
  registering: { waits: false, done: false, row: null },
  registered: { waits: false, done: false, row: null },
  idle: { waits: false, done: false, row: null },
  accepting: { waits: false, done: false, row: 'assigned' },
  accepted: { waits: true, done: false, row: 'assigned' },
  handed: { waits: true, done: false, row: 'assigned' },
  connected: { waits: false, done: false, row: 'assigned' },
  running: { waits: false, done: false, row: 'running' },
  finished: { waits: false, done: true, row: 'done' },
  ending: { waits: false, done: true, row: 'assigned' },
  gone: { waits: false, done: false, row: null },
};

describe.each(phases)('an agent that is %s', (phase) => {
  const expected = found[phase];
  const hasJob = expected.row !== null;
  const agent = heldAgent('a1', {
    ...{ phase, agent: phases.indexOf(phase) >= phases.indexOf('handed') ? 'agent1' : null },
    ...(hasJob ? { env: trustedEnv } : {}),
    finished: phase === 'finished' ? { exitStatus: '0', signal: null, signalReason: null } : null,
  });

  it('is found by a manager that begins', async () => {
    const broker = fakeBroker();
    broker.up();
    broker.put(agent);
    await using one = openManager({ broker });
    await one.watch();
    expect({
      waits: one.service.next('ci', 'ci/1')?.job === job,
      done: one.of('jobDone').length === 1,
      row: one.store.serviceJobs.get(job)?.state ?? null,
    }).toEqual(expected);
    expect(broker.refused).toEqual([]);
  });

  it('is the same after the broker was killed', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(agent);
    await one.pass(0);
    one.broker.down();
    await one.pass(0);
    one.broker.up();
    await one.pass(3_000);
    expect(one.service.next('ci', 'ci/1')?.job === job).toBe(expected.waits);
    expect(one.store.serviceJobs.get(job)?.state ?? null).toBe(expected.row);
    expect(one.broker.refused).toEqual([]);
  });
});

it('decides again about a job that waited while the manager was away, and refuses what it would have', async () => {
  const broker = fakeBroker();
  broker.up();
  broker.put(heldAgent('a1', { env: forkEnv }));
  await using one = openManager({ broker });
  await one.watch();
  expect(broker.refused).toEqual([expect.objectContaining({ id: 'a1', signalReason: 'agent_refused' })]);
});

it('ends a job that was cancelled while the manager was away, where its sandbox is at hand', async () => {
  const broker = fakeBroker();
  broker.up();
  broker.put(heldAgent('a1', { env: trustedEnv, phase: 'handed', agent: 'agent1', cancelled: true }));
  await using one = openManager({ broker });
  one.lanes.set('ci/1', [job]);
  await one.watch();
  expect(one.of('cancel')).toEqual([{ kind: 'cancel', job, agent: 'agent1', grace: null }]);
});

it('shows a job that was over before anybody looked as over, without a result', async () => {
  await using one = openManager();
  one.broker.up();
  await one.watch();
  one.broker.put(heldAgent('a1', { env: trustedEnv, phase: 'running', agent: 'agent1' }));
  expect(one.service.serviceJobs().map(({ id }) => id)).toEqual([job]);
  one.broker.down();
  one.broker.lose('a1');
  one.broker.up();
  await one.pass(3_000);
  expect(one.service.serviceJobs()).toEqual([]);
  expect(one.store.serviceJobs.get(job)).toMatchObject({ state: 'done', result: null });
});

describe('while the broker is away', () => {
  it('no job is registered nor settled, and both may be tried again', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    await one.pass(0);
    one.broker.down();
    await one.pass(0);
    const again = { code: 'E_BROKER', retry: true };
    await expect(one.service.register(one.context('agent1', job), patient)).rejects.toMatchObject(again);
    await expect(one.service.settle(one.context('agent1', job), unread, patient)).rejects.toMatchObject(again);
  });

  it('slots may change, and the next broker hears how they are then', async () => {
    await using one = openManager({ pools: [testPool(), testPool({ name: 'gpu' })] });
    one.broker.up();
    one.service.offer('ci/1', 'open');
    one.service.offer('gpu/1', 'open');
    await one.watch();
    one.broker.down();
    one.service.offer('ci/1', 'closed');
    one.service.offer('gpu/1', 'gone');
    await one.pass(100);
    one.broker.up();
    await one.pass(3_000);
    expect(one.broker.offers.at(-1)).toMatchObject({ complete: true, offers: [{ slot: 'ci/1', open: false }] });
  });
});

it('has nothing to settle of a job that the broker has forgotten', async () => {
  await using one = openManager();
  one.broker.up();
  await one.watch();
  await one.service.settle(one.context('agent1', 'job-of-before'), unread, patient);
  expect(one.broker.ended).toEqual([]);
});
