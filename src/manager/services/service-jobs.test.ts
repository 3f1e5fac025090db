import { setImmediate as turn } from 'node:timers/promises';
import { beforeEach, expect, test } from 'vitest';
import { type HandClock, handClock } from '../../../test/kit/core.ts';
import { serviceJob } from '../../../test/support/service-job.ts';
import { newestLast } from '../../contract/job-pages.ts';
import type { StandbyLane } from '../../core/slot.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import type { Reconciler } from '../loop/reconciler.ts';
import { createServiceJobs, notHere } from './service-jobs.ts';

let live: ServiceJob[];
let stored: ServiceJob[];
/** Jobs of slots, by the agent that has each. */
let busy: Map<string, string>;
/** Of a slot without an agent. */
let standby: StandbyLane;
let pools: { config: { name: string; service: string } }[];
let clock: HandClock;
let jobs: ReturnType<typeof createServiceJobs>;

beforeEach(() => {
  [live, stored, busy, standby] = [[], [], new Map(), { kind: 'none' }];
  pools = [{ config: { name: 'lab', service: 'azure' } }, { config: { name: 'cpu', service: 'own' } }];
  clock = handClock();
  const reconciler = {
    pools,
    get slots() {
      const none = { standby: { kind: 'none' }, leaving: [] };
      const agents = [...busy].map(([agent, job]) => ({ ...none, agent: { kind: 'busy', agent, job } }));
      return [{ ...none, standby, agent: { kind: 'free' } }, ...agents];
    },
    placeOf: (agent: string) => (busy.has(agent) ? 'lab/1' : undefined),
  } as unknown as Reconciler;
  jobs = createServiceJobs({
    services: [{ name: 'azure', serviceJobs: () => live, capabilities }],
    outcomes: { get: () => null },
    table: { get: (id) => stored.find((job) => job.id === id) ?? null, list: (limit) => stored.slice(0, limit) },
    reconciler,
    reasonFor: (pool) => `${pool} is paused`,
    clock,
  });
});

const capabilities = { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false } as const;

const ids = (limit: number | null) => jobs.jobs(limit).map(({ id, state }) => `${id} ${state}`);

test('a job as people see it: what it is, where it is, how its service says it ended', () => {
  stored = [serviceJob('azure-7', { state: 'done', result: 'succeededWithIssues', agent: 'a1', endedAt: 9_000 })];
  expect(jobs.job('azure-7')).toMatchObject({
    id: 'azure-7',
    service: 'azure',
    pool: 'lab',
    agent: 'a1',
    state: 'done',
    reason: null,
    outputElsewhere: true,
    result: { kind: 'reported', word: 'succeededWithIssues' },
    about: { title: 'app-ci #20260101.1 build', branch: 'main', reason: 'pullRequest', repository: 'acme/app' },
    submittedAt: 1_000,
    startedAt: 2_000,
    endedAt: 9_000,
  });
  expect(jobs.about('azure-7')?.link).toContain('buildId=7');
  expect([jobs.job('azure-8'), jobs.about('azure-8')]).toEqual([null, null]);
});

test('the service’s current knowledge overrides what was seen before', () => {
  stored = [serviceJob('azure-7', { state: 'assigned' })];
  live = [serviceJob('azure-7', { state: 'running' })];
  expect(jobs.job('azure-7')?.state).toBe('running');
  expect(ids(10)).toEqual(['azure-7 running']);
});

test('a waiting job is in the service’s only pool, and says why it waits', () => {
  live = [serviceJob('azure-9', { state: 'waiting', pool: '' })];
  expect(jobs.job('azure-9')).toMatchObject({ pool: 'lab', state: 'waiting', reason: 'lab is paused', attempt: 0 });
  pools.push({ config: { name: 'lab2', service: 'azure' } });
  expect(jobs.job('azure-9')).toMatchObject({ pool: '', reason: null });
});

test('a job whose agent is gone only runs according to its service, and says so', () => {
  live = [serviceJob('azure-5', { agent: 'a5' })];
  expect(jobs.job('azure-5')?.reason).toMatch(/^its agent is gone; the service reports the job as abandoned/);
  busy.set('a5', 'azure-5');
  expect(jobs.job('azure-5')?.reason).toBeNull();
});

test('only unfinished jobs, unless all are requested', () => {
  live = [serviceJob('azure-2')];
  stored = [serviceJob('azure-1', { state: 'done', result: 'failed' }), serviceJob('azure-2')];
  expect(ids(null)).toEqual(['azure-2 running']);
  expect(ids(10)).toEqual(['azure-2 running', 'azure-1 done']);
});

test('right after a restart the jobs of slots are listed, although no service was asked yet', () => {
  stored = [serviceJob('azure-3', { agent: 'a3' })];
  busy.set('a3', 'azure-3');
  expect(ids(null)).toEqual(['azure-3 running']);
  // Its agent is still being cleared away.
  stored = [serviceJob('azure-3', { agent: 'a3', state: 'done', result: 'succeeded' })];
  expect(ids(null)).toEqual([]);
});

test('right after a restart a job is not over whose sandbox is being made, or whose agent has not called yet', () => {
  stored = [serviceJob('bk-1', { agent: null, state: 'assigned' }), serviceJob('bk-2', { agent: null, state: 'assigned' })];
  busy.set('a1', 'bk-1');
  standby = { kind: 'preparing', agent: 'a2', reserved: { job: 'bk-2', limit: null, cold: true }, since: 0 };
  expect(ids(null)).toEqual(['bk-2 assigned', 'bk-1 assigned']);
  expect(ids(10)).toEqual(['bk-1 assigned', 'bk-2 assigned']);
});

test('a job that no service and no slot has is over, without a result', () => {
  stored = [serviceJob('azure-3', { agent: 'a3' })];
  expect(ids(null)).toEqual([]);
  expect(jobs.job('azure-3')).toMatchObject({ state: 'done', result: null, endedAt: null });
});

test('a caller that waits for its end is notified', async () => {
  live = [serviceJob('azure-7')];
  const settled = jobs.settled('azure-7', new AbortController().signal);
  clock.advance(5_000);
  await turn();
  [live, stored] = [[], [serviceJob('azure-7', { state: 'done', result: 'canceled' })]];
  clock.advance(5_000);
  expect(await settled).toMatchObject({ state: 'done', result: { kind: 'reported', word: 'canceled' } });
});

test('a caller that waits for a job that disappears, or leaves, gets an error', async () => {
  live = [serviceJob('azure-7', { state: 'waiting' })];
  const vanishing = jobs.settled('azure-7', new AbortController().signal);
  live = [];
  clock.advance(5_000);
  await expect(vanishing).rejects.toMatchObject({ code: 'E_JOB_UNKNOWN' });
  live = [serviceJob('azure-7')];
  const leaving = new AbortController();
  const left = jobs.settled('azure-7', leaving.signal);
  leaving.abort();
  await expect(left).rejects.toMatchObject({ name: 'AbortError' });
  expect(clock.next()).toBeNull();
});

test('it cannot be cancelled here, and the error has the link to where it can', () => {
  live = [serviceJob('azure-7'), serviceJob('azure-8', { link: null })];
  const hintOf = (id: string) => {
    const job = jobs.job(id);
    return job === null ? null : notHere(job).hint;
  };
  expect(hintOf('azure-7')).toBe('Cancel it there: https://dev.azure.com/acme/app/_build/results?buildId=7');
  expect(hintOf('azure-8')).toBe('Cancel it on the website of that service.');
});

test('the newest job is the last, and one without a time counts as the newest', () => {
  live = [
    serviceJob('azure-3', { queuedAt: null, startedAt: null }),
    serviceJob('azure-2', { queuedAt: null }),
    serviceJob('azure-1'),
  ];
  expect(newestLast(jobs.jobs(null)).map(({ id }) => id)).toEqual(['azure-1', 'azure-2', 'azure-3']);
});
