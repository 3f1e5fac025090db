/** An agent while its manager or its service is away, or wants it gone. */
import { describe, expect, it } from 'vitest';
import { phasesOf, say, slotOffer } from './testing.ts';
import { begin, endsWithTest, only } from './testing-begin.ts';

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
    const second = endsWithTest(first.start());
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
    const second = endsWithTest(first.start({ manager: false }));
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

  it('that wants to be left alone for an hour is asked after a minute, and is told after half of one that its agent lives', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    await pass(1_500);
    service.fault = () => 429;
    service.retryAfter = 3_600_000;
    const before = service.seen.length;
    await pass(300_000);
    const seen = service.seen.slice(before);
    const count = (call: string) => seen.filter((each) => each === call).length;
    expect([count('GET ping'), count('POST heartbeat')]).toEqual([5, 10]);
    service.fault = () => null;
    service.add('job-1');
    await pass(61_000);
    expect(service.jobs.get('job-1')?.state).toBe('accepted');
  });

  it('that wants to be left alone for an hour is asked about a waiting job after a minute', async () => {
    const { running, service, pass } = begin();
    say(running, [slotOffer]);
    const job = service.add('job-1');
    await pass(1_500);
    service.fault = () => 503;
    service.retryAfter = 3_600_000;
    await pass(5_000);
    service.fault = () => null;
    job.state = 'canceling';
    await pass(61_000);
    expect(job.state).toBe('finished');
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
