/** Jobs that are reserved before there is an agent: what the loop and the service see of them, in time moved by hand. */
import { describe, expect, it } from 'vitest';
import { forkEnv, type Manager, openManager, patient, testPool, trustedEnv } from '../../../test/kit/buildkite-manager.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import type { JobResult } from '../../core/slot.ts';

const nothing = () => Promise.reject(new Error('nothing to read'));
const unread = { all: nothing, folder: nothing };

/** The slot takes the job, as the loop would. */
function take(one: Manager, job: string, agent = 'a1', slot = 'ci/1'): void {
  one.lanes.set(slot, [job]);
  one.live.add(agent);
  one.commit({ change: 'assigned', job, agent });
  one.jobs.offer(slot, 'closed');
}

/** Its agent is over, and what it had is settled. */
async function settle(one: Manager, job: string, result: JobResult, agent = 'a1'): Promise<void> {
  one.commit({ change: 'ended', job, agent, result });
  await one.service.settle?.(one.context(agent, job), unread, patient);
  one.lanes.delete('ci/1');
  one.commit({ change: 'settled', job, agent });
  await one.service.deregister(one.context(agent, null), patient);
  await one.pass(0);
}

/** Ready to take a job in `ci/1`. */
async function ready(more: Parameters<typeof openManager>[0] = {}): Promise<Manager> {
  const one = openManager(more);
  one.jobs.offer('ci/1', 'open');
  await one.watch();
  return one;
}

describe('a waiting job', () => {
  it('is reserved for a slot that is free, decided about, and becomes an agent that may register for it alone', async () => {
    await using one = await ready();
    one.stacks.add('job-1', trustedEnv);
    await one.pass(1_500);
    expect(one.of('waiting').at(-1)).toEqual({ kind: 'waiting', pool: 'ci', slot: 'ci/1' });
    expect(one.jobs.next('ci', 'ci/1')).toEqual({ job: 'job-1', limit: null, cold: false });
    expect([one.jobs.next('ci', 'ci/2'), one.jobs.next('ci', null)]).toEqual([null, null]);
    take(one, 'job-1');
    expect(one.jobs.next('ci', 'ci/1')).toBeNull();
    const made = await one.service.register(one.context('a1', 'job-1'), patient);
    expect(made.script).toContain("export BUILDKITE_AGENT_ACQUIRE_JOB='job-1'");
    expect(made.script).toContain("export BUILDKITE_AGENT_TOKEN='bkjat_job-1'");
    expect(made.script).toContain("export BUILDKITE_AGENT_ENDPOINT='https://agent.example/v3'");
    expect(made.script).not.toContain('registration-token');
    expect(one.service.serviceJobs?.()).toMatchObject([{ id: 'job-1', state: 'assigned', definition: 'app' }]);
  });

  it('is not asked for while no slot is free, but now and then, lest the stack be taken for gone', async () => {
    await using one = openManager();
    one.jobs.offer('ci/1', 'closed');
    await one.watch();
    one.stacks.add('job-1', trustedEnv);
    await one.pass(30_000);
    expect(one.stacks.calls.filter((call) => call === 'list').length).toBeLessThanOrEqual(4);
    expect(one.stacks.calls.filter((call) => call.startsWith('reserve'))).toEqual([]);
    expect(one.stacks.jobs.get('job-1')?.notes).toEqual([expect.stringMatching(/box: every slot that fits is busy/)]);
    one.jobs.offer('ci/1', 'open');
    await one.pass(1_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('job-1');
  });

  it('is asked for once a second at most, and no more are reserved than slots are free, the most important first', async () => {
    await using one = openManager();
    for (const slot of ['ci/1', 'ci/2']) one.jobs.offer(slot, 'open');
    for (const [n, priority] of [0, 5, 0, 9].entries()) one.stacks.add(`job-${n}`, trustedEnv, { priority });
    await one.watch();
    await one.pass(1_000);
    expect(one.stacks.calls.filter((call) => call.startsWith('reserve'))).toEqual(['reserve job-3 job-1 120']);
    await one.pass(10_000);
    expect(one.stacks.calls.filter((call) => call === 'list').length).toBeLessThanOrEqual(12);
    expect(['job-0', 'job-2'].map((id) => one.stacks.jobs.get(id)?.state)).toEqual(['scheduled', 'scheduled']);
  });

  it('is taken only by pools whose tags fit, and from no queue that is paused', async () => {
    await using one = openManager({ pools: [testPool(), testPool({ name: 'big', tags: ['gpu=a100'] })] });
    for (const slot of ['ci/1', 'big/1']) one.jobs.offer(slot, 'open');
    one.stacks.add('strange', trustedEnv, { rules: ['queue=default', 'gpu=h100'] });
    one.stacks.add('fits', trustedEnv, { rules: ['queue=default', 'gpu=*'] });
    one.stacks.paused = true;
    await one.watch();
    await one.pass(3_000);
    expect(one.stacks.calls.filter((call) => call.startsWith('reserve'))).toEqual([]);
    one.stacks.paused = false;
    await one.pass(2_000);
    expect([one.jobs.next('ci', 'ci/1'), one.jobs.next('big', 'big/1')?.job]).toEqual([null, 'fits']);
    expect(one.stacks.jobs.get('strange')).toMatchObject({ state: 'scheduled', notes: [] });
  });

  it('that no pool fits is shown once it has waited, unless machines in a cloud fit, and as long as it is certain', async () => {
    const elsewhere = { host: 'burst', pool: 'big' };
    const pools = [testPool(), testPool({ name: 'burst.big', tags: ['gpu=b200'], agents: 0, elsewhere })];
    await using one = openManager({ pools });
    one.jobs.offer('ci/1', 'closed');
    for (const id of ['one', 'two']) one.stacks.add(id, trustedEnv, { rules: ['queue=default', 'gpu=h100'] });
    one.stacks.add('cloud', trustedEnv, { rules: ['queue=default', 'gpu=b200'] });
    one.stacks.add('fits', trustedEnv);
    await one.watch();
    expect(one.service.unfit?.()).toEqual([]);
    await one.pass(300_000);
    expect(one.service.unfit?.()).toEqual([
      {
        jobs: 2,
        how: 'in queue "default" for an agent with gpu=h100, which no pool here has',
        hint: 'Compare "agents" of the step with "queue" and "tags" of the pools. If another host is to run such jobs, nothing is wrong.',
      },
    ]);
    // It costs no call more than before: one every 10 s.
    expect(one.stacks.calls.filter((call) => call === 'list').length).toBeLessThanOrEqual(31);
    one.stacks.jobs.delete('one');
    await one.pass(10_000);
    expect(one.service.unfit?.()).toMatchObject([{ jobs: 1 }]);
    one.stacks.paused = true;
    await one.pass(15_000);
    expect(one.service.unfit?.()).toMatchObject([{ jobs: 1 }]);
    one.stacks.failing = new OnejobError('E_CI_UNREACHABLE', 'away', { retry: true });
    await one.pass(15_000);
    // Nothing is known of them now, so what was known before stays.
    expect(one.service.unfit?.()).toMatchObject([{ jobs: 1 }]);
  });

  it('is counted for a pool of machines in a cloud, without a stack, a note and the agent that only these need', async () => {
    let waiting: number | null = null;
    let asked = () => {};
    const counts = {
      waiting: (queue: string) => (queue === 'default' ? waiting : null),
      unserved: () => new Map<string, number>(),
      async follow(_: AbortSignal, told = () => {}) {
        asked = told;
      },
    };
    const pools = [testPool({ name: 'burst.gpu', agents: 0, elsewhere: { host: 'burst', pool: 'gpu' } })];
    await using one = openManager({ pools, parts: { counts } });
    one.program = new OnejobError('E_AGENT_PACKAGE', 'There is no agent here.');
    one.stacks.add('job-1', trustedEnv);
    await one.watch();
    expect(one.service.waiting?.('burst.gpu')).toBeNull();
    waiting = 1;
    asked();
    expect(one.service.waiting?.('burst.gpu')).toBe(1);
    expect(one.of('waiting')).toEqual([{ kind: 'waiting', pool: 'burst.gpu' }]);
    await one.pass(30_000);
    expect(one.stacks.calls).toEqual([]);
    expect([...one.held]).toEqual([]);
  });

  it('is found on a later page', async () => {
    await using one = openManager();
    one.jobs.offer('ci/1', 'open');
    for (let n = 0; n < 250; n++) one.stacks.add(`strange-${n}`, trustedEnv, { rules: ['gpu=h100'] });
    one.stacks.add('fits', trustedEnv);
    await one.watch();
    await one.pass(1_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('fits');
  });

  it('with secrets waits while the file with the private keys cannot be read', async () => {
    await using one = await ready();
    one.keys = new OnejobError('E_SECRET', 'The key file cannot be read: its file server does not answer.', { retry: true });
    one.stacks.add('job-1', { ...trustedEnv, SECRET_TOKEN: 'sealed' });
    await one.pass(1_500);
    expect(one.jobs.next('ci', 'ci/1')).toBeNull();
    expect(one.stacks.jobs.get('job-1')?.state).not.toBe('finished');
    one.keys = null;
    await one.pass(60_000);
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('job-1');
  });

  it('of a fork is ended with the reason before it gets a slot', async () => {
    await using one = await ready();
    one.stacks.add('job-1', forkEnv);
    await one.pass(1_500);
    expect(one.stacks.jobs.get('job-1')).toMatchObject({
      state: 'finished',
      detail: expect.stringContaining('onejob refused this job'),
    });
    expect(one.of('waiting')).toEqual([]);
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: 'refused' });
  });

  it('that cannot be decided is ended with that reason, and a failed report of an end is repeated', async () => {
    await using one = await ready();
    one.stacks.add('job-1', forkEnv);
    await one.pass(1_050);
    one.stacks.failing = null;
    const finish = one.stacks.finish;
    let tries = 0;
    one.stacks.finish = async (...args) => {
      if (++tries === 1) throw new OnejobError('E_CI_UNREACHABLE', 'not now', { retry: true });
      return finish(...args);
    };
    one.stacks.add('job-2', forkEnv);
    await one.pass(40_000);
    expect([tries, one.stacks.jobs.get('job-2')?.state]).toEqual([2, 'finished']);
  });
});

describe('a reserved job', () => {
  async function reserved(): Promise<Manager> {
    const one = await ready();
    one.stacks.add('job-1', trustedEnv);
    await one.pass(1_500);
    return one;
  }
  const kept = (one: Manager) => one.stacks.calls.filter((call) => call === 'reserve job-1 120').length;

  it('is kept while it waits, goes to another slot when its own closes, and back to its queue when none takes it', async () => {
    await using one = await reserved();
    await one.pass(70_000);
    expect(kept(one)).toBeGreaterThanOrEqual(3);
    one.jobs.offer('ci/2', 'open');
    one.jobs.offer('ci/1', 'closed');
    expect([one.jobs.next('ci', 'ci/1'), one.jobs.next('ci', 'ci/2')?.job]).toEqual([null, 'job-1']);
    one.jobs.offer('ci/2', 'closed');
    await one.pass(200_000);
    expect(one.stacks.calls.at(-1)).not.toBe('reserve job-1 120');
    expect(one.stacks.jobs.get('job-1')?.state).toBe('scheduled');
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: null });
  });

  it('whose answer got lost is found again at once, and so is one that another host was given', async () => {
    await using one = await ready();
    one.jobs.offer('ci/2', 'open');
    for (const id of ['job-1', 'job-2']) one.stacks.add(id, trustedEnv);
    one.stacks.losesAnswer = true;
    await one.pass(1_000);
    expect(one.stacks.losesAnswer).toBe(false);
    Object.assign(one.stacks.jobs.get('job-2') ?? {}, { state: 'running' });
    await one.pass(5_000);
    expect(['ci/1', 'ci/2'].map((slot) => one.jobs.next('ci', slot)?.job)).toEqual(['job-1', undefined]);
    expect(one.store.serviceJobs.get('job-2')).toMatchObject({ state: 'done', result: null });
  });

  it('whose slot is gone goes back at once', async () => {
    await using one = await reserved();
    one.jobs.offer('ci/1', 'gone');
    await one.pass(50);
    expect(one.stacks.jobs.get('job-1')?.state).toBe('scheduled');
  });

  it('that is cancelled meanwhile is forgotten, and its sandbox ended', async () => {
    await using one = await reserved();
    take(one, 'job-1');
    Object.assign(one.stacks.jobs.get('job-1') ?? {}, { state: 'canceled' });
    await one.pass(35_000);
    expect(one.of('cancel')).toEqual([{ kind: 'cancel', job: 'job-1', agent: 'a1', grace: null }]);
    await expect(one.service.register(one.context('a1', 'job-1'), patient)).rejects.toMatchObject({ code: 'E_JOB_GONE' });
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: 'cancelled' });
  });

  it('whose sandbox could not be made is tried again, and ended after three times', async () => {
    await using one = await reserved();
    const failure = { code: 'E_IMAGE', message: 'no such image', retry: true };
    for (let n = 0; n < 3; n++) {
      expect(one.jobs.next('ci', 'ci/1')?.job).toBe('job-1');
      take(one, 'job-1');
      one.lanes.delete('ci/1');
      one.commit({ change: 'returned', job: 'job-1', agent: 'a1', failure });
      await one.pass(0);
    }
    expect(one.jobs.next('ci', 'ci/1')).toBeNull();
    expect(one.stacks.jobs.get('job-1')).toMatchObject({ state: 'finished', detail: expect.stringContaining('no such image') });
  });

  it.each(['E_ENGINE_UNREACHABLE', 'E_CI_UNREACHABLE', 'E_CI_CREDENTIAL'])(
    'that could not be begun for a reason that is not its own (%s) is tried again as long as that lasts',
    async (code) => {
      await using one = await reserved();
      for (let n = 0; n < 5; n++) {
        expect(one.jobs.next('ci', 'ci/1')?.job).toBe('job-1');
        take(one, 'job-1');
        one.lanes.delete('ci/1');
        const failure = { code, message: 'away', retry: code !== 'E_CI_CREDENTIAL' } as const;
        one.commit({ change: 'returned', job: 'job-1', agent: 'a1', failure });
        await one.pass(0);
      }
      expect(one.stacks.jobs.get('job-1')).toMatchObject({ state: 'reserved', detail: null });
    },
  );

  it('that its agent has is not kept any more, and is over when the service says so', async () => {
    await using one = await reserved();
    take(one, 'job-1');
    await one.service.register(one.context('a1', 'job-1'), patient);
    Object.assign(one.stacks.jobs.get('job-1') ?? {}, { state: 'running' });
    await one.pass(2_000);
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'running', agent: 'a1' });
    const before = kept(one);
    await one.pass(60_000);
    expect(kept(one)).toBe(before);
    Object.assign(one.stacks.jobs.get('job-1') ?? {}, { state: 'finished' });
    await one.pass(6_000);
    expect(one.of('jobDone')).toEqual([{ kind: 'jobDone', agent: 'a1' }]);
    await settle(one, 'job-1', { kind: 'code', code: 3 });
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: 'failed (exit 3)' });
    expect(one.stacks.calls.filter((call) => call.startsWith('finish'))).toEqual([]);
    expect(one.stacks.jobs.get('job-1')?.notes).toEqual([]);
  });

  it.each<[string, JobResult, string]>([
    ['the service did not let it', { kind: 'code', code: 27 }, 'did not allow its agent to acquire it'],
    ['it ended with an error', { kind: 'code', code: 1 }, 'exit code 1'],
    ['it was killed', { kind: 'signal', signal: 'SIGKILL' }, 'SIGKILL'],
  ])('that its agent does not get since %s is tried again, and then ended with that', async (_, result, why) => {
    await using one = await reserved();
    for (const agent of ['a1', 'a2', 'a3']) {
      expect(one.jobs.next('ci', 'ci/1')?.job, agent).toBe('job-1');
      take(one, 'job-1', agent);
      await one.service.register(one.context(agent, 'job-1'), patient);
      await settle(one, 'job-1', result, agent);
      one.live.delete(agent);
    }
    expect(one.stacks.jobs.get('job-1')).toMatchObject({ state: 'finished', detail: expect.stringContaining(why) });
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: 'failed' });
  });

  it('over before onejob asked about it has its agent, and began when its script did', async () => {
    await using one = await reserved();
    take(one, 'job-1');
    await one.service.register(one.context('a1', 'job-1'), patient);
    const began = one.clock.wall();
    one.commit({ change: 'started', job: 'job-1', agent: 'a1' });
    await one.pass(500);
    Object.assign(one.stacks.jobs.get('job-1') ?? {}, { state: 'finished' });
    await settle(one, 'job-1', { kind: 'code', code: 0 });
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({
      state: 'done',
      result: 'passed',
      agent: 'a1',
      startedAt: began,
      endedAt: began + 500,
    });
  });

  it('whose agent was lost with its host, or stopped, goes to others', async () => {
    await using one = await reserved();
    take(one, 'job-1');
    await one.service.register(one.context('a1', 'job-1'), patient);
    await settle(one, 'job-1', { kind: 'lost', reason: 'onejob was stopped while the job ran' });
    expect(one.stacks.jobs.get('job-1')).toMatchObject({ state: 'scheduled', detail: null });
  });

  it('whose agent never acquires it is given to another one, with the reason', async () => {
    await using one = await reserved();
    take(one, 'job-1');
    await one.service.register(one.context('a1', 'job-1'), patient);
    await one.pass(66_000);
    expect(one.of('cancel').at(0)).toEqual({ kind: 'cancel', job: 'job-1', agent: 'a1', grace: 0 });
    await settle(one, 'job-1', { kind: 'cancelled' });
    expect(one.jobs.next('ci', 'ci/1')?.job).toBe('job-1');
    expect(one.log.lines.filter(({ event }) => event === 'job not acquired')).toMatchObject([
      { fields: { reason: expect.stringContaining('did not acquire it within 60 s') } },
    ]);
  });
});

describe('a manager', () => {
  it('resumes what an earlier manager had reserved, and knows what is over', async () => {
    using dir = scratch();
    const before = await ready({ dir });
    before.stacks.add('waits', trustedEnv);
    await before.pass(1_500);
    before.stacks.add('ended', trustedEnv);
    before.jobs.offer('ci/2', 'open');
    await before.pass(1_500);
    before.stop();
    before.store.close();
    Object.assign(before.stacks.jobs.get('ended') ?? {}, { state: 'canceled' });
    await using after = await ready({ dir, stacks: before.stacks });
    await after.pass(1_000);
    expect(after.jobs.next('ci', 'ci/1')?.job).toBe('waits');
    expect(after.store.serviceJobs.get('ended')).toMatchObject({ state: 'done', result: 'cancelled' });
  });

  it('shows what an earlier manager had reserved as it was, until the service says what has become of it', async () => {
    using dir = scratch();
    const before = await ready({ dir });
    before.stacks.add('job-1', trustedEnv);
    await before.pass(1_500);
    before.stop();
    before.store.close();
    before.stacks.failing = new OnejobError('E_CI_UNREACHABLE', 'away', { retry: true });
    await using after = await ready({ dir, stacks: before.stacks });
    expect(after.service.serviceJobs?.()).toMatchObject([{ id: 'job-1', state: 'assigned' }]);
    Object.assign(before.stacks.jobs.get('job-1') ?? {}, { state: 'canceled' });
    before.stacks.failing = null;
    await after.pass(3_000);
    expect(after.service.serviceJobs?.()).toEqual([]);
  });

  it('gives up an agent that never calls, also one that an earlier manager had released', async () => {
    using dir = scratch();
    const before = await ready({ dir });
    before.stacks.add('job-1', trustedEnv);
    await before.pass(1_500);
    take(before, 'job-1');
    await before.service.register(before.context('a1', 'job-1'), patient);
    before.stop();
    before.store.close();
    await using after = openManager({ dir, stacks: before.stacks });
    after.lanes.set('ci/1', ['job-1']);
    after.live.add('a1');
    after.jobs.offer('ci/1', 'closed');
    await after.watch();
    await after.pass(66_000);
    expect(after.of('cancel').at(0)).toEqual({ kind: 'cancel', job: 'job-1', agent: 'a1', grace: 0 });
  });

  it("gives back what an earlier manager's agent never got, because nobody knows how often it was tried", async () => {
    using dir = scratch();
    const before = await ready({ dir });
    before.stacks.add('job-1', trustedEnv);
    await before.pass(1_500);
    take(before, 'job-1');
    before.stop();
    before.store.close();
    await using after = openManager({ dir, stacks: before.stacks });
    await after.watch();
    await settle(after, 'job-1', { kind: 'lost', reason: 'its agent ended while onejob was not running' });
    expect(after.stacks.jobs.get('job-1')).toMatchObject({ detail: null });
    await after.pass(2_000);
    expect(after.stacks.jobs.get('job-1')?.state).toBe('scheduled');
    expect(after.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: null });
  });

  it('asks nobody about a job whose stack and pool are gone', async () => {
    const denied = new OnejobError('E_CI_DENIED', 'Cannot query the state of jobs: answered 404.');
    await using one = await ready();
    one.stacks.add('job-1', trustedEnv);
    await one.pass(1_500);
    take(one, 'job-1');
    one.stacks.failing = denied;
    await expect(settle(one, 'job-1', { kind: 'code', code: 0 })).rejects.toBe(denied);
    const about = { ...one.context('a1', 'job-1'), pool: 'old', slot: 'old/1' };
    await one.service.settle?.(about, unread, patient);
    expect(one.store.serviceJobs.get('job-1')?.state).toBe('done');
  });

  it('removes its stacks when it ends, and leaves them when its agents keep running', async () => {
    await using one = await ready();
    await one.pass(100);
    expect(one.stacks.known.size).toBe(1);
    expect([...one.stacks.known][0]).toMatch(/^onejob-[0-9a-f]{8}-box-bk-[0-9a-f]{8}$/);
    await one.service.close?.(true);
    expect(one.stacks.known.size).toBe(1);
    await using other = await ready();
    await other.pass(100);
    await other.service.close?.(false);
    expect([other.stacks.known.size, other.store.registrations.open('bk')]).toEqual([0, []]);
  });

  it('says why its stack is refused, does not spin, and continues once it is accepted', async () => {
    await using one = openManager();
    one.jobs.offer('ci/1', 'open');
    one.stacks.failing = new OnejobError('E_CI_DENIED', 'Cannot register the stack: answered 403.');
    await one.watch();
    await one.pass(59_000);
    expect(one.held.get('ci')).toMatch(/403/);
    expect(one.stacks.calls).toEqual(['register default']);
    expect(await one.service.check(patient, { like: () => null })).toMatchObject([
      { level: 'error', message: expect.stringContaining('403') },
    ]);
    one.stacks.failing = null;
    await one.pass(5_000);
    expect(one.held.has('ci')).toBe(false);
  });

  it('registers its stack again when the service has lost it', async () => {
    await using one = await ready();
    await one.pass(500);
    one.stacks.known.clear();
    await one.pass(62_000);
    expect(one.stacks.known.size).toBe(1);
  });

  it('asks about running jobs all the same when the service refuses one of its other calls', async () => {
    await using one = await ready();
    one.stacks.add('job-1', trustedEnv);
    await one.pass(1_500);
    take(one, 'job-1');
    await one.service.register(one.context('a1', 'job-1'), patient);
    one.stacks.refusesLists = true;
    await one.pass(12_000);
    one.stacks.refusesLists = false;
    const lists = one.stacks.calls.filter((call) => call === 'list').length;
    const states = one.stacks.calls.filter((call) => call === 'states job-1').length;
    await one.pass(20_000);
    expect(one.stacks.calls.filter((call) => call === 'list')).toHaveLength(lists);
    expect(one.stacks.calls.filter((call) => call === 'states job-1').length).toBeGreaterThan(states);
  });

  it('waits longer each time that the list cannot be had, and says so the second time', async () => {
    await using one = await ready();
    await one.pass(1_500);
    const before = one.stacks.calls.length;
    one.stacks.failing = new OnejobError('E_CI_UNREACHABLE', 'Cannot list: 503.', { retry: true });
    await one.pass(31_000);
    expect(one.stacks.calls.length - before).toBeLessThanOrEqual(6);
    expect(one.held.get('ci')).toContain('503');
  });
});

describe('an untrusted job', () => {
  const pool = testPool({ trust: { ...testPool().trust, forks: 'run-without-secrets' } });

  it('has a sealed token for the filter, and neither the token of its job nor the service’s address', async () => {
    await using one = await ready({ pools: [pool] });
    one.stacks.add('job-1', forkEnv);
    await one.pass(1_500);
    take(one, 'job-1');
    const made = await one.service.register(one.context('a1', 'job-1'), patient);
    expect(made.script).toContain("export BUILDKITE_AGENT_ENDPOINT='http://172.18.0.1:7070/v3'");
    expect(made.script).toMatch(/BUILDKITE_AGENT_TOKEN='ojf_[\w-]+'/);
    expect(made.script).not.toMatch(/bkjat_|agent\.example/);
  });

  it.each([
    ['the image of its pool: it waits', null, undefined],
    ['an image that its pool names, too: it waits', 'debian', undefined],
    ['an image for untrusted jobs: it starts before others', 'plain:1', 'fork'],
  ])('with %s, where a slot can take only jobs with their own image', async (_, image, found) => {
    await using one = await ready({ pools: [{ ...pool, trust: { ...pool.trust, image }, agents: 2 }] });
    one.jobs.offer('ci/2', 'open');
    one.stacks.add('trusted', trustedEnv, { priority: 1 });
    one.stacks.add('fork', forkEnv);
    await one.pass(1_500);
    const next = (only?: 'ownImage') => ['ci/1', 'ci/2'].map((slot) => one.jobs.next('ci', slot, only)?.job);
    expect(next()).toEqual(['trusted', 'fork']);
    expect(next('ownImage')).toEqual([undefined, found]);
  });

  it('waits where there is no filter', async () => {
    await using one = await ready({ pools: [pool], parts: { filter: null } });
    one.stacks.add('job-1', forkEnv);
    await one.pass(1_500);
    take(one, 'job-1');
    await expect(one.service.register(one.context('a1', 'job-1'), patient)).rejects.toMatchObject({ retry: true });
  });
});

describe('a job that runs', () => {
  async function running(): Promise<Manager> {
    const one = await ready();
    one.stacks.add('job-1', trustedEnv);
    await one.pass(1_500);
    take(one, 'job-1');
    await one.service.register(one.context('a1', 'job-1'), patient);
    Object.assign(one.stacks.jobs.get('job-1') ?? {}, { state: 'running' });
    await one.pass(2_000);
    return one;
  }

  it('says on its page why onejob ends it', async () => {
    await using one = await running();
    await one.service.ending?.({ agent: 'a1', job: 'job-1', why: 'timeout', released: true }, patient);
    expect(one.stacks.jobs.get('job-1')?.notes).toEqual([expect.stringContaining('took longer than its pool allowed')]);
  });

  it('whose agent is gone without a word says so on its page, and is lost for onejob', async () => {
    await using one = await running();
    await settle(one, 'job-1', { kind: 'oom' });
    expect(one.stacks.jobs.get('job-1')?.notes).toEqual(['This job was lost: its sandbox ran out of memory.']);
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result: 'lost' });
  });

  it('that is cancelled is ended with its sandbox when its agent does not end it', async () => {
    await using one = await running();
    Object.assign(one.stacks.jobs.get('job-1') ?? {}, { state: 'canceling' });
    await one.pass(60_000);
    expect(one.of('cancel')).toEqual([]);
    await one.pass(20_000);
    expect(one.of('cancel')).toEqual([{ kind: 'cancel', job: 'job-1', agent: 'a1', grace: 0 }]);
  });

  it('of a manager before this one is followed to its end', async () => {
    using dir = scratch();
    const before = await ready({ dir });
    before.stacks.add('job-1', trustedEnv);
    await before.pass(1_500);
    take(before, 'job-1');
    await before.service.register(before.context('a1', 'job-1'), patient);
    before.stop();
    before.store.close();
    Object.assign(before.stacks.jobs.get('job-1') ?? {}, { state: 'running' });
    await using after = openManager({ dir, stacks: before.stacks });
    after.lanes.set('ci/1', ['job-1']);
    after.live.add('a1');
    after.jobs.offer('ci/1', 'closed');
    await after.watch();
    await after.pass(3_000);
    expect(after.store.serviceJobs.get('job-1')).toMatchObject({ state: 'running', agent: 'a1' });
    Object.assign(after.stacks.jobs.get('job-1') ?? {}, { state: 'finished' });
    await after.pass(6_000);
    expect(after.of('jobDone')).toEqual([{ kind: 'jobDone', agent: 'a1' }]);
  });
});
