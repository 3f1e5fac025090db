import { afterEach, describe, expect, it } from 'vitest';
import { scratch } from '../../../../test/support/scratch.ts';
import { type Running, say, slotOffer, type World, world } from './testing.ts';

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

async function withJob(): Promise<World & { readonly running: Running; readonly id: string }> {
  const folder = scratch();
  const made = world(folder.path);
  const running = made.start();
  cleanups.push(
    () => folder[Symbol.dispose](),
    () => running.kill(),
  );
  made.service.add('job-1');
  say(running, [slotOffer]);
  await made.pass(1_000);
  return { ...made, running, id: running.book.all()[0]?.shown.id ?? '' };
}

const carry = {
  ...{ agent: 'a9', service: 'bk', slot: 'gpu/9', pool: 'gpu', name: 'host-gpu-9', metaData: ['queue=gpu'], priority: 0 },
  acquisition: null,
  trusted: true,
  secrets: null,
};

describe('hand', () => {
  it('gives one sandbox the same token each time, and another one another until an agent has called in', async () => {
    const { running, id } = await withJob();
    const { control, book } = running;
    const first = control.hand(id, { agent: 'a1', trusted: true, secrets: [{ name: 'A', value: '1' }] });
    expect(control.hand(id, { agent: 'a1', trusted: true, secrets: [] })).toEqual(first);
    expect(book.get(id)?.sealed.secrets).toEqual([{ name: 'A', value: '1' }]);
    const second = control.hand(id, { agent: 'a2', trusted: true, secrets: [] });
    expect(second.token).not.toBe(first.token);
    book.update(id, { shown: { phase: 'connected' } });
    expect(control.hand(id, { agent: 'a2', trusted: true, secrets: [] })).toEqual(second);
    expect(() => control.hand(id, { agent: 'a3', trusted: true, secrets: [] })).toThrow(/connected/);
  });

  it('is refused where there is no job, or it is over', async () => {
    const { running, id } = await withJob();
    const { control, book } = running;
    const ahead = book.all().find(({ shown }) => shown.phase === 'registered')?.shown.id ?? '';
    expect(() => control.hand(ahead, { agent: 'a1', trusted: true, secrets: [] })).toThrow(
      expect.objectContaining({ code: 'E_API_REQUEST' }),
    );
    control.refuse(id, { reason: 'no', signalReason: 'agent_refused' });
    expect(() => control.hand(id, { agent: 'a1', trusted: true, secrets: [] })).toThrow(
      expect.objectContaining({ code: 'E_AGENT_UNKNOWN' }),
    );
  });
});

describe('explain', () => {
  it('is kept while the job may still end, and means nothing afterwards', async () => {
    const { running, id } = await withJob();
    const { control, book } = running;
    book.update(id, { shown: { phase: 'running' } });
    control.explain(id, { reason: 'It took too long.' });
    expect(book.get(id)?.why).toBe('It took too long.');
    book.update(id, { shown: { phase: 'finished' }, why: null });
    control.explain(id, { reason: 'It took too long.' });
    expect(book.get(id)?.why).toBeNull();
    control.explain('nobody', { reason: 'It took too long.' });
  });

  it('is what the service hears of a job whose sandbox had to be killed for it, whoever says that it is gone', async () => {
    const { running, service, id, pass } = await withJob();
    Object.assign(service.jobs.get('job-1') ?? {}, { state: 'running' });
    running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
    running.book.update(id, { shown: { phase: 'running' }, livesAlone: true });
    running.control.explain(id, { reason: 'It took too long.' });
    running.control.end(id, { reason: 'This job was lost.', signalReason: 'process_run_error' });
    await pass(1_000);
    expect(service.jobs.get('job-1')).toMatchObject({ log: 'It took too long.\r\n', finish: { signal_reason: 'agent_stop' } });
  });
});

describe('refuse', () => {
  it('shows the reason in the log of a job that never ran, once', async () => {
    const { running, service, id, pass } = await withJob();
    const refusal = { reason: 'Forks are refused here.\nSee pools.gpu.trust.', signalReason: 'agent_refused' } as const;
    running.control.refuse(id, refusal);
    running.control.refuse(id, refusal);
    await pass(1_000);
    running.control.refuse(id, refusal);
    expect(service.jobs.get('job-1')).toMatchObject({
      state: 'finished',
      starts: 1,
      log: 'Forks are refused here.\r\nSee pools.gpu.trust.\r\n',
      finish: { exit_status: '-1', signal_reason: 'agent_refused', chunks_failed_count: 0, ignore_agent_in_dispatches: true },
    });
    expect(service.seen.filter((call) => call === 'POST disconnect')).toHaveLength(1);
  });

  it('is kept at through an outage', async () => {
    const { running, service, id, pass } = await withJob();
    service.fault = ({ path }) => (path.startsWith('jobs/') ? 500 : null);
    running.control.refuse(id, { reason: 'no', signalReason: 'agent_refused' });
    await pass(120_000);
    expect(service.jobs.get('job-1')?.state).toBe('accepted');
    service.fault = () => null;
    await pass(31_000);
    expect(service.jobs.get('job-1')?.state).toBe('finished');
  });

  it('is given up after an hour', async () => {
    const { running, service, id, pass, log } = await withJob();
    service.fault = ({ path }) => (path.startsWith('jobs/') ? 500 : null);
    running.control.refuse(id, { reason: 'no', signalReason: 'agent_refused' });
    await pass(3_640_000);
    expect(running.book.get(id)).toBeNull();
    expect(log.lines).toContainEqual(expect.objectContaining({ level: 'error', event: 'service not told' }));
  });
});

describe('end', () => {
  it('adds to the log where the agent inside left it', async () => {
    const { running, service, id, pass } = await withJob();
    const { control, book } = running;
    control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
    const job = service.jobs.get('job-1');
    Object.assign(job ?? {}, { state: 'running', log: 'half a li' });
    book.update(id, { shown: { phase: 'running' }, log: { sequence: 4, offset: 9 }, livesAlone: true });
    control.end(id, { reason: 'The sandbox ran out of memory.', signalReason: 'process_run_error' });
    await pass(1_000);
    expect(job).toMatchObject({ starts: 0, state: 'finished', log: 'half a li\r\nThe sandbox ran out of memory.\r\n' });
  });

  it('believes the result that was under way when the service wants no other', async () => {
    const { running, service, id, pass } = await withJob();
    const { control, book } = running;
    control.hand(id, { agent: 'a1', trusted: true, secrets: [] });
    const finishing = { exitStatus: '0', signal: null, signalReason: null };
    Object.assign(service.jobs.get('job-1') ?? {}, { state: 'finished', finish: { exit_status: '0' } });
    book.update(id, { shown: { phase: 'running' }, livesAlone: true, finishing });
    control.end(id, { reason: 'The sandbox is gone.', signalReason: 'process_run_error' });
    await pass(1_000);
    expect(service.jobs.get('job-1')?.finish).toEqual({ exit_status: '0' });
    expect(running.heard.findLast(({ id: each }) => each === id)).toMatchObject({ phase: 'gone', finished: finishing });
  });

  it('only says farewell for a job that has its result', async () => {
    const { running, service, id, pass } = await withJob();
    const finished = { exitStatus: '0', signal: null, signalReason: null };
    running.book.update(id, { shown: { phase: 'finished', finished } });
    service.seen.length = 0;
    running.control.end(id, { reason: '', signalReason: 'agent_stop' });
    await pass(500);
    expect(service.seen.filter((call) => call.includes('jobs/'))).toEqual([]);
    expect(running.heard.findLast(({ id: each }) => each === id)).toMatchObject({ phase: 'gone', finished });
  });

  it('of one that is over is nothing', async () => {
    const { running } = await withJob();
    expect(() => running.control.end('none', { reason: '', signalReason: 'agent_stop' })).not.toThrow();
  });
});

describe('carry', () => {
  it('expects one agent per sandbox, and says the same twice', async () => {
    const { running } = await withJob();
    const first = running.control.carry(carry);
    expect(first).toMatchObject({ job: null, token: expect.stringMatching(/^ojt_/) });
    expect(running.control.carry(carry)).toEqual(first);
    expect(running.book.get(first.id)).toMatchObject({
      shown: { kind: 'carried', phase: 'expected', agent: 'a9' },
      allowed: false,
      endpoint: 'http://service',
    });
  });

  it('lets its job go on once it is decided, or not at all', async () => {
    const { running, pass } = await withJob();
    const { id, token } = running.control.carry(carry);
    const job = { id: 'job-9', env: {} };
    running.book.update(id, { shown: { phase: 'accepted', job }, sealed: { session: 'bkaa_x', jobToken: 'bkaj_x' } });
    expect(running.control.hand(id, { agent: 'a9', trusted: true, secrets: [{ name: 'A', value: '1' }] })).toMatchObject({
      token,
      job: 'job-9',
    });
    expect(running.book.get(id)).toMatchObject({ allowed: true, shown: { phase: 'accepted' } });
    expect(() => running.control.hand(id, { agent: 'a1', trusted: true, secrets: [] })).toThrow(/a9/);
    running.control.end(id, { reason: '', signalReason: 'agent_stop' });
    await pass(1_000);
    expect(running.book.get(id)).toBeNull();
  });

  it('is over at once when nothing has called in', async () => {
    const { running } = await withJob();
    const { id } = running.control.carry(carry);
    running.control.end(id, { reason: '', signalReason: 'agent_stop' });
    expect(running.book.get(id)).toBeNull();
  });

  it('is refused for a service that nobody named, and while leaving', async () => {
    const { running } = await withJob();
    expect(() => running.control.carry({ ...carry, service: 'other' })).toThrow(expect.objectContaining({ code: 'E_API_REQUEST' }));
    expect(running.control.leave()).toEqual({ unfinished: 1 });
    expect(() => running.control.carry(carry)).toThrow(expect.objectContaining({ code: 'E_DAEMON_STOPPING', retry: true }));
  });
});

describe('retire', () => {
  async function carried() {
    const made = await withJob();
    const { id } = made.running.control.carry(carry);
    return { ...made, id, control: made.running.control, book: made.running.book };
  }

  it('answers the job that has come, once that is sure, and none for an agent that is over or never was', async () => {
    const { control, book, id } = await carried();
    expect(control.retire(id)).toEqual({ job: null });
    expect(book.get(id)?.retired).toBe(true);
    book.update(id, { shown: { phase: 'accepting', job: { id: 'job-9', env: {} } }, sealed: { session: 's' } });
    expect(() => control.retire(id)).toThrow(expect.objectContaining({ retry: true }));
    book.update(id, { shown: { phase: 'accepted' } });
    expect(control.retire(id)).toEqual({ job: 'job-9' });
    expect(control.retire('0000')).toEqual({ job: null });
  });

  it('is not for agents that are the broker itself', async () => {
    const { running, id } = await withJob();
    expect(() => running.control.retire(id)).toThrow(expect.objectContaining({ code: 'E_API_REQUEST', retry: false }));
  });

  it('is not needed for one whose sandbox is gone: it is ended while its job is asked for, too', async () => {
    const { control, book, id } = await carried();
    book.update(id, { shown: { phase: 'accepting', job: { id: 'job-9', env: {} } }, sealed: { session: 's' } });
    control.end(id, { reason: 'gone', signalReason: 'process_run_error' });
    expect(book.get(id)?.shown.phase).toBe('ending');
  });

  it('is not waited for by a broker that is to end: who is idle is told to leave, and nobody is expected', async () => {
    const { control, book, id, pass } = await carried();
    const idle = control.carry({ ...carry, agent: 'a8' }).id;
    book.update(idle, { shown: { phase: 'idle' }, sealed: { session: 's' } });
    const chosen = control.carry({ ...carry, agent: 'a7', acquisition: { job: 'job-7', token: 'bkjat_7' }, secrets: [] }).id;
    control.leave();
    await pass(100);
    expect([book.get(id), book.get(idle)?.retired, book.get(chosen)?.shown.phase]).toEqual([null, true, 'expected']);
    await pass(601_000);
    expect(book.get(chosen)).toBeNull();
  });
});
