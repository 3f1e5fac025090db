import { join } from 'node:path';
import { expect, it } from 'vitest';
import { keptLog, trustedEnv } from '../../../../test/kit/buildkite-manager.ts';
import { scratch } from '../../../../test/support/scratch.ts';
import { OnejobError } from '../../../base/errors.ts';
import type { JobResult } from '../../../core/slot.ts';
import { openStore } from '../../../store/store.ts';
import { createJobRows, type JobRows } from './job-rows.ts';
import { buildkiteEnd } from './outcome.ts';

interface Bench extends Disposable {
  readonly rows: JobRows;
  readonly reserve: (id?: string) => void;
  readonly row: () => unknown;
  readonly list: () => string[];
  readonly unended: () => string[];
  readonly writes: () => number;
  readonly said: () => string[];
  wall: number;
  /** Nothing can be written. */
  full: boolean;
  /** Another manager on the same store. */
  restart(): void;
}

function bench(): Bench {
  const dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const log = keptLog();
  let writes = 0;
  const counting = {
    ...store,
    transaction: ((options, write) => {
      writes += 1;
      if (one.full) throw new OnejobError('E_STATE_FULL', 'the disk is full');
      return store.transaction(options, write);
    }) as typeof store.transaction,
  };
  const open = () => createJobRows('bk', { store: counting, clock: { wall: () => one.wall }, log });
  const one: Bench = {
    wall: 1_000,
    get rows() {
      return rows;
    },
    reserve: (id = 'job-1') => rows.reserved({ id, env: trustedEnv }, 'ci'),
    row: () => store.serviceJobs.get('job-1'),
    list: () => rows.list().map(({ id }) => id),
    unended: () => rows.unended().map(({ id }) => id),
    writes: () => writes,
    said: () => log.lines.map(({ level, event }) => `${level} ${event}`),
    full: false,
    restart() {
      rows = open();
    },
    [Symbol.dispose]() {
      store.close();
      dir[Symbol.dispose]();
    },
  };
  let rows = open();
  return one;
}

it("follows a job from its reservation to its end, in the service's own words", () => {
  using one = bench();
  one.reserve();
  expect(one.row()).toEqual({
    id: 'job-1',
    service: 'bk',
    pool: 'ci',
    agent: null,
    title: 'app #7 unit tests',
    definition: 'app',
    build: '7',
    repository: 'https://github.com/acme/app.git',
    branch: 'main',
    reason: null,
    link: null,
    demands: [],
    state: 'assigned',
    note: null,
    result: null,
    outcome: null,
    failedIn: null,
    queuedAt: 1_000,
    startedAt: null,
    endedAt: null,
  });
  one.wall = 2_000;
  one.rows.runs('job-1', 'agent1');
  expect(one.row()).toMatchObject({ state: 'running', agent: 'agent1', queuedAt: 1_000, startedAt: 2_000 });
  expect(one.list()).toEqual(['job-1']);
  one.wall = 3_000;
  one.rows.left('job-1', { word: 'passed', outcome: 'passed' });
  expect(one.row()).toMatchObject({ state: 'done', agent: 'agent1', result: 'passed', startedAt: 2_000, endedAt: 3_000 });
  expect(one.list()).toEqual([]);
});

it('keeps how a job ended, whatever is said of it afterwards', () => {
  using one = bench();
  one.reserve();
  one.rows.left('job-1', { word: 'failed (exit 2)', outcome: 'failed' });
  const before = one.row();
  one.wall = 9_000;
  one.rows.runs('job-1', 'agent1');
  one.rows.left('job-1', null);
  expect(one.row()).toEqual(before);
});

it('continues where an earlier manager stopped', () => {
  using one = bench();
  one.reserve();
  one.restart();
  expect([one.list(), one.unended()]).toEqual([[], ['job-1']]);
  one.rows.resume();
  expect(one.list()).toEqual(['job-1']);
  one.wall = 5_000;
  one.rows.runs('job-1', 'agent1');
  expect(one.row()).toMatchObject({ queuedAt: 1_000, startedAt: 5_000 });
  expect(one.list()).toEqual(['job-1']);
});

it('writes only what has changed', () => {
  using one = bench();
  for (let n = 0; n < 5; n++) one.reserve();
  for (let n = 0; n < 5; n++) one.rows.runs('job-1', 'agent1');
  expect(one.writes()).toBe(2);
});

it('follows a job again that came back', () => {
  using one = bench();
  one.reserve();
  one.rows.left('job-1', null);
  expect(one.row()).toMatchObject({ state: 'done', result: null });
  one.wall = 7_000;
  one.reserve();
  expect(one.row()).toMatchObject({ state: 'assigned', endedAt: null });
  one.rows.left('job-1', { word: 'passed', outcome: 'passed' });
  expect(one.row()).toMatchObject({ state: 'done', result: 'passed' });
});

it('continues while nothing can be written, says so once, and writes it later', () => {
  using one = bench();
  one.full = true;
  one.reserve();
  one.rows.runs('job-1', 'agent1');
  expect([one.row(), one.list(), one.unended()]).toEqual([null, ['job-1'], ['job-1']]);
  one.rows.left('job-1', { word: 'passed', outcome: 'passed' });
  expect([one.row(), one.list(), one.unended()]).toEqual([null, [], []]);
  expect(one.said()).toEqual(['warn failed to write job records']);
  one.full = false;
  one.reserve('job-2');
  expect(one.row()).toMatchObject({ state: 'done', result: 'passed' });
  expect(one.unended()).toEqual(['job-2']);
  expect(one.said()).toEqual(['warn failed to write job records', 'info job records can be written again']);
});

it.each<[string, JobResult | null, string, string | null]>([
  ['finished', { kind: 'code', code: 0 }, 'passed', 'passed'],
  ['finished', { kind: 'code', code: 3 }, 'failed (exit 3)', 'failed'],
  ['finished', { kind: 'signal', signal: 'SIGKILL' }, 'failed (SIGKILL)', 'failed'],
  ['finished', { kind: 'timeout' }, 'stopped', 'failed'],
  ['finished', { kind: 'cancelled' }, 'stopped', 'cancelled'],
  ['finished', null, 'ended', null],
  ['canceled', { kind: 'code', code: 255 }, 'cancelled', 'cancelled'],
  ['timed_out', { kind: 'code', code: 255 }, 'timed out', 'failed'],
  ['timing_out', { kind: 'code', code: 255 }, 'timed out', 'failed'],
  ['finished', { kind: 'lost', reason: 'gone' }, 'lost', 'lost'],
  ['running', { kind: 'code', code: 0 }, 'lost', 'lost'],
  ['running', { kind: 'oom' }, 'lost', 'failed'],
])('calls a job that is %s, its agent ended with %o: %s, which means %s', (state, result, word, outcome) => {
  expect(buildkiteEnd(state, result)).toEqual({ word, outcome });
});

it('keeps no password: neither of an address nor of what people read', () => {
  using one = bench();
  const env = {
    ...trustedEnv,
    BUILDKITE_LABEL: '',
    BUILDKITE_REPO: 'https://x-token:ghp_hunter2@github.com/acme/app.git',
    BUILDKITE_COMMAND: 'TOKEN=hunter2 curl -H "Authorization: Bearer hunter2" https://me:hunter2@host/x',
  };
  one.rows.reserved({ id: 'job-1', env }, 'ci');
  expect(one.row()).toMatchObject({
    repository: 'https://github.com/acme/app.git',
    title: 'app #7 TOKEN=*** curl -H "Authorization: Bearer ***" https://host/x',
  });
  expect(JSON.stringify(one.row())).not.toContain('hunter2');
});
