/** Agents that wait for their jobs themselves, as the loop and the broker see them. */
import { describe, expect, it } from 'vitest';
import type { BrokerAgent } from './broker/protocol.ts';
import { createEarly } from './early.ts';
import { carriedAgent } from './testing-broker.ts';
import { forkEnv, type Manager, type ManagerOptions, openManager, patient, testPool, trustedEnv } from './testing-manager.ts';

interface Early extends Manager {
  /** Agents that slots have, and for how long their service has not seen them. */
  readonly silent: Map<string, number | null>;
}

function early(options: ManagerOptions = {}): Early {
  const silent = new Map<string, number | null>([['a1', null]]);
  const made = openManager({
    ...options,
    make: (parts) =>
      createEarly({ ...parts, isLive: (agent) => silent.has(agent), silentFor: (agent) => silent.get(agent) ?? null }),
  });
  made.broker.up();
  return Object.assign(made, { silent });
}

const withJob = (phase: BrokerAgent['phase'], env: Readonly<Record<string, string>> = trustedEnv): BrokerAgent =>
  carriedAgent('a1', { phase, env });
const job = 'job-c-a1';

describe('an agent', () => {
  it('is made with a token of its own, and waits for a job, which it ends with', async () => {
    await using one = early();
    await one.watch();
    const made = await one.service.register(one.context('a1', null), patient);
    expect(one.broker.posted('/v1/agents')).toEqual([
      {
        ...{ agent: 'a1', service: 'bk', slot: 'ci/1', pool: 'ci', name: 'box-ci-1', priority: 0 },
        ...{ metaData: ['queue=default', 'cuda=12', 'cuda=13'], acquisition: null, trusted: false, secrets: null },
      },
    ]);
    expect(made).toMatchObject({ id: 'c-a1', redact: ['once-a1'] });
    expect(made.script).toContain("export BUILDKITE_AGENT_DISCONNECT_AFTER_JOB='true'");
    expect(await one.service.register(one.context('a1', null), patient)).toEqual(made);
  });

  it('is online once it has connected, and never before', async () => {
    await using one = early();
    await one.watch();
    for (const phase of ['expected', 'registered'] as const) one.broker.put(carriedAgent('a1', { phase }));
    expect(one.of('online')).toEqual([]);
    one.broker.put(carriedAgent('a1', { phase: 'idle' }));
    expect(one.of('online')).toEqual([{ kind: 'online', agent: 'a1' }]);
  });

  it('is said to be online, and to have its job, until its slot knows', async () => {
    await using one = early();
    await one.watch();
    one.silent.set('a1', 0);
    one.broker.put(withJob('running'));
    one.events.length = 0;
    await one.pass(1_100);
    expect(one.events).toEqual([
      { kind: 'online', agent: 'a1' },
      { kind: 'jobSeen', agent: 'a1', job },
    ]);
    one.silent.set('a1', null);
    one.lanes.set('ci/1', [job]);
    one.events.length = 0;
    await one.pass(3_000);
    expect(one.events).toEqual([]);
  });

  it('that does not come online in time is told of, with what the broker saw; not while the broker is away', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(carriedAgent('a1', { problem: 'The service refused to register it: 401.' }));
    one.silent.set('a1', 61_000);
    await one.pass(30_000);
    expect(one.of('silent')).toEqual([]);
    await one.pass(35_000);
    expect(one.of('silent')[0]?.failure).toMatchObject({ code: 'E_AGENT_SILENT', message: expect.stringContaining('401') });
    one.broker.down();
    await one.pass(5_000);
    one.events.length = 0;
    await one.pass(60_000);
    expect(one.of('silent')).toEqual([]);
  });

  it('that no slot has is taken from the service', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(carriedAgent('stranger', { phase: 'idle' }));
    one.broker.put(carriedAgent('a1', { phase: 'idle' }));
    await one.pass(3_000);
    expect(one.broker.ended.map(({ id }) => id)).toEqual(['c-stranger']);
  });
});

describe('a job', () => {
  it('is the slot’s at once, and may begin once it was decided about', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(withJob('accepted'));
    expect(one.of('jobSeen')).toEqual([{ kind: 'jobSeen', agent: 'a1', job }]);
    await one.pass(50);
    expect(one.broker.posted('/c-a1/hand')).toEqual([{ agent: 'a1', trusted: true, secrets: [] }]);
    one.broker.put(withJob('finished'));
    expect(one.of('jobDone')).toEqual([{ kind: 'jobDone', agent: 'a1' }]);
    expect(one.service.next('ci', 'ci/1')).toBeNull();
  });

  it('that is refused never begins, and its agent is over', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(withJob('accepted', forkEnv));
    await one.pass(50);
    expect(one.broker.posted('/hand')).toEqual([]);
    expect(one.broker.refused).toMatchObject([{ id: 'c-a1', signalReason: 'agent_refused' }]);
    expect(one.of('jobDone')).toEqual([{ kind: 'jobDone', agent: 'a1' }]);
  });

  it('that could not be allowed is allowed again', async () => {
    await using one = early();
    await one.watch();
    one.broker.instead = async (path) => {
      if (path.endsWith('/hand')) throw new Error('not now');
      return {};
    };
    one.broker.put(withJob('accepted'));
    await one.pass(100);
    one.broker.instead = null;
    one.lanes.set('ci/1', [job]);
    await one.pass(2_000);
    expect(one.broker.posted('/hand').length).toBeGreaterThanOrEqual(2);
  });

  it('that nobody allows in time is given up', async () => {
    await using one = early({ pools: [testPool()], parts: { rule: () => new Promise(() => {}) } });
    await one.watch();
    one.broker.put(withJob('accepted'));
    one.lanes.set('ci/1', [job]);
    await one.pass(181_000);
    expect(one.broker.refused).toMatchObject([{ reason: expect.stringContaining('its agent did not begin it within 3 min') }]);
    expect(one.of('cancel')).toMatchObject([{ job, agent: 'a1', grace: 0 }]);
  });

  it('whose agent ended without a result is ended by the broker, with how the agent ended', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(withJob('running'));
    one.commit({ change: 'ended', job, agent: 'a1', result: { kind: 'oom' } });
    const { ask: _, door: __, devices: ___, cuda: ____, ...ended } = one.context('a1', job);
    await one.service.settle(ended, { all: never, folder: never }, patient);
    expect(one.broker.ended).toMatchObject([{ id: 'c-a1', reason: expect.stringContaining('ran out of memory') }]);
  });
});

const never = () => Promise.reject(new Error('nothing to read'));

describe('an agent that is to end', () => {
  it('is retired first, and has the job that came all the same', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(carriedAgent('a1', { phase: 'idle' }));
    expect(await one.service.retire('a1', patient)).toBeNull();
    expect(one.broker.posted('/c-a1/retire')).toHaveLength(1);
    one.broker.put(withJob('accepted'));
    expect(await one.service.retire('a1', patient)).toBe(job);
    one.broker.down();
    await one.pass(50);
    await expect(one.service.retire('a1', patient)).rejects.toMatchObject({ code: 'E_BROKER', retry: true });
  });

  it('is forgotten, and what it ran is said as far as it is known', async () => {
    await using one = early();
    await one.watch();
    one.broker.put(carriedAgent('a1', { phase: 'idle' }));
    expect(await one.service.deregister(one.context('a1', null), patient)).toEqual({ ran: null });
    expect(one.broker.ended.map(({ id }) => id)).toEqual(['c-a1']);
    one.broker.put(withJob('gone'));
    expect(await one.service.deregister(one.context('a1', null), patient)).toEqual({ ran: job });
    one.broker.down();
    await one.pass(50);
    expect(await one.service.deregister(one.context('a2', null), patient)).toEqual({ ran: undefined });
  });

  it('by itself is blamed with what it said', async () => {
    await using one = early();
    const failure = one.service.blame({ kind: 'code', code: 1 }, 'invalid token');
    expect(failure).toEqual({
      code: 'E_AGENT_ENDED',
      message: expect.stringMatching(/exit code 1[\s\S]*invalid token/),
      retry: true,
    });
  });
});
