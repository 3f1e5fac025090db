import { describe, expect, it } from 'vitest';
import { phasesOf, say, slotOffer } from './testing.ts';
import { begin, only } from './testing-begin.ts';

const closed = { ...slotOffer, open: false };

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
    running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
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

  it('that comes as the slot closes is given back, and the slot has another agent for when it opens', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    const job = service.add('job-1');
    service.fault = ({ path }) => {
      if (path === 'ping') say(running, [closed]);
      return null;
    };
    await pass(5_000);
    expect(job.state).toBe('scheduled');
    expect([...service.agents.values()].map(({ state }) => state)).toEqual(['gone', 'registered']);
    service.fault = () => null;
    say(running, [slotOffer]);
    await pass(1_000);
    expect(job.state).toBe('accepted');
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

  it('whose accept is refused is forgotten, and another agent asks on', async () => {
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
    expect([...service.agents.values()].map(({ state }) => state)).toEqual(['gone', 'connected']);
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
    running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
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
