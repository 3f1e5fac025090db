/** Records of jobs while the store takes nothing. What they say of jobs: Azure's tests. */
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { keptLog } from '../../../test/kit/buildkite-manager.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import { openStore } from '../../store/store.ts';
import { JobRecords } from './job-records.ts';
import type { RemoteJob } from './port.ts';

const nothing = {
  definition: null,
  build: null,
  repository: null,
  branch: null,
  reason: null,
  link: null,
  demands: [],
  result: null,
  outcome: null,
  failedIn: null,
};
const job = (state: RemoteJob['state'], id = 'bell-7'): RemoteJob => ({
  id,
  state,
  facts: () => ({ ...nothing, title: 'ring', queuedAt: null, startedAt: null, endedAt: null }),
});

it('keeps the records of jobs while the store is full, says so once, and writes them later', () => {
  using dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const log = keptLog();
  let isFull = true;
  const transaction = ((options, write) => {
    if (isFull) throw new OnejobError('E_STATE_FULL', 'the disk is full');
    return store.transaction(options, write);
  }) as typeof store.transaction;
  const parts = { service: 'bell', registry: {}, poolOf: () => 'ci', clock: { wall: () => 1 }, log };
  const jobs = new JobRecords({ ...parts, store: { ...store, transaction } });
  expect(jobs.had(job('running'), 'a1', 'p')).toBe('bell-7');
  expect([jobs.list(), store.serviceJobs.get('bell-7')]).toEqual([[expect.objectContaining({ state: 'running' })], null]);
  jobs.had(job('done'), 'a1', 'p');
  expect(jobs.list()).toEqual([]);
  expect(log.lines.map(({ level, event }) => `${level} ${event}`)).toEqual(['warn failed to write job records']);
  isFull = false;
  jobs.had(job('running', 'bell-8'), 'a2', 'p');
  expect(store.serviceJobs.get('bell-7')).toMatchObject({ state: 'done', agent: 'a1' });
  expect(store.serviceJobs.get('bell-8')).toMatchObject({ state: 'running', agent: 'a2' });
  expect(log.lines.map(({ level, event }) => `${level} ${event}`).at(-1)).toBe('info job records can be written again');
  store.close();
});
