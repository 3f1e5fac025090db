/** Agents in doubt at a service that can disable agents, and at one that can keep jobs from an agent only by removing it. */
import { describe, expect, it } from 'vitest';
import { settled } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { CiEvent, EndingAgent } from '../../ports/ci-service.ts';
import { OfflineAgents } from './offline-agents.ts';
import type { Entry, Registry, RemoteJob } from './port.ts';
import type { Registrations } from './registrations.ts';

const patient = new AbortController().signal;
const minutes = (count: number) => count * 60_000;
const job = (state: RemoteJob['state']): RemoteJob => ({ id: 'bell-7', state, facts: () => expect.unreachable('for people') });
const refuses = () => Promise.reject(new OnejobError('E_CI_DENIED', 'Only the sexton may.'));
const stop: EndingAgent = { agent: 'a1', job: null, why: 'shutdown', released: true };

interface Options {
  /** What the service knows, as it does not always tell. */
  readonly is?: 'idle' | 'busy';
  readonly disables?: boolean;
  /** Whether onejob has seen it with a job. */
  readonly hadJob?: boolean;
}

/** One agent, `a1`, that the service lists as `shown`. */
function bench(shown: Partial<Entry> = {}, { is = 'idle', disables = false, hadJob = true }: Options = {}) {
  const clock = handClock();
  const events: CiEvent[] = [];
  const removed: string[] = [];
  const warned: string[] = [];
  const entry = { place: 'p', id: '1', name: 'box-1-a1', status: 'offline', job: null, ...shown } as {
    -readonly [K in keyof Entry]: Entry[K];
  };
  const service = {
    calls: 0,
    /** Whether the agent gets no jobs, and how changes of that fail; null: well. */
    isDisabled: false,
    fails: (_isDisabled: boolean): Promise<never> | null => null,
    hasBegun: false,
  };
  const registration = { agent: 'a1', service: 'bell', place: 'p', placeholder: false, state: 'made' };
  const warn = (text: string) => void warned.push(text);
  const parts = {
    service: 'bell',
    url: 'the bell',
    pace: { pollEvery: 10_000, bootTimeout: minutes(3) },
    clock,
    log: { info: warn, warn, error() {} } as Partial<Log> as Log,
    slots: { silentFor: () => minutes(5), isBusy: () => hadJob },
  };
  const registry: Registry = {
    async find() {
      service.calls += 1;
      return removed.length === 0 ? entry : null;
    },
    async remove({ id }) {
      if (is === 'busy') return 'busy';
      removed.push(id);
      return 'removed';
    },
    ...(disables && {
      async disable(_: unknown, isDisabled: boolean): Promise<'done'> {
        service.calls += 1;
        await service.fails(isDisabled);
        service.isDisabled = isDisabled;
        return 'done';
      },
    }),
    list: () => expect.unreachable('by the engine'),
    create: () => expect.unreachable('by the engine'),
  };
  const registrations = {
    locate: async (agent: string) => (agent === 'a1' ? entry : null),
    find: () => registration,
    open: () => [registration],
  } as unknown as Registrations;
  const jobs = { had: ({ id }: RemoteJob) => id, hasBegun: () => service.hasBegun };
  const inDoubt = new OfflineAgents(parts, registry, registrations, jobs);
  const emit = (event: CiEvent) => void events.push(event);
  const since = clock.now();
  const seen = (status = entry.status) => ({ place: 'p', ours: new Map([['a1', { ...entry, status }]]), steadySince: since });
  /** What a look that showed it offline is followed by. */
  const silence = () => inDoubt.silence(seen('offline'), emit, patient);
  const pass = async (ms: number): Promise<void> => {
    for (let n = 0; n < ms; n += 100) {
      await settled();
      clock.advance(100);
    }
    await settled();
  };
  /** Whether its end may continue. */
  const ends = (more: Partial<EndingAgent> = {}, signal = patient): { isOver: boolean } => {
    const end = { isOver: false };
    void inDoubt.ending({ ...stop, ...more }, signal).then(() => {
      end.isOver = true;
    });
    return end;
  };
  return { clock, events, removed, warned, entry, service, inDoubt, seen, emit, silence, pass, ends };
}

describe('one that did not come online in time', () => {
  it('is removed before it is taken for silent', async () => {
    const one = bench();
    one.clock.advance(minutes(4));
    await one.silence();
    expect([one.removed, one.events]).toEqual([['1'], [expect.objectContaining({ kind: 'silent', agent: 'a1' })]]);
  });

  it.each([true, false])(
    'continues, when it has come online after the look (the service disables agents: %s)',
    async (disables) => {
      const one = bench({ status: 'online' }, { disables });
      one.clock.advance(minutes(4));
      await one.silence();
      expect([one.removed, one.events, one.service.isDisabled]).toEqual([[], [{ kind: 'online', agent: 'a1' }], false]);
    },
  );

  it('does its job, when it has got one after the look', async () => {
    const one = bench({ status: 'online', job: job('assigned') }, { disables: true });
    one.clock.advance(minutes(4));
    await one.silence();
    await one.inDoubt.silence(one.seen(), one.emit, patient);
    expect(one.events).toEqual([{ kind: 'jobSeen', agent: 'a1', job: 'bell-7' }]);
    // It has its one job.
    expect(one.service.isDisabled).toBe(true);
  });

  it('is not taken for silent while the service only says that it is busy', async () => {
    const one = bench({}, { is: 'busy' });
    one.clock.advance(minutes(4));
    await one.silence();
    expect([one.events, one.warned]).toEqual([[], ['failed to find out whether an agent is silent']]);
  });

  it.each([
    ['can be given a job again, also when that could not be said at once', false],
    ['stays without a job when it is to end meanwhile', true],
  ])('%s', async (_, isToEnd) => {
    const one = bench({ status: 'online' }, { disables: true });
    one.clock.advance(minutes(4));
    one.service.fails = (isDisabled) => (isDisabled ? null : refuses());
    await one.silence();
    await one.inDoubt.silence(one.seen(), one.emit, patient);
    expect([one.events, one.service.isDisabled]).toEqual([[], true]);
    expect(one.warned).toEqual(Array(2).fill('failed to find out whether an agent is silent'));
    one.service.fails = () => null;
    if (isToEnd) await one.inDoubt.retire('a1', patient);
    await one.inDoubt.silence(one.seen(), one.emit, patient);
    expect(one.service.isDisabled).toBe(isToEnd);
    expect(one.events.filter(({ kind }) => kind === 'silent')).toEqual([]);
  });
});

describe('one whose job the service has given up', () => {
  const ended = [{ kind: 'jobDone', agent: 'a1' }];
  it.each<[string, Options & { readonly gets?: RemoteJob }, readonly unknown[]]>([
    ['is ended after five minutes', {}, ended],
    ['is ended after five minutes, and gets no other', { disables: true }, ended],
    ['is left alone when it is busy after all', { is: 'busy' }, []],
    ['is left alone when it was given another job', { disables: true, gets: job('running') }, []],
    ['is left alone when it waits for its first', { disables: true, hadJob: false }, []],
  ])('%s', async (_, { gets = null, ...options }, events) => {
    const one = bench({ status: 'online' }, options);
    const seen = one.seen();
    await one.inDoubt.outlived(seen, one.emit, patient);
    one.clock.advance(minutes(5) - 1);
    await one.inDoubt.outlived(seen, one.emit, patient);
    expect(one.events).toEqual([]);
    one.clock.advance(1);
    one.entry.job = gets;
    await one.inDoubt.outlived(seen, one.emit, patient);
    expect(one.events).toEqual(events);
    expect(one.service.isDisabled).toBe(options.disables === true && options.hadJob !== false);
  });

  it('is not ended because its entry is gone', async () => {
    const one = bench();
    const seen = { ...one.seen(), ours: new Map() };
    await one.inDoubt.outlived(seen, one.emit, patient);
    one.clock.advance(minutes(5));
    await one.inDoubt.outlived(seen, one.emit, patient);
    expect(one.events).toEqual([]);
  });
});

it('retires with its job, or gone, or with an error that says to ask again', async () => {
  expect(await bench({ job: job('assigned') }, { is: 'busy' }).inDoubt.retire('a1', patient)).toBe('bell-7');
  expect(await bench().inDoubt.retire('a1', patient)).toBeNull();
  const busy = bench({}, { is: 'busy' }).inDoubt.retire('a1', patient);
  await expect(busy).rejects.toMatchObject({ code: 'E_CI_UNREACHABLE', retry: true });
});

describe('one that is told to end', () => {
  it('continues at once without a job, and gets no more', async () => {
    const one = bench({ status: 'online' }, { disables: true });
    const end = one.ends();
    await settled();
    expect([end.isOver, one.service.isDisabled, one.warned]).toEqual([true, true, []]);
  });

  it.each<[string, Options]>([
    ['disables agents', { disables: true }],
    ['can only remove them', { is: 'busy' }],
  ])('waits until a job that is on its way has arrived, at a service that %s', async (_, options) => {
    const one = bench({ job: job('assigned') }, options);
    const end = one.ends();
    await one.pass(2_000);
    expect(end.isOver).toBe(false);
    one.entry.job = job('running');
    await one.pass(100);
    expect(end.isOver).toBe(true);
  });

  it('waits also for one that was seen and has not arrived: an agent does not listen all the time', async () => {
    const one = bench({ job: job('assigned') }, { disables: true });
    const end = one.ends({ job: 'bell-7' });
    await one.pass(15_000);
    expect(end.isOver).toBe(false);
    one.entry.job = job('running');
    await one.pass(600);
    expect(end.isOver).toBe(true);
  });

  it('waits twenty seconds at most for a job that does not arrive, and three for a service that does not answer', async () => {
    const one = bench({ job: job('assigned') }, { disables: true });
    const first = one.ends();
    await one.pass(19_900);
    expect(first.isOver).toBe(false);
    await one.pass(200);
    expect(first.isOver).toBe(true);
    one.service.fails = () => new Promise(() => {});
    const second = one.ends();
    await one.pass(2_900);
    expect(second.isOver).toBe(false);
    await one.pass(200);
    expect(second.isOver).toBe(true);
    expect(one.warned).toEqual(Array(2).fill('an agent ends while the service may be giving it a job'));
  });

  it('continues when the service cannot say, and when nobody waits any more', async () => {
    const one = bench({ job: job('assigned') }, { disables: true });
    one.service.fails = refuses;
    const denied = one.ends();
    await settled();
    expect(denied.isOver).toBe(true);
    one.service.fails = () => null;
    const hurried = new AbortController();
    const end = one.ends({}, hurried.signal);
    await one.pass(200);
    hurried.abort();
    await settled();
    expect(end.isOver).toBe(true);
  });

  it.each<[string, Partial<EndingAgent>]>([
    ['that is known to work on its job', { job: 'bell-7' }],
    ['that was kept from jobs before', { why: 'renewal' }],
    ['that nobody knows', { agent: 'stranger' }],
  ])('is asked about of nobody, if it is one %s', async (_, more) => {
    const one = bench({ job: job('assigned') }, { disables: true });
    one.service.hasBegun = true;
    const end = one.ends(more);
    await settled();
    expect([end.isOver, one.service.calls]).toEqual([true, 0]);
  });
});
