import { afterEach, describe, expect, it } from 'vitest';
import { scratch } from '../../../../test/support/scratch.ts';
import { phasesOf, type Running, say, slotOffer, type World, world } from './testing.ts';

const closed = { ...slotOffer, open: false };
const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

function begin(options?: Parameters<World['start']>[0]): World & { readonly running: Running; readonly dir: string } {
  const folder = scratch();
  const made = world(folder.path);
  const running = made.start(options);
  cleanups.push(
    () => folder[Symbol.dispose](),
    () => running.kill().catch(() => {}),
  );
  return { ...made, running, dir: folder.path };
}

const only = <T>(list: Iterable<T>): T => {
  const [first, ...rest] = list;
  if (first === undefined || rest.length > 0) throw new Error(`expected one, got ${rest.length + (first === undefined ? 0 : 1)}`);
  return first;
};

describe('an agent ahead of its slot', () => {
  it('is registered as the real one is, and asks for nothing while the slot is closed', async () => {
    const { running, service, pass } = begin();
    say(running, [closed]);
    await pass(30_000);
    const agent = only(service.agents.values());
    expect(agent.registered).toMatchObject({
      name: 'host-gpu-0',
      meta_data: ['queue=gpu', 'cuda=12', 'cuda=13'],
      priority: '3',
      script_eval_enabled: true,
      ignore_in_dispatches: false,
      features: [],
      version: '3.137.0',
    });
    expect(service.seen).toEqual(['POST register']);
    expect(phasesOf(running)).toEqual(['registered']);
  });

  it('asks at once when the slot opens, then as often as the service wants it', async () => {
    const { running, service, pass, settle } = begin();
    say(running, [closed]);
    await settle();
    say(running, [slotOffer]);
    await settle();
    expect(service.seen).toEqual(['POST register', 'POST connect', 'GET ping']);
    await pass(10_000);
    expect(only(service.agents.values())).toMatchObject({ pings: 11, beats: 2 });
  });

  it('leaves two seconds after its slot has closed, and another is made for the next time', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(3_000);
    say(running, [closed]);
    const pings = service.seen.filter((call) => call === 'GET ping').length;
    await pass(1_750);
    expect(phasesOf(running)).toEqual(['idle']);
    await pass(1_000);
    expect(service.seen.filter((call) => call === 'GET ping')).toHaveLength(pings);
    expect([...service.agents.values()].map(({ state }) => state)).toEqual(['gone', 'registered']);
  });

  it('stays when its slot opens again in time', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(3_000);
    say(running, [closed]);
    await pass(1_500);
    say(running, [slotOffer]);
    await pass(5_000);
    expect(only(service.agents.values()).state).toBe('connected');
  });

  it('is replaced when its name, tags or priority change', async () => {
    const { running, service, pass } = begin();
    say(running, [closed]);
    await pass(500);
    for (const change of [{ name: 'other' }, { metaData: ['queue=other'] }, { priority: 9 }]) {
      say(running, [{ ...closed, ...change }]);
      await pass(4_000);
      const live = only([...service.agents.values()].filter(({ state }) => state !== 'gone'));
      expect(live.registered).toMatchObject({
        name: change.name ?? closed.name,
        meta_data: change.metaData ?? closed.metaData,
        priority: String(change.priority ?? closed.priority),
      });
    }
  });

  it('leaves when its slot is none any more', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(2_000);
    say(running, []);
    await pass(3_000);
    expect(only(service.agents.values()).state).toBe('gone');
    expect(running.book.all()).toEqual([]);
  });
});

describe('a job', () => {
  it('is accepted, shown without its token, and the next agent is made meanwhile', async () => {
    const { running, service, pass, log } = begin();
    say(running, [slotOffer]);
    await pass(500);
    service.add('job-1', { BUILDKITE_BRANCH: 'main' });
    await pass(1_000);
    const { shown, sealed } = only(running.book.all().filter(({ shown: { phase } }) => phase === 'accepted'));
    expect(shown.job).toMatchObject({ id: 'job-1', env: { BUILDKITE_BRANCH: 'main' }, step: { command: 'true' } });
    expect(JSON.stringify(running.book.all().map((each) => each.shown))).not.toContain('canary');
    expect(sealed.jobToken).toBe('bkaj_job-canary-job-1');
    expect(phasesOf(running)).toEqual(['accepted', 'registered']);
    expect(JSON.stringify(log.lines)).not.toContain('canary');
  });

  it('is the only one of its slot, whatever the manager has not yet said', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    service.add('job-2');
    await pass(20_000);
    expect(phasesOf(running)).toEqual(['accepted', 'registered']);
    expect(service.jobs.get('job-2')?.state).toBe('scheduled');
  });

  it('keeps its agent alive until the one inside does it itself', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    await pass(1_000);
    const id = running.book.all()[0]?.shown.id ?? '';
    running.control.hand(id, { agent: 'a1', secrets: [] });
    await pass(20_000);
    const agent = [...service.agents.values()][0];
    expect(agent?.beats).toBe(4);
    running.book.update(id, { shown: { phase: 'connected' } });
    running.book.update(id, { shown: { phase: 'running' } });
    await pass(10_000);
    expect(agent?.beats).toBe(6);
    running.book.update(id, { livesAlone: true });
    await pass(20_000);
    expect(agent?.beats).toBe(6);
  });

  it('that comes as the slot closes is accepted, since the slot will open again', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    service.add('job-1');
    service.fault = ({ path }) => {
      if (path === 'ping') say(running, [closed]);
      return null;
    };
    await pass(5_000);
    expect(service.jobs.get('job-1')?.state).toBe('accepted');
  });

  it('that comes as the slot goes is given back', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    service.add('job-1');
    service.fault = ({ path }) => {
      if (path === 'ping') say(running, []);
      return null;
    };
    await pass(5_000);
    expect(service.jobs.get('job-1')?.state).toBe('scheduled');
    expect(running.book.all()).toEqual([]);
  });

  it('whose accept is refused is forgotten, and the agent asks on', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    service.fault = ({ path }) => {
      if (path !== 'jobs/job-1/accept') return null;
      service.jobs.delete('job-1');
      return 422;
    };
    await pass(3_000);
    expect(phasesOf(running)).toEqual(['idle']);
    service.fault = () => null;
    service.add('job-2');
    await pass(2_000);
    expect(service.jobs.get('job-2')?.state).toBe('accepted');
  });

  it('whose accept was heard but not answered is said again, and ended when the service then refuses', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    let faults = 0;
    service.fault = ({ path }) => {
      if (path !== 'jobs/job-1/accept') return null;
      faults += 1;
      return faults === 1 ? 'cut after' : null;
    };
    await pass(5_000);
    expect(service.jobs.get('job-1')).toMatchObject({
      state: 'finished',
      finish: { exit_status: '-1', signal_reason: 'agent_stop' },
      log: expect.stringContaining('lost its connection'),
    });
    expect([...service.agents.values()][0]?.state).toBe('gone');
  });

  it('is accepted after an outage', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    let isAway = true;
    service.fault = ({ path }) => (isAway && path === 'jobs/job-1/accept' ? 503 : null);
    await pass(60_000);
    isAway = false;
    await pass(31_000);
    expect(service.jobs.get('job-1')?.state).toBe('accepted');
  });

  it('that is cancelled before anything was handed is finished at once', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    const job = service.add('job-1');
    await pass(1_500);
    job.state = 'canceling';
    await pass(1_500);
    expect(job).toMatchObject({ state: 'finished', finish: { exit_status: '-1', signal_reason: 'cancel' } });
    expect([...service.agents.values()].map(({ state }) => state)).toEqual(['gone', 'connected']);
  });

  it('that is cancelled in its sandbox is shown so, and ended by the manager', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    const job = service.add('job-1');
    await pass(1_000);
    const id = running.book.all()[0]?.shown.id ?? '';
    running.control.hand(id, { agent: 'a1', secrets: [] });
    job.state = 'canceling';
    await pass(1_500);
    expect(running.book.get(id)?.shown).toMatchObject({ phase: 'handed', cancelled: true });
    running.control.end(id, { reason: 'stopped', signalReason: 'agent_stop' });
    await pass(1_000);
    expect(job.finish).toMatchObject({ signal_reason: 'cancel' });
  });

  it('that nobody hands to a sandbox is given up after ten minutes', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    const job = service.add('job-1');
    await pass(1_000);
    running.part();
    await pass(590_000);
    expect(job.state).toBe('accepted');
    await pass(20_000);
    expect(job).toMatchObject({ state: 'finished', finish: { exit_status: '-1', signal_reason: 'process_run_error' } });
    expect(job.log).toContain('had no sandbox for this job within 10 minutes');
  });
});

describe('without a manager', () => {
  it('nothing is asked, and idle agents leave after ten seconds', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(2_000);
    running.part();
    const pings = service.seen.filter((call) => call === 'GET ping').length;
    await pass(9_000);
    expect(phasesOf(running)).toEqual(['idle']);
    await pass(2_000);
    expect(running.book.all()).toEqual([]);
    expect(service.seen.filter((call) => call === 'GET ping')).toHaveLength(pings);
    expect(service.seen.filter((call) => call === 'POST heartbeat').length).toBeGreaterThan(0);
  });

  it('a broker that is started anew takes up an idle agent once it hears of its slot', async () => {
    const first = begin();
    say(first.running, [slotOffer]);
    await first.pass(2_000);
    await first.running.kill();
    const second = first.start();
    cleanups.push(() => second.kill());
    await first.pass(5_000);
    say(second, [slotOffer]);
    await first.pass(2_000);
    expect(only(first.service.agents.values())).toMatchObject({ state: 'connected' });
    expect(first.service.seen.filter((call) => call === 'POST register')).toHaveLength(1);
  });

  it('how a job ended is kept until somebody was told', async () => {
    const first = begin();
    say(first.running, [slotOffer]);
    first.service.add('job-1');
    await first.pass(1_000);
    first.running.control.refuse(first.running.book.all()[0]?.shown.id ?? '', { reason: 'no', signalReason: 'agent_refused' });
    first.running.part();
    await first.pass(1_000);
    await first.running.kill();
    const second = first.start({ manager: false });
    cleanups.push(() => second.kill());
    expect(second.book.farewells()).toMatchObject([{ phase: 'gone', job: { id: 'job-1' }, finished: { exitStatus: '-1' } }]);
    second.book.farewellsSaid();
    expect(second.book.farewells()).toEqual([]);
  });
});

describe('a service', () => {
  it('that refuses the token is asked again after 30 s, and at once with another', async () => {
    const { running, service, pass, settle } = begin();
    service.token = 'bkct_another';
    say(running, [slotOffer, { ...slotOffer, slot: 'gpu/1' }]);
    await pass(29_000);
    expect(service.seen.length).toBeLessThanOrEqual(2);
    expect(running.health.at(-1)).toMatchObject({ kind: 'refused' });
    say(running, [slotOffer], 'bkct_another');
    await settle();
    expect(service.seen).toContain('POST connect');
    expect(running.health.at(-1)).toMatchObject({ kind: 'ok', why: null });
  });

  it('that is away is asked less and less, and everything goes on when it is back', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    service.fault = () => 'cut';
    const before = service.seen.length;
    await pass(180_000);
    expect(running.health.at(-1)?.kind).toBe('away');
    expect(service.seen.length - before).toBeLessThan(60);
    service.fault = () => null;
    service.add('job-1');
    await pass(31_000);
    expect(service.jobs.get('job-1')?.state).toBe('accepted');
    expect(running.health.at(-1)?.kind).toBe('ok');
  });

  it('that forgets an agent gets another one, not in a hurry', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    service.kick(only(service.agents.values()));
    await pass(5_000);
    expect([...service.agents.values()].map(({ state }) => state)).toEqual(['gone', 'connected']);
    expect(running.heard.some(({ phase, problem }) => phase === 'gone' && problem !== null)).toBe(true);
  });

  it('that forgets an agent with a job: the manager hears that it is gone', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    service.add('job-1');
    await pass(1_500);
    service.kick(only([...service.agents.values()].slice(0, 1)));
    await pass(6_000);
    expect(running.heard).toContainEqual(expect.objectContaining({ phase: 'gone', problem: expect.any(String) }));
  });

  it('that tells an agent to leave is obeyed, and asked again later and later', async () => {
    const { running, service, pass } = begin();
    service.pingMore = { action: 'disconnect', message: 'stopped by a person' };
    say(running, [slotOffer]);
    await pass(20_000);
    const all = [...service.agents.values()];
    expect(all.length).toBeGreaterThan(2);
    expect(all.length).toBeLessThan(7);
    expect(all.slice(0, -1).every(({ state }) => state === 'gone')).toBe(true);
  });

  it('that pauses an agent gives it no job, and the pause is shown', async () => {
    const { running, service, pass } = begin();
    service.pingMore = { action: 'pause', message: 'by hand' };
    say(running, [slotOffer]);
    await pass(3_000);
    expect(running.book.all()[0]?.shown).toMatchObject({ phase: 'idle', problem: expect.stringContaining('by hand') });
    service.pingMore = {};
    await pass(2_000);
    expect(running.book.all()[0]?.shown.problem).toBeNull();
  });

  it('that names headers gets them from then on', async () => {
    const { running, service, pass } = begin();
    service.pingMore = { request_headers: { 'Buildkite-Shard': '7', Authorization: 'x' } };
    say(running, [slotOffer]);
    await pass(2_000);
    expect(running.book.all()[0]?.requestHeaders).toEqual({ 'Buildkite-Shard': '7' });
  });
});

describe('leaving', () => {
  it('lets idle agents go and takes no job', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    expect(running.control.leave()).toEqual({ unfinished: 0 });
    await pass(1_000);
    expect(running.book.all()).toEqual([]);
    expect(only(service.agents.values()).state).toBe('gone');
  });
});
