/** A running job that nobody wants any more, and an agent inside that does not ask whether it is: it hangs, or its job stopped it. */
import { describe, expect, it } from 'vitest';
import { say, slotOffer } from './testing.ts';
import { begin } from './testing-begin.ts';

const looks = (seen: readonly string[]) => seen.filter((call) => call === 'GET jobs/job-1').length;

/** One whose job runs, and whose agent does nothing but live. */
async function running() {
  const here = begin();
  const { running: broker, service, pass } = here;
  service.intervals = { ...service.intervals, status: 5 };
  say(broker, [slotOffer]);
  const job = service.add('job-1');
  await pass(1_000);
  const id = broker.book.all()[0]?.shown.id ?? '';
  broker.control.hand(id, { agent: 'a1', trusted: false, secrets: [] });
  broker.book.update(id, { shown: { phase: 'connected' } });
  job.state = 'running';
  broker.book.update(id, { shown: { phase: 'running' }, livesAlone: true });
  await pass(1_000);
  const before = looks(service.seen);
  return {
    ...here,
    job,
    id,
    shown: () => broker.book.get(id)?.shown,
    looks: () => looks(service.seen) - before,
    async lives(ms: number, asks: 'state' | null = null) {
      for (let at = 0; at < ms; at += 5_000) {
        broker.fleet.heard(id, 'life');
        if (asks !== null) broker.fleet.heard(id, asks);
        await pass(5_000);
      }
    },
  };
}

describe('a running job', () => {
  it.each(['canceling', 'canceled', 'timing_out', 'timed_out', 'expired', 'finished'])(
    'that is %s is seen to be, though its agent does not ask',
    async (state) => {
      const { job, lives, shown } = await running();
      job.state = state as typeof job.state;
      await lives(40_000);
      expect(shown()).toMatchObject({ phase: 'running', cancelled: true });
    },
  );

  it('is asked about as often as the service wants it, once its agent has not asked for half a minute', async () => {
    const { lives, looks, shown } = await running();
    await lives(25_000);
    expect(looks()).toBe(0);
    await lives(65_000);
    expect(looks()).toBeGreaterThan(9);
    expect(looks()).toBeLessThan(15);
    expect(shown()).toMatchObject({ phase: 'running', cancelled: false });
  });

  it('is not, as long as its agent asks itself', async () => {
    const { lives, looks } = await running();
    await lives(120_000, 'state');
    expect(looks()).toBe(0);
  });

  it.each([500, 503, 429, 404, 403, 'cut'] as const)('goes on where the service answers %s', async (fault) => {
    const { service, lives, shown, looks } = await running();
    service.fault = ({ path, method }) => (method === 'GET' && path === 'jobs/job-1' ? fault : null);
    await lives(600_000);
    expect(looks()).toBeGreaterThan(10);
    expect(shown()).toMatchObject({ phase: 'running', cancelled: false });
  });

  it('whose token is refused is over, as its agent would take it', async () => {
    const { service, lives, shown } = await running();
    service.fault = ({ path }) => (path === 'jobs/job-1' ? 401 : null);
    await lives(40_000);
    expect(shown()).toMatchObject({ phase: 'running', cancelled: true });
  });

  it('whose result may be known already has time to say it again, but none to go on when it is cancelled', async () => {
    const { service, job, id, running: broker, lives, shown } = await running();
    broker.fleet.heard(id, 'result');
    service.fault = ({ path }) => (path === 'jobs/job-1' ? 401 : null);
    await lives(600_000);
    expect(shown()?.cancelled).toBe(false);
    service.fault = () => null;
    job.state = 'canceling';
    await lives(10_000);
    expect(shown()?.cancelled).toBe(true);
  });

  it('has that time once', async () => {
    const { service, id, running: broker, lives, shown } = await running();
    service.fault = ({ path }) => (path === 'jobs/job-1' ? 401 : null);
    for (let at = 0; at < 16; at += 1) {
      broker.fleet.heard(id, 'result');
      await lives(60_000);
    }
    expect(shown()?.cancelled).toBe(true);
  });

  it('of an agent that has it by itself is looked after likewise', async () => {
    const { running: broker, service, pass } = begin();
    say(broker, []);
    const carry = { agent: 'a9', service: 'bk', slot: 'gpu/9', pool: 'gpu', name: 'n', metaData: [], priority: 0 };
    const { id } = broker.control.carry({ ...carry, acquisition: null, trusted: true, secrets: [] });
    service.add('job-9').state = 'canceling';
    const job = { id: 'job-9', env: {} };
    broker.book.update(id, { shown: { phase: 'running', job }, sealed: { session: 'bkaa_x', jobToken: 'bkaj_job-canary-job-9' } });
    await pass(40_000);
    expect(broker.book.get(id)?.shown.cancelled).toBe(true);
  });
});
