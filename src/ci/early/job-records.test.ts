/** Records of jobs: what one look after another, an agent's end and a full store make of them. What they say of jobs: the adapters' tests. */
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { settled } from '../../../test/kit/azure.ts';
import { keptLog } from '../../../test/kit/buildkite-manager.ts';
import { noFacts } from '../../../test/kit/ci-contract.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import { openStore } from '../../store/store.ts';
import { JobRecords } from './job-records.ts';
import type { RemoteJob, Shown } from './port.ts';

const job = (state: RemoteJob['state'], id = 'bell-7', more: Partial<ReturnType<RemoteJob['facts']>> = {}): RemoteJob => ({
  id,
  state,
  facts: () => ({ ...noFacts, title: 'ring', ...more }),
});
const ended = job('done', 'bell-7', { result: 'succeeded' });

/** What a look at a place shows: the ids of unfinished jobs, and what waits for pool `ci`. */
const shown = (place: string, unfinished: readonly string[] = [], waiting: readonly RemoteJob[] = []): Shown => ({
  place,
  title: 'the bell',
  entries: [],
  unfinished,
  waiting: waiting.map((one) => ({ job: one, pools: ['ci'], isForOthers: false })),
});

/** The records of a service, on a store of their own; `poolOf`: the pool that an agent is in. */
function bench(poolOf: (agent: string) => string | null = () => 'ci') {
  const dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const log = keptLog();
  const parts = { service: 'bell', registry: {}, poolOf, clock: { wall: () => 1 }, log, store };
  return {
    jobs: new JobRecords(parts),
    parts,
    log,
    store,
    [Symbol.dispose]() {
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

it('does not take a job for running again that a late look shows', () => {
  using one = bench();
  for (const at of [job('running'), ended, job('running')]) one.jobs.had(at, 'a1', 'p');
  one.jobs.saw(shown('p', ['bell-7'], [job('waiting')]));
  // The service tells no times, so they are this host's.
  expect(one.store.serviceJobs.get('bell-7')).toMatchObject({ state: 'done', result: 'succeeded', startedAt: 1, endedAt: 1 });
  expect(one.jobs.list()).toEqual([]);
});

it('adds what more is read of a job to what it has become meanwhile', async () => {
  using one = bench();
  const { promise, resolve } = Promise.withResolvers<boolean>();
  let repository: string | null = null;
  let asked = 0;
  const describe = () => {
    asked += 1;
    return promise;
  };
  for (const at of [job('running'), ended]) {
    const described = { ...at, describe, facts: () => ({ ...at.facts(), repository }) };
    one.jobs.had(described, 'a1', 'p');
    one.jobs.describe(described, 'a1', 'p', new AbortController().signal);
  }
  repository = 'acme/app';
  resolve(true);
  await settled();
  expect(asked).toBe(1);
  expect(one.store.serviceJobs.get('bell-7')).toMatchObject({ state: 'done', result: 'succeeded', repository: 'acme/app' });
});

it('takes a job for over that the service no longer lists when its agent is gone', () => {
  const live = new Set(['a1']);
  using one = bench((agent) => (live.has(agent) ? 'ci' : null));
  one.jobs.had(job('running'), 'a1', 'p');
  one.jobs.saw(shown('p'));
  expect(one.jobs.list()).toHaveLength(1);
  live.clear();
  one.jobs.saw(shown('another'));
  expect(one.jobs.list()).toHaveLength(1);
  one.jobs.saw(shown('p'));
  expect(one.jobs.list()).toEqual([]);
  expect(one.store.serviceJobs.get('bell-7')).toMatchObject({ state: 'done', result: null, pool: 'ci' });
});

it('shows a job no longer as waiting that an agent of another host has taken', () => {
  using one = bench(() => null);
  one.jobs.saw(shown('p', ['bell-7'], [job('waiting')]));
  expect(one.jobs.list()).toMatchObject([{ state: 'waiting' }]);
  one.jobs.saw(shown('another'));
  expect(one.jobs.list()).toHaveLength(1);
  one.jobs.saw(shown('p', ['bell-7']));
  expect(one.jobs.list()).toEqual([]);
  expect(one.store.serviceJobs.get('bell-7')).toBeNull();
});

it('keeps the records of jobs while the store is full, says so once, and writes them later', () => {
  using one = bench();
  const { log, store, parts } = one;
  let isFull = true;
  const transaction = ((options, write) => {
    if (isFull) throw new OnejobError('E_STATE_FULL', 'the disk is full');
    return store.transaction(options, write);
  }) as typeof store.transaction;
  const jobs = new JobRecords({ ...parts, store: { ...store, transaction } });
  expect(jobs.had(job('running'), 'a1', 'p')).toBe('bell-7');
  expect([jobs.list(), store.serviceJobs.get('bell-7')]).toEqual([[expect.objectContaining({ state: 'running' })], null]);
  jobs.had(job('done'), 'a1', 'p');
  expect(jobs.list()).toEqual([]);
  const lines = () => log.lines.map(({ level, event }) => `${level} ${event}`);
  expect(lines()).toEqual(['warn failed to write job records']);
  isFull = false;
  jobs.had(job('running', 'bell-8'), 'a2', 'p');
  expect(store.serviceJobs.get('bell-7')).toMatchObject({ state: 'done', agent: 'a1' });
  expect(store.serviceJobs.get('bell-8')).toMatchObject({ state: 'running', agent: 'a2' });
  expect(lines().at(-1)).toBe('info job records can be written again');
});
