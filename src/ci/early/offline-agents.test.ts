/** Agents in doubt at a service that can keep jobs from an agent only by removing it. One that can disable agents: Azure's tests. */
import { expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import type { Log } from '../../base/log.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { OfflineAgents } from './offline-agents.ts';
import type { Entry, Registry, RemoteJob } from './port.ts';
import type { Registrations } from './registrations.ts';

const patient = new AbortController().signal;
const minutes = (count: number) => count * 60_000;
const job = (state: RemoteJob['state']): RemoteJob => ({ id: 'bell-7', state, facts: () => expect.unreachable('for people') });

/** One agent, `a1`, that the service lists as `shown`; `is` is what the service knows, as it does not always tell. */
function bench(shown: Partial<Entry> = {}, is: 'idle' | 'busy' = 'idle') {
  const clock = handClock();
  const events: CiEvent[] = [];
  const removed: string[] = [];
  const warned: string[] = [];
  const entry = { place: 'p', id: '1', name: 'box-1-a1', status: 'offline', job: null, ...shown } as {
    -readonly [K in keyof Entry]: Entry[K];
  };
  const registration = { agent: 'a1', service: 'bell', place: 'p', placeholder: false, state: 'made' };
  const parts = {
    service: 'bell',
    url: 'the bell',
    pace: { pollEvery: 10_000, bootTimeout: minutes(3) },
    clock,
    log: { info() {}, warn: (text: string) => void warned.push(text), error() {} } as Partial<Log> as Log,
    slots: { silentFor: () => minutes(5), isBusy: () => true },
  };
  const registry: Registry = {
    find: async () => (removed.length === 0 ? entry : null),
    async remove({ id }) {
      if (is === 'busy') return 'busy';
      removed.push(id);
      return 'removed';
    },
    list: () => expect.unreachable('by the engine'),
    create: () => expect.unreachable('by the engine'),
  };
  const registrations = {
    locate: async () => entry,
    find: () => registration,
    open: () => [registration],
  } as unknown as Registrations;
  const jobs = { had: ({ id }: RemoteJob) => id, hasBegun: () => false };
  const inDoubt = new OfflineAgents(parts, registry, registrations, jobs);
  const seen = { place: 'p', ours: new Map([['a1', { ...entry }]]), steadySince: clock.now() };
  const emit = (event: CiEvent) => void events.push(event);
  return { clock, events, removed, warned, entry, inDoubt, seen, emit };
}

it('is removed before it is taken for silent', async () => {
  const one = bench();
  one.clock.advance(minutes(4));
  await one.inDoubt.silence(one.seen, one.emit, patient);
  expect([one.removed, one.events]).toEqual([['1'], [expect.objectContaining({ kind: 'silent', agent: 'a1' })]]);
});

it('stays, when it has come online after the look', async () => {
  const one = bench();
  one.clock.advance(minutes(4));
  one.entry.status = 'online';
  await one.inDoubt.silence(one.seen, one.emit, patient);
  expect([one.removed, one.events]).toEqual([[], [{ kind: 'online', agent: 'a1' }]]);
});

it('is not taken for silent while the service only says that it is busy', async () => {
  const one = bench({}, 'busy');
  one.clock.advance(minutes(4));
  await one.inDoubt.silence(one.seen, one.emit, patient);
  expect([one.events, one.warned]).toEqual([[], ['failed to find out whether an agent is silent']]);
});

it.each([
  ['idle', [{ kind: 'jobDone', agent: 'a1' }]],
  ['busy', []],
] as const)('is ended without its job for five minutes, unless it is busy after all: %s', async (is, events) => {
  const one = bench({ status: 'online' }, is);
  await one.inDoubt.outlived(one.seen, one.emit, patient);
  one.clock.advance(minutes(5));
  await one.inDoubt.outlived(one.seen, one.emit, patient);
  expect(one.events).toEqual(events);
});

it('is not ended because its entry is gone', async () => {
  const one = bench();
  const seen = { ...one.seen, ours: new Map() };
  await one.inDoubt.outlived(seen, one.emit, patient);
  one.clock.advance(minutes(5));
  await one.inDoubt.outlived(seen, one.emit, patient);
  expect(one.events).toEqual([]);
});

it('retires with its job, or gone, or with an error that says to ask again', async () => {
  expect(await bench({ job: job('assigned') }, 'busy').inDoubt.retire('a1', patient)).toBe('bell-7');
  expect(await bench().inDoubt.retire('a1', patient)).toBeNull();
  await expect(bench({}, 'busy').inDoubt.retire('a1', patient)).rejects.toMatchObject({ code: 'E_CI_UNREACHABLE', retry: true });
});

it('ends once its job has arrived', async () => {
  const one = bench({ job: job('assigned') }, 'busy');
  let isOver = false;
  const ending = one.inDoubt.ending({ agent: 'a1', job: null, why: 'shutdown', released: true }, patient).then(() => {
    isOver = true;
  });
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  for (let n = 0; n < 20; n += 1) {
    await settled();
    one.clock.advance(100);
  }
  expect(isOver).toBe(false);
  one.entry.job = job('running');
  await settled();
  one.clock.advance(500);
  await ending;
});
