/** An agent inside that does everything itself, and of which nothing is heard any more. */
import { describe, expect, it } from 'vitest';
import { phasesOf, type Running, say, slotOffer } from './testing.ts';
import { begin, endsWithTest } from './testing-begin.ts';

/** One whose job runs, and that has sent a heartbeat of its own. */
async function runningAlone(phase: 'connected' | 'running' = 'running') {
  const here = begin();
  const { running, service, pass } = here;
  say(running, [slotOffer]);
  const job = service.add('job-1');
  await pass(1_000);
  const id = running.book.all()[0]?.shown.id ?? '';
  running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
  running.book.update(id, { shown: { phase: 'connected' } });
  if (phase === 'running') {
    job.state = 'running';
    running.book.update(id, { shown: { phase } });
  }
  running.book.update(id, { livesAlone: true });
  running.fleet.heard(id, 'life');
  return { ...here, job, id };
}

async function callsIn({ fleet }: Running, id: string, pass: (ms: number) => Promise<void>, minutes: number): Promise<void> {
  for (let at = 0; at < minutes; at += 1) {
    fleet.heard(id, 'life');
    await pass(60_000);
  }
}

describe('an agent that lives alone', () => {
  it.each(['connected', 'running'] as const)(
    '%s and not heard for five minutes, is lost, and its slot takes the next job',
    async (phase) => {
      const { running, service, job, id, pass } = await runningAlone(phase);
      await pass(290_000);
      expect(running.book.get(id)?.shown.phase).toBe(phase);
      service.add('job-2');
      await pass(15_000);
      expect(job).toMatchObject({ state: 'finished', finish: { exit_status: '-1', signal_reason: 'process_run_error' } });
      expect(job.log).toContain('heard for 5 minutes');
      expect(running.book.get(id)).toBeNull();
      expect(service.jobs.get('job-2')?.state).toBe('accepted');
    },
  );

  it('is not, as long as it calls in now and then, whether or not a manager is there', async () => {
    const { running, job, id, pass } = await runningAlone();
    await callsIn(running, id, pass, 10);
    running.part();
    await callsIn(running, id, pass, 10);
    expect(running.book.get(id)?.shown.phase).toBe('running');
    expect(job.state).toBe('running');
  });

  it('is waited for anew by a broker that is started anew', async () => {
    const first = await runningAlone();
    await first.pass(200_000);
    await first.running.kill();
    const second = endsWithTest(first.start());
    await first.pass(290_000);
    expect(phasesOf(second)).toContain('running');
    await first.pass(15_000);
    expect(first.job.state).toBe('finished');
    expect(second.book.get(first.id)).toBeNull();
  });

  it('is heard by a broker that was itself stopped for hours, once that goes on', async () => {
    const { running, job, id, clock, settle, pass } = await runningAlone();
    clock.advance(4 * 3_600_000);
    await settle();
    running.fleet.heard(id, 'life');
    await pass(120_000);
    expect(running.book.get(id)?.shown.phase).toBe('running');
    expect(job.state).toBe('running');
  });

  it('is given three heartbeats where the service wants them seldom', async () => {
    const here = begin();
    here.service.intervals = { ...here.service.intervals, heartbeat: 600 };
    say(here.running, [slotOffer]);
    here.service.add('job-1');
    await here.pass(1_000);
    const id = here.running.book.all()[0]?.shown.id ?? '';
    here.running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
    here.running.book.update(id, { shown: { phase: 'connected' } });
    here.running.book.update(id, { livesAlone: true });
    await here.pass(1_700_000);
    expect(here.running.book.get(id)?.shown.phase).toBe('connected');
    await here.pass(200_000);
    expect(here.running.book.get(id)).toBeNull();
  });

  it('is not lost to an outage of the service that began before its first heartbeat', async () => {
    const here = await runningAlone();
    const { running, service, job, id, pass } = here;
    running.book.update(id, { livesAlone: false });
    service.fault = () => 503;
    await callsIn(running, id, pass, 15);
    expect(running.book.get(id)?.shown.phase).toBe('running');
    service.fault = () => null;
    await callsIn(running, id, pass, 2);
    expect(job.state).toBe('running');
  });

  it('is not lost before its first heartbeat was due, where the service wants them seldom', async () => {
    const here = begin();
    here.service.intervals = { ...here.service.intervals, heartbeat: 900 };
    say(here.running, [slotOffer]);
    const job = here.service.add('job-1');
    await here.pass(1_000);
    const id = here.running.book.all()[0]?.shown.id ?? '';
    here.running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
    here.running.book.update(id, { shown: { phase: 'connected' } });
    job.state = 'running';
    here.running.book.update(id, { shown: { phase: 'running' } });
    await here.pass(890_000);
    expect(job.state).toBe('running');
  });

  it('that never called in is lost, once nobody came to say why', async () => {
    const { running, job, id, pass } = await runningAlone();
    running.book.update(id, { livesAlone: false });
    await pass(830_000);
    expect(job.state).toBe('running');
    await pass(20_000);
    expect(job).toMatchObject({ state: 'finished', finish: { exit_status: '-1', signal_reason: 'process_run_error' } });
    expect(running.book.get(id)).toBeNull();
  });

  it('is lost as well when it has its job by itself, from the broker that carries it', async () => {
    const { running, pass } = begin();
    say(running, [slotOffer]);
    const carry = { agent: 'a9', service: 'bk', slot: 'gpu/9', pool: 'gpu', name: 'n', metaData: [], priority: 0 };
    const { id } = running.control.carry({ ...carry, acquisition: null, trusted: true, secrets: [] });
    const job = { id: 'job-9', env: {} };
    running.book.update(id, { shown: { phase: 'running', job }, sealed: { session: 'bkaa_x', jobToken: 'bkaj_x' } });
    await callsIn(running, id, pass, 10);
    expect(running.book.get(id)?.shown.phase).toBe('running');
    await pass(260_000);
    expect(running.book.get(id)).toBeNull();
    expect(running.heard.findLast(({ id: each }) => each === id)?.phase).toBe('gone');
  });
});
