/** Days without trouble: from an offer to the end of a job, seen as the loop and the broker see it. */
import { describe, expect, it } from 'vitest';
import { OnejobError } from '../../errors.ts';
import { heldAgent } from './testing-broker.ts';
import { forkEnv, openManager, patient, testPool, trustedEnv } from './testing-manager.ts';

const job = 'job-a1';

describe('slots', () => {
  it('have an agent of their name, queue, tags and priority, and no other once they are gone', async () => {
    await using one = openManager({ pools: [testPool({ queue: 'gpu', priority: 3 })] });
    one.broker.up();
    one.service.offer('ci/1', 'open');
    one.service.offer('ci/2', 'closed');
    await one.watch();
    const metaData = ['queue=gpu', 'cuda=12', 'cuda=13'];
    const common = { pool: 'ci', service: 'bk', metaData, priority: 3 };
    const first = { ...common, slot: 'ci/1', name: 'box-ci-1', open: true };
    expect(one.broker.offers).toEqual([
      {
        services: [{ name: 'bk', endpoint: 'https://agent.example/v3', token: 'registration-token' }],
        offers: [first, { ...common, slot: 'ci/2', name: 'box-ci-2', open: false }],
        complete: true,
      },
    ]);
    one.service.offer('ci/2', 'gone');
    await one.pass(50);
    expect(one.broker.offers.at(-1)).toMatchObject({ offers: [first], complete: true });
  });

  it('of a pool that left the config have none', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.service.offer('old/1', 'open');
    await one.pass(50);
    expect(one.broker.offers.at(-1)?.offers).toEqual([]);
  });
});

describe('an accepted job', () => {
  it('is for its own slot, once it was decided about, and as long as nothing has it', async () => {
    await using one = openManager({ pools: [testPool({ timeout: 5_000 })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    expect(one.service.next('ci', 'ci/1')).toBeNull();
    await one.pass(0);
    expect(one.of('waiting')).toEqual([{ kind: 'waiting', pool: 'ci', slot: 'ci/1' }]);
    expect(one.service.next('ci', 'ci/1')).toEqual({ job, limit: 5_000, cold: false });
    expect([one.service.next('ci', 'ci/2'), one.service.next('ci', null)]).toEqual([null, null]);
    one.lanes.set('ci/1', [job]);
    expect(one.service.next('ci', 'ci/1')).toBeNull();
  });

  it('is not there before it was accepted, nor once its agent has called in', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    const agent = heldAgent('a1', { env: trustedEnv });
    for (const phase of ['accepting', 'connected', 'running', 'finished', 'ending', 'gone'] as const) {
      one.broker.put({ ...agent, phase });
      await one.pass(0);
      expect([phase, one.service.next('ci', 'ci/1')]).toEqual([phase, null]);
    }
  });

  it('that came first is first', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('b2', { env: trustedEnv, since: 20 }));
    one.broker.put(heldAgent('a1', { env: trustedEnv, since: 10 }));
    await one.pass(0);
    expect(one.service.next('ci', 'ci/1')?.job).toBe('job-a1');
    one.lanes.set('ci/1', ['job-a1']);
    expect(one.service.next('ci', 'ci/1')?.job).toBe('job-b2');
  });

  it('gets a token that is good for one registration, and a script that begins it', async () => {
    await using one = openManager({ pools: [testPool({ hooks: '/srv/hooks', stopGrace: 65_000 })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    await one.pass(0);
    const made = await one.service.register(one.context('agent1', job), patient);
    expect(one.broker.posted('/v1/listen')).toEqual([{ address: '172.18.0.1' }]);
    expect(one.broker.posted('/hand')).toEqual([{ agent: 'agent1', trusted: true, secrets: [] }]);
    expect({ id: made.id, redact: made.redact, files: made.files }).toEqual({ id: 'a1', redact: ['once-agent1'], files: null });
    for (const line of [
      "export BUILDKITE_AGENT_ENDPOINT='http://172.18.0.1:7070/v3'",
      "export BUILDKITE_AGENT_TOKEN='once-agent1'",
      `export BUILDKITE_AGENT_ACQUIRE_JOB='${job}'`,
      "export BUILDKITE_HOOKS_PATH='/onejob/hooks'",
      "export BUILDKITE_PLUGINS_PATH='/workspace/.buildkite/plugins'",
      "export BUILDKITE_CANCEL_GRACE_PERIOD='60'",
    ]) {
      expect(made.script).toContain(line);
    }
    expect(made.script).not.toContain('registration-token');
  });

  it('asks the broker to listen at an address once, and again where another broker may not know it', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    await one.pass(0);
    for (const agent of ['agent1', 'agent2']) await one.service.register(one.context(agent, job), patient);
    expect(one.broker.posted('/v1/listen')).toHaveLength(1);
    one.broker.down();
    one.broker.up({ port: 8080 });
    await one.pass(3_000);
    const { script } = await one.service.register(one.context('agent3', job), patient);
    expect(one.broker.posted('/v1/listen')).toHaveLength(2);
    expect(script).toContain('http://172.18.0.1:8080/v3');
  });

  it('goes to another sandbox when the first has no way to the broker', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    await one.pass(0);
    const door = () => Promise.reject(new OnejobError('E_NO_DOOR', 'There is no gateway.', { retry: true }));
    const first = one.service.register(one.context('agent1', job, { door }), patient);
    await expect(first).rejects.toMatchObject({ code: 'E_NO_DOOR' });
    one.commit({
      change: 'returned',
      job,
      agent: 'agent1',
      failure: { code: 'E_NO_DOOR', message: 'There is no gateway.', retry: true },
    });
    await one.pass(0);
    expect(one.service.next('ci', 'ci/1')?.job).toBe(job);
    const { script } = await one.service.register(one.context('agent2', job), patient);
    expect(script).toContain("'once-agent2'");
  });

  it('is starting from its acceptance until the service knows that it has begun, and the loop is told then', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    const agent = heldAgent('a1', { env: trustedEnv, agent: 'agent1' });
    const said: Record<string, boolean | undefined> = {};
    for (const phase of ['accepting', 'accepted', 'handed', 'connected', 'running', 'finished'] as const) {
      one.events.length = 0;
      one.broker.put({ ...agent, phase });
      said[phase] = one.service.isStarting?.('ci/1');
    }
    expect(said).toEqual({ accepting: false, accepted: true, handed: true, connected: true, running: false, finished: false });
    one.events.length = 0;
    one.broker.put({ ...agent, phase: 'running' });
    expect(one.of('waiting')).toEqual([{ kind: 'waiting', pool: 'ci', slot: 'ci/1' }]);
  });

  it('has nothing left for its agent to do once the service has its result', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    const agent = heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' });
    one.broker.put(agent);
    expect(one.of('jobDone')).toEqual([]);
    one.broker.put({ ...agent, phase: 'finished', finished: { exitStatus: '0', signal: null, signalReason: null } });
    expect(one.of('jobDone')).toEqual([{ kind: 'jobDone', agent: 'agent1' }]);
    expect(one.store.serviceJobs.get(job)).toMatchObject({ state: 'done', result: 'passed', agent: 'agent1' });
  });

  it.each([
    [{ kind: 'disk' }, /^onejob ended this job: pool ci lets the files of a job take 1GiB at most\.$/, 'agent_stop'],
    [{ kind: 'timeout' }, /^onejob ended this job: pool ci lets a job run for 2h at most\.$/, 'agent_stop'],
    [{ kind: 'cancelled' }, /was cancelled/, 'agent_stop'],
    [{ kind: 'oom' }, /lost: its sandbox ran out of memory/, 'process_run_error'],
    [{ kind: 'lost', reason: 'the Engine removed it' }, /lost: the Engine removed it/, 'process_run_error'],
    [{ kind: 'code', code: 3 }, /exit code 3 without a result/, 'process_run_error'],
    [{ kind: 'signal', signal: 'SIGKILL' }, /ended by SIGKILL/, 'process_run_error'],
  ] as const)(
    'that ended as %j is settled with that reason, should the service have no result of it',
    async (result, words, why) => {
      await using one = openManager({ pools: [testPool({ timeout: 7_200_000, disk: 2 ** 30 })] });
      one.broker.up();
      await one.watch();
      one.broker.put(heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' }));
      one.commit({ change: 'ended', job, agent: 'agent1', result });
      await one.service.settle(one.context('agent1', job), { all: never, folder: never }, patient);
      expect(one.broker.ended).toEqual([{ id: 'a1', reason: expect.stringMatching(words), signalReason: why }]);
    },
  );

  it('whose end was not committed did not end so', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv, agent: 'agent1', phase: 'running' }));
    one.service.record({ change: 'ended', job, agent: 'agent1', result: { kind: 'timeout' } });
    one.service.rolledBack();
    one.service.committed();
    await one.service.settle(one.context('agent1', job), { all: never, folder: never }, patient);
    expect(one.broker.ended[0]?.reason).toContain('while onejob was not there');
  });
});

describe('an untrusted job', () => {
  const trust = { ...testPool().trust, forks: 'run-without-secrets' } as const;
  const withCache = {
    ...testPool().recipe,
    mounts: [{ host: '/srv/depot', container: '/depot', readOnly: false, variable: null, cache: null }],
  };

  it('runs in the sandbox that waits where that is what it may have', async () => {
    await using one = openManager({ pools: [testPool({ trust })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: forkEnv }));
    await one.pass(0);
    expect(one.service.next('ci', 'ci/1')).toEqual({ job, limit: null, cold: false });
  });

  it('waits for one of its own where the pool gives more than it may have', async () => {
    await using one = openManager({ pools: [testPool({ trust, recipe: withCache })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: forkEnv }));
    one.broker.put(heldAgent('b1', { env: trustedEnv, slot: 'ci/2' }));
    await one.pass(0);
    expect(one.service.next('ci', 'ci/1')).toEqual({ job, limit: null, cold: true });
    expect(one.service.recipeFor(job, withCache)?.mounts).toEqual([{ ...withCache.mounts[0], readOnly: true }]);
    expect(one.service.next('ci', 'ci/2')).toEqual({ job: 'job-b1', limit: null, cold: false });
    expect(one.service.recipeFor('job-b1', withCache)).toBeNull();
  });

  it('is given no sandbox while nobody knows what it may, neither the pool’s nor another', async () => {
    await using one = openManager({ pools: [testPool({ recipe: withCache })] });
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv, phase: 'running' }));
    for (const unknown of [job, 'job-of-before'])
      expect(() => one.service.recipeFor(unknown, withCache)).toThrow(expect.objectContaining({ code: 'E_JOB_GONE', retry: true }));
  });

  it('that comes into a slot which nothing begins in any more is given back at once, not after the time it may wait', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.service.offer('ci/1', 'gone');
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    one.broker.put(heldAgent('b1', { env: trustedEnv, slot: 'ci/9' }));
    await one.pass(0);
    expect(one.broker.refused.map(({ id, signalReason }) => [id, signalReason])).toEqual([
      ['a1', 'agent_stop'],
      ['b1', 'agent_stop'],
    ]);
  });

  it('that was given back waits for another sandbox as long as for the first one', async () => {
    await using one = openManager();
    one.broker.up();
    await one.watch();
    one.broker.put(heldAgent('a1', { env: trustedEnv }));
    await one.pass(0);
    one.broker.put(heldAgent('a1', { env: trustedEnv, phase: 'handed', agent: 'agent1' }));
    await one.pass(50_000);
    one.commit({ change: 'returned', job, agent: 'agent1', failure: null });
    await one.pass(170_000);
    expect(one.broker.refused).toEqual([]);
    await one.pass(20_000);
    expect(one.broker.refused).toMatchObject([{ id: 'a1', signalReason: 'process_run_error' }]);
  });
});

describe('every sandbox', () => {
  const recipe = testPool().recipe;

  it("has the agent's program and the owner's hooks and plugins, which no job can write", async () => {
    await using one = openManager({ pools: [testPool({ hooks: '/srv/hooks', plugins: '/srv/plugins' })] });
    expect(one.service.equip(recipe, 'ci').mounts.map(({ host, container, readOnly }) => [host, container, readOnly])).toEqual([
      ['/tools/at-1/buildkite-agent', '/onejob/buildkite-agent', true],
      ['/srv/hooks', '/onejob/hooks', true],
      ['/srv/plugins', '/onejob/plugins', true],
    ]);
  });

  it('is as config says where the image brings its own agent', async () => {
    await using one = openManager({ parts: { program: { folder: null, ready: async () => {} } } });
    expect(one.service.equip(recipe, 'ci')).toBe(recipe);
  });
});

function never(): Promise<never> {
  return Promise.reject(new Error('nothing to read'));
}
