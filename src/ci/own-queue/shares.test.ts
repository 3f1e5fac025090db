/** People in the own queue: limits, turns and rights that change, on a real store. */
import { mkdirSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { bareRecipe } from '../../../test/kit/recipe.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import type { PeopleGroup, Person } from '../../config/people.ts';
import { type JobRequest, jobRequest } from '../../contract/job.ts';
import type { Change } from '../../core/slot.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { openStore, type Store } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { createOwnQueue, type OwnQueue } from './own-queue.ts';

const hour = 3_600_000;
const dir = eachScratch();
const group = (name: string, more: Partial<PeopleGroup> = {}): PeopleGroup => ({
  name,
  role: 'submit',
  pools: ['gpu', 'more', 'cpu'],
  volumes: [],
  images: [],
  logs: 'own',
  cards: null,
  cardsEach: null,
  weight: 1,
  ...more,
});
let table: Map<number, Person>;
let changed: () => void;
let store: Store;
let queue: OwnQueue;
let now: number;

const [ada, bob] = [1, 2];
const put = (uid: number, its: PeopleGroup) => table.set(uid, { uid, name: uid === ada ? 'ada' : 'bob', group: its });

function open(): void {
  store = openStore(join(dir.path, 'state'));
  const pool = (name: string, count: number) => ({
    name,
    runtime: null,
    timeout: name === 'more' ? hour : null,
    recipe: bareRecipe,
    devices: { ...oneDevice, count },
    standby: true,
  });
  const people = {
    halfLife: 24 * hour,
    of: (uid: number) => table.get(uid) ?? null,
    all: () => [...table.values()],
    onChange(listener: () => void) {
      changed = listener;
      return () => {};
    },
  };
  queue = createOwnQueue({
    store,
    pools: [pool('gpu', 1), pool('more', 1), pool('cpu', 0)],
    people,
    clock: { ...systemClock, wall: () => now },
  });
}

beforeEach(() => {
  now = 1_000 * hour;
  table = new Map();
  put(ada, group('lab'));
  put(bob, group('lab'));
  open();
});
afterEach(async () => {
  await queue.close();
  store.close();
});

const submit = (uid: number | null, more: Partial<JobRequest> = {}) =>
  queue.submit(
    jobRequest.parse({ command: ['true'], pool: 'gpu', ...more }),
    uid === null ? null : { uid, name: uid === ada ? 'ada' : 'bob' },
  ).id;
const next = (pool = 'gpu') => queue.jobs.next(pool, null)?.job ?? null;

function commit(...changes: Change[]): void {
  store.transaction({ durable: false }, () => {
    for (const change of changes) queue.jobs.record(change);
  });
  queue.jobs.committed();
}

const begin = (job: string) => commit({ change: 'started', job, agent: `a-${job}` });
const end = (job: string) => commit({ change: 'ended', job, agent: `a-${job}`, result: { kind: 'code', code: 0 } });
function work(job: string, hours: number): void {
  begin(job);
  now += hours * hour;
  end(job);
}

describe('cards at once', () => {
  it('a job beyond the limit waits, with a sentence, also in another pool, and starts once a card comes back', () => {
    put(ada, group('lab', { cards: 1 }));
    const [first, second, other] = [submit(ada), submit(ada), submit(ada, { pool: 'more' })];
    begin(first);
    expect([next(), next('more'), queue.waiting('gpu'), queue.waiting('more')]).toEqual([null, null, 0, 0]);
    const why = 'the group "lab" has 1 of at most 1 card at once, and it asks for one';
    expect(queue.job(second)).toMatchObject({ state: 'queued', reason: why });
    expect(queue.plan()).toEqual([
      { slot: 'gpu', intent: `hold job ${second}`, because: why },
      { slot: 'more', intent: `hold job ${other}`, because: why },
    ]);
    expect(queue.waitingSince().size).toBe(0);
    const events: CiEvent[] = [];
    queue.observe((event) => void events.push(event), new AbortController().signal);
    expect(events).toEqual([]);
    end(first);
    expect(events).toEqual(['gpu', 'more'].map((pool) => ({ kind: 'waiting', pool })));
    expect([next(), next('more')]).toEqual([second, other]);
  });

  it('hold a job that was to go before others, for which devices are kept, once its owner has got others', () => {
    put(ada, group('lab', { cards: 1 }));
    const [first, ahead] = [submit(ada), submit(ada, { pool: 'more' })];
    expect(queue.jobs.waits?.('more', ahead)).toMatchObject({ job: ahead });
    begin(first);
    expect(queue.jobs.waits?.('more', ahead)).toBe(null);
  });

  it('are looked at once for all jobs of somebody who has many that wait', () => {
    put(ada, group('lab', { cards: 1 }));
    begin(submit(ada));
    const job = jobRequest.parse({ command: ['true'], pool: 'gpu' });
    queue.submitArray({ job, indices: Array.from({ length: 500 }, (_, at) => at) }, { uid: ada, name: 'ada' });
    const theirs = submit(bob, { pool: 'more' });
    put(bob, group('other'));
    const asked = vi.spyOn(table, 'get');
    expect([...(queue.jobs.line?.('gpu') ?? [])]).toEqual([]);
    expect([...(queue.jobs.line?.('more') ?? [])]).toMatchObject([{ job: theirs }]);
    expect(asked.mock.calls.length).toBeLessThan(20);
  });

  it('are of all in a group, or of each, and never of jobs without cards', () => {
    const limits = group('lab', { cards: 3, cardsEach: 1 });
    put(ada, limits);
    put(bob, limits);
    begin(submit(ada));
    const waits = submit(ada);
    expect(queue.job(waits)?.reason).toBe('ada has 1 of at most 1 card at once, and it asks for one');
    expect(next('cpu')).toBe(null);
    const cpu = submit(ada, { pool: 'cpu' });
    expect(next('cpu')).toBe(cpu);
    // Somebody who has to wait holds up nobody else.
    const bobs = submit(bob);
    expect(next()).toBe(bobs);
  });

  it('hold for the line, too, from which a job of another size may be taken', () => {
    put(ada, group('lab', { cardsEach: 1 }));
    begin(submit(ada));
    submit(ada);
    const [first, second] = [submit(bob), submit(bob)];
    expect([...(queue.jobs.line?.('gpu') ?? [])].map(({ job }) => job)).toEqual([first, second]);
  });

  it('do not let a job fail that asks for more than there ever are', () => {
    put(ada, group('lab', { cards: 0 }));
    expect(queue.job(submit(ada))).toMatchObject({
      state: 'queued',
      reason: 'it asks for one, and the group "lab" may have 0 at once',
    });
  });
});

describe('turns', () => {
  it('go to who has used least, and say so', () => {
    work(submit(ada), 4);
    work(submit(bob), 1);
    const [adas, bobs] = [submit(ada), submit(bob)];
    expect(next()).toBe(bobs);
    expect(queue.plan()).toEqual([
      {
        slot: 'gpu',
        intent: `job ${bobs} is next`,
        because: 'bob has used 1.0 card-hours lately, ada has used 3.7 card-hours lately',
      },
    ]);
    commit({ change: 'started', job: bobs, agent: `a-${bobs}` });
    expect(next()).toBe(adas);
  });

  it('survive a restart, also that of a job that runs', async () => {
    work(submit(ada), 4);
    const runs = submit(bob);
    begin(runs);
    await queue.close();
    store.close();
    now += 10 * hour;
    open();
    const [adas] = [submit(ada), submit(bob)];
    expect(next()).toBe(adas);
    end(runs);
    await queue.close();
    store.close();
    open();
    expect(next()).toBe(adas);
  });

  it('count cards and agents without cards apart', () => {
    work(submit(ada, { pool: 'cpu' }), 20);
    work(submit(bob), 1);
    const adas = submit(ada);
    submit(bob);
    expect(next()).toBe(adas);
  });

  it('alternate when agents become free at the same moment', () => {
    const jobs = [submit(ada), submit(ada), submit(bob), submit(bob)];
    const got: string[] = [];
    for (let n = 0; n < 4; n++) {
      const job = next() ?? '';
      got.push(job);
      commit({ change: 'reserved', job, agent: `a-${job}` });
    }
    expect(got.map((job) => (jobs.indexOf(job) < 2 ? 'ada' : 'bob'))).toEqual(['ada', 'bob', 'ada', 'bob']);
  });

  it('forget nothing of a commit that is undone, and count nothing of it', () => {
    const job = submit(ada);
    begin(job);
    now += hour;
    expect(() =>
      store.transaction({ durable: false }, () => {
        queue.jobs.record({ change: 'ended', job, agent: `a-${job}`, result: { kind: 'code', code: 0 } });
        throw new Error('no');
      }),
    ).toThrow('no');
    queue.jobs.rolledBack();
    expect(store.shares.all()).toEqual({});
    end(job);
    expect(store.shares.all()['1 cards']?.amount).toBeCloseTo(0.986, 2);
  });

  it('without people are as they were', async () => {
    await queue.close();
    queue = createOwnQueue({
      store,
      pools: [
        { name: 'gpu', runtime: null, timeout: null, recipe: bareRecipe, devices: { ...oneDevice, count: 0 }, standby: true },
      ],
    });
    const [a1, a2, b1] = ['a', 'a', 'b'].map((user) => submit(null, { user }));
    const got = [a1, a2, b1].map(() => {
      const job = next() ?? '';
      commit({ change: 'reserved', job, agent: `x-${job}` });
      return job;
    });
    expect(got).toEqual([a1, b1, a2]);
    expect(queue.plan()).toEqual([]);
    expect(queue.job(submit(null))).toMatchObject({ ahead: 0 });
  });
});

it('a person’s job runs no longer than its pool says, since others wait; one of root or an operator may', () => {
  expect(() => submit(ada, { pool: 'more', timeout: hour + 1 })).toThrow(expect.objectContaining({ code: 'E_API_ROLE' }));
  submit(ada, { pool: 'more', timeout: hour });
  submit(ada, { pool: 'gpu', timeout: hour + 1 });
  submit(null, { pool: 'more', timeout: hour + 1 });
  put(ada, group('staff', { role: 'operate' }));
  submit(ada, { pool: 'more', timeout: hour + 1 });
});

describe('rights that change', () => {
  it('hold jobs of who is in no group any more, may only look, or has lost the pool, and let them go again', () => {
    const job = submit(ada);
    for (const [its, why] of [
      [null, 'user 1 is in no group of "people" any more'],
      [group('guests', { role: 'look' }), 'ada is in the group "guests", which may only look'],
      [group('lab', { pools: ['cpu'] }), 'ada is in the group "lab", which may not run jobs in pool "gpu"'],
    ] as const) {
      if (its === null) table.delete(ada);
      else put(ada, its);
      expect(next()).toBe(null);
      expect(queue.job(job)).toMatchObject({ state: 'queued', reason: why });
    }
    const events: CiEvent[] = [];
    queue.observe((event) => void events.push(event), new AbortController().signal);
    put(ada, group('lab'));
    changed();
    expect(events).toEqual([{ kind: 'waiting', pool: 'gpu' }]);
    expect(next()).toBe(job);
  });

  it('hold a job with an image that its group may not use any more', () => {
    put(ada, group('lab', { images: ['debian:*'] }));
    const job = submit(ada, { image: 'debian:12' });
    expect(next()).toBe(job);
    put(ada, group('lab'));
    expect(queue.job(job)?.reason).toBe('the group "lab" of ada may use only the image of the pool');
    expect(next()).toBe(null);
  });

  it('a job is not moved where its owner may not run jobs, by nobody', () => {
    put(ada, group('lab', { pools: ['gpu'] }));
    expect(() => queue.move(submit(ada), 'more')).toThrow(expect.objectContaining({ code: 'E_API_ROLE' }));
  });
});

it('an id whose job is forgotten is not taken while output of that job is left, which would be that of the new one', async () => {
  const id = 'abcdefabcdef';
  submit(ada, { id });
  store.history.made({ agent: `a-${id}`, pool: 'gpu', slot: 'gpu/1', name: 'n', madeAt: now });
  store.history.released(`a-${id}`, id, now);
  work(id, 1);
  commit({ change: 'settled', job: id, agent: `a-${id}` });
  queue.jobs.syncing?.()();
  store.history.ended(`a-${id}`, null, now + 1);
  await queue.prune(now + 1, 0);
  expect(queue.job(id)).toBe(null);
  expect(() => submit(bob, { id })).toThrow(expect.objectContaining({ code: 'E_API_ROLE' }));
  await queue.prune(now + 2, 0);
  expect(submit(bob, { id })).toBe(id);
});

describe('volumes', () => {
  const mount = (host: string, readOnly = true) => ({
    volumes: [{ host, container: '/v', readOnly, variable: null, cache: null }],
  });

  it('are those of the group, below its folders, and no more writable than there', () => {
    const [data, scratch, away] = ['data', 'scratch', 'away'].map((name) => join(dir.path, name));
    for (const each of [data, scratch, away, `${data}/deep`, `${data}2`]) mkdirSync(each ?? '');
    symlinkSync(away ?? '', `${scratch}/link`);
    put(
      ada,
      group('lab', {
        volumes: [
          { host: data ?? '', readOnly: true },
          { host: scratch ?? '', readOnly: false },
        ],
      }),
    );
    for (const good of [mount(data ?? ''), mount(`${data}/deep`), mount(scratch ?? '', false)]) submit(ada, good);
    for (const bad of [
      mount(away ?? ''),
      mount('/'),
      mount(`${data}2`),
      mount(data ?? '', false),
      mount(`${scratch}/link`, false),
      mount(`${scratch}/link`),
    ])
      expect(() => submit(ada, bad), bad.volumes[0]?.host).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST' }));
  });

  it('are checked again when the job starts: a link that was made since, and a folder that the group has lost', () => {
    const [scratch, away] = ['scratch', 'away'].map((name) => join(dir.path, name));
    for (const each of [scratch, away, `${scratch}/own`]) mkdirSync(each ?? '');
    const volumes = [{ host: scratch ?? '', readOnly: false }];
    put(ada, group('lab', { volumes }));
    const job = submit(ada, mount(`${scratch}/own`, false));
    expect(queue.jobs.recipeFor(job, bareRecipe)?.mounts).toMatchObject([{ within: [scratch] }]);
    put(ada, group('lab'));
    expect(() => queue.jobs.recipeFor(job, bareRecipe)).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST' }));
    put(ada, group('lab', { volumes }));
    rmSync(`${scratch}/own`, { recursive: true });
    symlinkSync(away ?? '', `${scratch}/own`);
    expect(() => queue.jobs.recipeFor(job, bareRecipe)).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST' }));
  });
});
