import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../errors.ts';
import { openStore } from '../../store/store.ts';
import type { BrokerAgent, Phase } from './broker/protocol.ts';
import { keptLog } from './broker/testing.ts';
import { createJobRows, wordOf } from './job-rows.ts';
import { heldAgent } from './testing-broker.ts';
import { trustedEnv } from './testing-manager.ts';

interface Bench extends Disposable {
  readonly saw: (phase: Phase, more?: Partial<BrokerAgent>) => void;
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
    serviceJobs: store.serviceJobs,
    transaction: ((options, write) => {
      writes += 1;
      if (one.full) throw new OnejobError('E_STATE_FULL', 'the disk is full');
      return store.transaction(options, write);
    }) as typeof store.transaction,
  };
  const open = () => createJobRows({ service: 'bk', store: counting, wall: () => one.wall, log });
  const one: Bench = {
    wall: 1_000,
    saw: (phase, more = {}) => rows.saw({ ...heldAgent('a1', { env: trustedEnv }), phase, since: 500, ...more }),
    row: () => store.serviceJobs.get('job-a1'),
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

it("follows a job from its acceptance to its end, in the service's own words", () => {
  using one = bench();
  one.saw('accepting');
  expect(one.row()).toEqual({
    ...{ id: 'job-a1', service: 'bk', pool: 'ci', agent: null, title: 'app #7 unit tests', definition: 'app', build: '7' },
    ...{ repository: 'https://github.com/acme/app.git', branch: 'main', reason: null, link: null, demands: [] },
    ...{ state: 'assigned', note: null, result: null, queuedAt: 500, startedAt: null, endedAt: null },
  });
  one.wall = 2_000;
  one.saw('running', { agent: 'agent1' });
  expect(one.row()).toMatchObject({ state: 'running', agent: 'agent1', queuedAt: 500, startedAt: 2_000 });
  expect(one.list()).toEqual(['job-a1']);
  one.wall = 3_000;
  one.saw('finished', { agent: 'agent1', finished: { exitStatus: '0', signal: null, signalReason: null } });
  expect(one.row()).toMatchObject({ state: 'done', result: 'passed', startedAt: 2_000, endedAt: 3_000 });
  expect(one.list()).toEqual([]);
});

it('keeps how a job ended, whatever is said of its agent afterwards', () => {
  using one = bench();
  one.saw('finished', { finished: { exitStatus: '2', signal: null, signalReason: null } });
  const before = one.row();
  one.wall = 9_000;
  one.saw('ending', { finished: null });
  one.saw('gone', { finished: null });
  expect(one.row()).toEqual(before);
});

it('goes on where an earlier manager was', () => {
  using one = bench();
  one.saw('running');
  one.restart();
  expect(one.list()).toEqual([]);
  one.wall = 5_000;
  one.saw('running', { since: 4_000 });
  expect(one.row()).toMatchObject({ queuedAt: 500, startedAt: 1_000 });
  expect(one.list()).toEqual(['job-a1']);
});

it('writes only what has changed', () => {
  using one = bench();
  for (let n = 0; n < 5; n++) one.saw('accepted');
  one.saw('handed', { agent: 'agent1' });
  one.saw('connected', { agent: 'agent1' });
  expect(one.writes()).toBe(2);
});

it('has nothing to say of an agent without a job', () => {
  using one = bench();
  one.saw('idle', { job: null });
  expect([one.writes(), one.list()]).toEqual([0, []]);
});

it('follows a job again that came back: the service had taken it away before it began, and gave it here once more', () => {
  using one = bench();
  one.saw('accepting');
  one.saw('gone');
  expect(one.row()).toMatchObject({ state: 'done', result: null });
  one.wall = 7_000;
  one.saw('accepted', { id: 'a2' });
  expect(one.row()).toMatchObject({ state: 'assigned', endedAt: null });
  one.saw('finished', { id: 'a2', finished: { exitStatus: '0', signal: null, signalReason: null } });
  expect(one.row()).toMatchObject({ state: 'done', result: 'passed' });
});

it('goes on while nothing can be written, says so once, and makes up for it', () => {
  using one = bench();
  one.full = true;
  one.saw('accepted');
  one.saw('running');
  one.saw('running');
  expect([one.row(), one.list(), one.unended()]).toEqual([null, ['job-a1'], ['job-a1']]);
  one.saw('finished', { finished: { exitStatus: '0', signal: null, signalReason: null } });
  one.saw('gone');
  expect([one.row(), one.list(), one.unended()]).toEqual([null, [], []]);
  expect(one.said()).toEqual(['warn jobs are not written down']);
  one.full = false;
  one.saw('accepted', { id: 'a2', job: { id: 'job-a2', env: trustedEnv } });
  expect(one.row()).toMatchObject({ state: 'done', result: 'passed' });
  expect(one.unended()).toEqual(['job-a2']);
  expect(one.said()).toEqual(['warn jobs are not written down', 'info jobs are written down again']);
});

it.each([
  ['0', null, null, 'passed'],
  ['3', null, null, 'failed (exit 3)'],
  ['-1', 'SIGKILL', null, 'failed (SIGKILL)'],
  ['-1', null, 'agent_refused', 'refused'],
  ['-1', 'SIGTERM', 'cancel', 'cancelled'],
  ['-1', null, 'agent_stop', 'stopped'],
  ['-1', null, 'process_run_error', 'failed (process_run_error)'],
])('calls exit %s, signal %s, reason %s: %s', (exitStatus, signal, signalReason, word) => {
  expect(wordOf({ exitStatus, signal, signalReason })).toBe(word);
});

it('keeps no password: neither of an address nor of what people read', () => {
  using one = bench();
  const env = {
    ...trustedEnv,
    BUILDKITE_LABEL: '',
    BUILDKITE_REPO: 'https://x-token:ghp_hunter2@github.com/acme/app.git',
    BUILDKITE_COMMAND: 'TOKEN=hunter2 curl -H "Authorization: Bearer hunter2" https://me:hunter2@host/x',
  };
  one.saw('accepted', heldAgent('a1', { env }));
  expect(one.row()).toMatchObject({
    repository: 'https://github.com/acme/app.git',
    title: 'app #7 TOKEN=*** curl -H "Authorization: Bearer ***" https://host/x',
  });
  expect(JSON.stringify(one.row())).not.toContain('hunter2');
});
