import { existsSync, mkdirSync, readdirSync, rmdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { bareRecipe } from '../../../test/kit/recipe.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import { type JobRequest, jobRequest } from '../../contract/job.ts';
import type { Change } from '../../core/slot.ts';
import type { AgentContext, AgentFiles, CiEvent } from '../../ports/ci-service.ts';
import type { Mount, Recipe } from '../../ports/runtime.ts';
import { openStore, type Store } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { newJob } from './job.ts';
import { createOwnQueue, type OwnQueue } from './own-queue.ts';
import type { QueuePool } from './request.ts';

const recipe: Recipe = { ...bareRecipe, image: 'debian:stable-slim', pull: 'missing', pids: 4096, oomScoreAdj: 500 };
const pool = (name: string, timeout: number | null = null): QueuePool => ({
  name,
  runtime: null,
  timeout,
  recipe,
  devices: { ...oneDevice, count: 0 },
  standby: true,
});

const never = new AbortController().signal;
const dir = eachScratch();
let store: Store;
let queue: OwnQueue;
let now: number;

beforeEach(() => {
  now = 1_000_000;
  open();
});
afterEach(async () => {
  await queue.close();
  store.close();
});

function open(
  pools = [pool('default'), pool('gpu', 60_000)],
  temporary: string | null = null,
  mountProblem?: (mount: Mount) => string | null,
): void {
  store = openStore(join(dir.path, 'state'));
  // A host knows why jobs wait only once all of it is open.
  let isOpen = false;
  const reasonFor = (name: string): string => {
    if (!isOpen) throw new RangeError('the host is not open yet');
    return `${name} is busy`;
  };
  const clock = { ...systemClock, wall: () => now };
  queue = createOwnQueue({ store, pools, clock, reasonFor, artifactLimit: 4096, temporary, ...(mountProblem && { mountProblem }) });
  isOpen = true;
}

function reopen(...how: Parameters<typeof open>): void {
  store.close();
  open(...how);
}

const submit = (more: Partial<JobRequest> = {}) => queue.submit(jobRequest.parse({ command: ['true'], pool: 'default', ...more }));

function commit(...changes: Change[]): void {
  store.transaction({ durable: false }, () => {
    for (const change of changes) queue.jobs.record(change);
  });
  queue.jobs.committed();
}

function sync(): void {
  store.syncNow();
  queue.jobs.syncing()();
}

function run(job: string, agent: string): void {
  commit({ change: 'assigned', job, agent });
  commit({ change: 'started', job, agent });
}

function end(job: string, agent: string, code = 0): void {
  commit({ change: 'ended', job, agent, result: { kind: 'code', code } });
}

const filesOf = (all: () => Promise<Readable>): AgentFiles => ({ all, folder: async () => null });

const context = (job: string, agent = 'a'): AgentContext => ({
  agent,
  pool: 'default',
  slot: 'default/1',
  name: 'box-1',
  workspace: '/workspace',
  job,
  devices: [],
  cuda: null,
  ask: () => Promise.reject(new Error('no sandbox to ask')),
  isRemote: false,
  hostAddress: async () => '127.0.0.1',
});

function tar(entries: Parameters<ReturnType<typeof pack>['entry']>[0][], bodies: Record<string, string> = {}): Readable {
  const packed = pack();
  for (const entry of entries) {
    const body = bodies[entry.name];
    if (body === undefined) packed.entry(entry);
    else packed.entry(entry, body);
  }
  packed.finalize();
  return Readable.from(packed, { objectMode: false });
}

async function listTar(from: Readable | null): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  const entries = extract();
  from?.pipe(entries as unknown as NodeJS.WritableStream);
  for await (const entry of entries) {
    const text: Buffer[] = [];
    for await (const part of entry) if (Buffer.isBuffer(part)) text.push(part);
    found[entry.header.name] =
      entry.header.type === 'file' ? Buffer.concat(text).toString() : `${entry.header.type} ${entry.header.linkname}`;
  }
  return found;
}

describe('submitting', () => {
  it('hands out by priority, then in order, per pool', () => {
    const [low, first, second, high] = [submit({ priority: -1 }), submit(), submit(), submit({ priority: 5 })];
    const other = submit({ pool: 'gpu' });
    const order = [];
    for (let job = queue.jobs.next('default', null); job !== null; job = queue.jobs.next('default', null)) {
      order.push(job.job);
      run(job.job, `a${order.length}`);
    }
    expect(order).toEqual([high.id, first.id, second.id, low.id]);
    expect(queue.jobs.next('gpu', null)).toEqual({ job: other.id, limit: 60_000, cold: false });
    expect(queue.jobs.next('nowhere', null)).toBeNull();
  });

  it('keeps order, progress and wishes over a restart', () => {
    const [first, second] = [submit({ timeout: 5_000 }), submit()];
    reopen();
    expect(queue.jobs.next('default', null)).toEqual({ job: first.id, limit: 5_000, cold: false });
    run(first.id, 'a');
    queue.cancel(first.id);
    reopen();
    const seen: CiEvent[] = [];
    queue.observe((event) => seen.push(event), never);
    expect(seen).toEqual([
      { kind: 'waiting', pool: 'default' },
      { kind: 'cancel', job: first.id, agent: 'a', grace: null },
    ]);
    expect(queue.jobs.next('default', null)?.job).toBe(second.id);
    expect(queue.list({ all: false, pool: null }).map((job) => job.state)).toEqual(['running', 'queued']);
  });

  it('names the time limit that a job ran past, unless its pool had another one then', () => {
    const evidenceOf = (id: string, ran: number) => {
      run(id, id);
      now += ran;
      commit({ change: 'ended', job: id, agent: id, result: { kind: 'timeout' } }, { change: 'settled', job: id, agent: id });
      return queue.job(id)?.verdict?.evidence;
    };
    const [own, pools, before] = [submit({ timeout: 6_000 }), submit({ pool: 'gpu' }), submit({ pool: 'gpu' })];
    expect(evidenceOf(own.id, 6_000)).toEqual(['time limit 6s']);
    expect(evidenceOf(pools.id, 60_500)).toEqual(['time limit 1m']);
    expect(evidenceOf(before.id, 30_000)).toEqual(['time limit']);
  });

  it('takes the pool called default, the only one or the first, and says which there are', () => {
    expect(submit({ pool: null }).pool).toBe('default');
    expect(() => submit({ pool: 'cpu' })).toThrow(
      expect.objectContaining({ code: 'E_POOL_UNKNOWN', hint: 'There are: default, gpu.' }),
    );
    reopen([pool('one'), pool('two')]);
    expect(submit({ pool: null }).pool).toBe('one');
    reopen([pool('one')]);
    expect(submit({ pool: null }).pool).toBe('one');
  });

  it('keeps jobs of a pool that left the config, with the reason', () => {
    const job = submit({ pool: 'gpu' });
    expect(job.reason).toBe('gpu is busy');
    reopen([pool('default')]);
    expect(queue.job(job.id)).toMatchObject({ state: 'queued', reason: expect.stringContaining('"gpu"') });
  });

  it.each([
    ['a NUL in the command', { command: ['a\0'] }],
    ['an odd variable', { env: { 'a=b': '' } }],
    ['an artifact above the workspace', { artifacts: ['../x'] }],
    ['a relative volume', { volumes: [{ host: 'x', container: '/x', readOnly: true, variable: null, cache: null }] }],
    ['devices no pool has', { devices: 2 }],
    ['a workspace nobody sent', { workspace: 'deadbeef' }],
    ['a workspace elsewhere', { workspace: '../../etc/passwd' }],
  ])('refuses %s and queues nothing', (_, request) => {
    expect(() => submit(request)).toThrow(OnejobError);
    expect(queue.jobs.next('default', null)).toBeNull();
    expect(queue.unfinished).toBe(0);
  });

  it('says how many jobs go before one', () => {
    const [first, second, high] = [submit(), submit(), submit({ priority: 1 })];
    submit({ pool: 'gpu' });
    expect([first, second, high].map(({ id }) => queue.job(id)?.ahead)).toEqual([1, 2, 0]);
    run(high.id, 'a');
    expect([first, second, high].map(({ id }) => queue.job(id)?.ahead)).toEqual([0, 1, undefined]);
  });

  it('lists the newest when there are more than asked for', () => {
    const ids = Array.from({ length: 5 }, () => submit().id);
    for (const all of [true, false]) {
      expect(queue.list({ all, pool: null, limit: 2 }).map((job) => job.id)).toEqual(ids.slice(3));
      expect(queue.list({ all, pool: null })).toHaveLength(5);
    }
  });

  it('can be checked before the workspace is there, and queues nothing', () => {
    const wanted = jobRequest.parse({ command: ['true'], pool: 'default' });
    queue.verify(wanted);
    expect(() => queue.verify({ ...wanted, pool: 'nope' })).toThrow(expect.objectContaining({ code: 'E_POOL_UNKNOWN' }));
    expect(() => queue.verify({ ...wanted, artifacts: ['../x'] })).toThrow(OnejobError);
    expect(queue.unfinished).toBe(0);
  });
});

describe('what a job brings itself', () => {
  const data: Mount = { host: '/data', container: '/in', readOnly: true, variable: null, cache: null };

  it('runs in the pool’s standby when it asks for what that has', () => {
    const job = submit({ image: 'debian:stable-slim' });
    expect(queue.jobs.next('default', null)?.cold).toBe(false);
    expect(queue.jobs.recipeFor(job.id, recipe)).toBeNull();
  });

  it('is not behind others for a slot that can have only its own image, and keeps its place otherwise', () => {
    const next = (only?: 'ownImage') => queue.jobs.next('default', null, only)?.job;
    const first = submit();
    expect(submit({ memory: 2 ** 30 }).cold).toBe(true);
    expect([next(), next('ownImage')]).toEqual([first.id, undefined]);
    const [second, third] = [submit({ image: 'other:1' }), submit({ image: 'other:1' })];
    expect([next(), next('ownImage')]).toEqual([first.id, second.id]);
    commit({ change: 'reserved', job: second.id, agent: 'a1' });
    expect(next('ownImage')).toBe(third.id);
    commit({ change: 'returned', job: second.id, agent: 'a1', failure: null });
    expect(next('ownImage')).toBe(second.id);
    queue.cancel(second.id);
    queue.cancel(third.id);
    expect([next(), next('ownImage')]).toEqual([first.id, undefined]);
  });

  it('starts cold with its own image and volumes', () => {
    const job = submit({ image: 'other:1', volumes: [data] });
    expect(job.cold).toBe(true);
    expect(queue.jobs.next('default', null)?.cold).toBe(true);
    const base = {
      ...recipe,
      mounts: [
        { ...data, host: '/pool' },
        { ...data, container: '/kept' },
      ],
    };
    expect(queue.jobs.recipeFor(job.id, base)).toEqual({
      ...base,
      image: 'other:1',
      mounts: [
        { ...data, container: '/kept' },
        { ...data, real: data.host },
      ],
    });
  });

  it('has an image that everybody may pull if a pipeline named it', () => {
    const job = submit({ image: 'other:1', attended: true });
    expect(queue.jobs.recipeFor(job.id, recipe)).toMatchObject({ image: 'other:1', publicOnly: true });
    expect(queue.jobs.recipeFor(submit({ image: 'other:1' }).id, recipe)).not.toHaveProperty('publicOnly');
  });

  it('is looked at again before its sandbox is made: a folder may have become a link while it waited', () => {
    let why: string | null = null;
    reopen([pool('default')], null, () => why);
    const job = submit({ volumes: [data] });
    expect(queue.jobs.recipeFor(job.id, recipe)?.mounts).toEqual([{ ...data, real: data.host }]);
    why = 'it shows secrets';
    expect(() => queue.jobs.recipeFor(job.id, recipe)).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST', retry: false }));
    expect(() => submit({ volumes: [data] })).toThrow('Cannot mount /data at /in: it shows secrets.');
  });

  it('gets what was checked: a folder that becomes a link to another place in between is that place for both', () => {
    const real = join(dir.path, 'real');
    const host = join(dir.path, 'link');
    mkdirSync(real);
    mkdirSync(host);
    const asked: string[] = [];
    reopen([pool('default')], null, (mount) => {
      asked.push(mount.host);
      return mount.host === real ? 'it shows secrets' : null;
    });
    const job = submit({ volumes: [{ ...data, host }] });
    rmdirSync(host);
    symlinkSync(real, host);
    expect(() => queue.jobs.recipeFor(job.id, recipe)).toThrow(`Cannot mount ${host} at /in: it shows secrets.`);
    expect(asked.slice(1)).toEqual([host, real]);
  });

  it('has no volume in another one that it can write to: its next attempt would get whatever it puts there', () => {
    const volumes = (readOnly: boolean) => [
      { ...data, host: '/data', container: '/all', readOnly },
      { ...data, host: '/data/one', container: '/one' },
    ];
    expect(() => submit({ volumes: volumes(false) })).toThrow(
      'Cannot mount /data/one at /one: it lies in /data, which the job can write to.',
    );
    expect(submit({ volumes: volumes(true) }).cold).toBe(true);
  });

  it('gets a script with its place in the environment', async () => {
    const job = submit({ command: ['echo', 'hi'], env: { A: '1', ONEJOB_POOL: 'fake', CI: 'false' } });
    run(job.id, 'a');
    const { script, files } = await queue.register(context(job.id));
    expect(files).toBeNull();
    expect(script.split('\n')).toEqual([
      "cd '/workspace' || exit 125",
      'unset OLDPWD',
      "export CI='false'",
      "export A='1'",
      "export ONEJOB_POOL='default'",
      "export ONEJOB='true'",
      `export ONEJOB_JOB_ID='${job.id}'`,
      "export ONEJOB_SLOT='default/1'",
      "export ONEJOB_AGENT='box-1'",
      "export ONEJOB_ATTEMPT='1'",
      "export ONEJOB_WORKSPACE='/workspace'",
      "exec 'echo' 'hi'",
    ]);
  });
});

describe('a result', () => {
  it('is announced when it is on disk and everything is settled, also to those who wait later', async () => {
    const job = submit();
    let told = 0;
    const waiting = queue.settled(job.id, never).then((seen) => {
      told += 1;
      return seen;
    });
    run(job.id, 'a');
    end(job.id, 'a', 4);
    sync();
    commit({ change: 'settled', job: job.id, agent: 'a' });
    await Promise.resolve();
    expect(told).toBe(0);
    sync();
    expect(await waiting).toMatchObject({ state: 'done', result: { kind: 'code', code: 4 }, attempt: 1, agent: 'a' });
    expect(await queue.settled(job.id, never)).toMatchObject({ state: 'done' });
    expect(queue.unfinished).toBe(0);
    reopen();
    expect(queue.job(job.id)).toMatchObject({ state: 'done', result: { kind: 'code', code: 4 } });
    expect(queue.list({ all: false, pool: null })).toEqual([]);
    expect(queue.list({ all: true, pool: 'default' })).toHaveLength(1);
  });

  it('stops being waited for when the waiter goes away', async () => {
    const abort = new AbortController();
    const waiting = queue.settled(submit().id, abort.signal);
    abort.abort(new Error('left'));
    await expect(waiting).rejects.toThrow('left');
    await expect(queue.settled('nobody', never)).rejects.toThrow(/no job nobody/);
  });

  it('is undone in memory when its commit was', () => {
    const job = submit();
    store.transaction({ durable: false }, () => {});
    expect(() =>
      store.transaction({ durable: false }, () => {
        queue.jobs.record({ change: 'assigned', job: job.id, agent: 'a' });
        expect(queue.jobs.next('default', null)).toBeNull();
        throw new Error('no');
      }),
    ).toThrow('no');
    queue.jobs.rolledBack();
    expect(queue.jobs.next('default', null)?.job).toBe(job.id);
    expect(queue.job(job.id)).toMatchObject({ state: 'queued', attempt: 0 });
  });

  it('is followed by listeners, the end only once it is on disk', () => {
    const states: string[] = [];
    const leave = queue.onChange((job) => states.push(job.state));
    const job = submit();
    run(job.id, 'a');
    end(job.id, 'a');
    expect(states).toEqual(['queued', 'assigned', 'running']);
    sync();
    leave();
    commit({ change: 'settled', job: job.id, agent: 'a' });
    sync();
    expect(states).toEqual(['queued', 'assigned', 'running', 'settling']);
  });

  it('that is lost puts a job with retries back to its place and says so', () => {
    const [first, second] = [submit({ retries: 1 }), submit()];
    const seen: CiEvent[] = [];
    queue.observe((event) => seen.push(event), never);
    run(first.id, 'a');
    seen.length = 0;
    commit({ change: 'ended', job: first.id, agent: 'a', result: { kind: 'lost', reason: 'the Engine was restarted' } });
    expect(seen).toEqual([{ kind: 'waiting', pool: 'default' }]);
    expect(queue.jobs.next('default', null)?.job).toBe(first.id);
    expect(queue.job(first.id)?.reason).toContain('the Engine was restarted');
    expect(second.state).toBe('queued');
  });
});

describe('cancelling', () => {
  it('ends a waiting job at once and durably', async () => {
    const job = submit();
    const waiting = queue.settled(job.id, never);
    expect(queue.cancel(job.id)).toMatchObject({ state: 'done', result: { kind: 'cancelled' } });
    expect(await waiting).toMatchObject({ state: 'done' });
    expect(queue.cancel(job.id)).toMatchObject({ state: 'done' });
    expect(queue.jobs.next('default', null)).toBeNull();
    expect(() => queue.cancel('nobody')).toThrow(/no job nobody/);
  });

  it('asks the agent of a job under way, once', () => {
    const job = submit();
    commit({ change: 'reserved', job: job.id, agent: 'a' });
    const seen: CiEvent[] = [];
    queue.observe((event) => seen.push(event), never);
    queue.cancel(job.id);
    queue.cancel(job.id);
    expect(seen).toEqual([{ kind: 'cancel', job: job.id, agent: 'a', grace: null }]);
    commit({ change: 'returned', job: job.id, agent: 'a', failure: null });
    sync();
    expect(queue.job(job.id)).toMatchObject({ state: 'done', result: { kind: 'cancelled' } });
  });
});

describe('workspaces', () => {
  const files = () => readdirSync(join(store.dir, 'workspaces'));
  const send = (from: Readable) => queue.putWorkspace(from, never);

  it('travel into the job and are gone when it is done', async () => {
    const id = await send(tar([{ name: 'a' }], { a: 'hello' }));
    const job = submit({ workspace: id });
    expect(() => submit({ workspace: id })).toThrow(/already belongs to another job/);
    reopen();
    run(job.id, 'a');
    const { files: open } = await queue.register(context(job.id));
    expect(await listTar((await open?.()) ?? null)).toEqual({ a: 'hello' });
    end(job.id, 'a');
    commit({ change: 'settled', job: job.id, agent: 'a' });
    expect(files()).toHaveLength(1);
    sync();
    await queue.close();
    expect(files()).toEqual([]);
  });

  it('leave nothing when sending breaks off, also by a kill', async () => {
    const broken = Readable.from(
      (async function* () {
        yield Buffer.alloc(5000);
        throw new Error('client went away');
      })(),
    );
    await expect(send(broken)).rejects.toThrow('client went away');
    expect(files()).toEqual([]);
    const { writeFileSync } = await import('node:fs');
    writeFileSync(join(store.dir, 'workspaces', 'x.tar.y.part'), 'torn');
    reopen();
    expect(files()).toEqual([]);
  });

  it('that nobody uses go after an hour; those of unfinished jobs stay', async () => {
    const [used] = [await send(tar([])), await send(tar([]))];
    submit({ workspace: used });
    await queue.prune(Date.now() + 59 * 60_000, 1);
    expect(files()).toHaveLength(2);
    await queue.prune(Date.now() + 61 * 60_000, 1);
    expect(files()).toEqual([`${used}.tar`]);
  });
});

describe('artifacts', () => {
  const entries = () =>
    tar(
      [
        { name: './', type: 'directory' },
        { name: './dist/', type: 'directory' },
        { name: './dist/app.js', mode: 0o755 },
        { name: './dist/.map' },
        { name: './dist/link', type: 'symlink', linkname: '../../etc/passwd' },
        { name: './dist/same', type: 'link', linkname: './dist/app.js' },
        { name: './dist/other', type: 'link', linkname: './src/big' },
        { name: './dist/pipe', type: 'fifo' },
        { name: './src/big' },
        { name: './dist/huge' },
      ],
      { './dist/app.js': 'app', './dist/.map': '', './src/big': 'x'.repeat(100_000), './dist/huge': 'y'.repeat(5_000) },
    );
  const settle = (job: string, from: () => Promise<Readable>) => queue.settle(context(job), filesOf(from), never);
  /** Its files never come to an end. */
  function settleStuck(job: string, signal = never, hurry?: AbortSignal) {
    const stuck = new Readable({ read() {} });
    const files = filesOf(async () => stuck);
    return { stuck, settling: queue.settle(context(job), files, signal, hurry) };
  }
  function ended(code: number): string {
    const { id } = submit({ artifacts: ['dist'] });
    run(id, 'a');
    end(id, 'a', code);
    return id;
  }

  it('are kept from a failed job too, with a note on what was left out', async () => {
    const id = ended(1);
    await settle(id, async () => entries());
    await settle(id, async () => Promise.reject(new Error('not read twice')));
    commit({ change: 'settled', job: id, agent: 'a' });
    sync();
    expect(await listTar(queue.artifacts(id))).toEqual({
      dist: 'directory null',
      'dist/app.js': 'app',
      'dist/.map': '',
      'dist/link': 'symlink ../../etc/passwd',
      'dist/same': 'link dist/app.js',
    });
    const { reason } = queue.job(id) ?? {};
    expect(reason).toMatch(/Left out of the artifacts, because a job may keep .* at most: dist\/huge\./);
    expect(reason).toContain('because they are neither files nor links: dist/pipe.');
    expect(reason).toContain('dist/other (of ./src/big)');
  });

  it('that match nothing leave no file and say so', async () => {
    const { id } = submit({ artifacts: ['none/**'] });
    run(id, 'a');
    end(id, 'a');
    await settle(id, async () => entries());
    expect(queue.artifacts(id)).toBeNull();
    expect(queue.job(id)?.reason).toBe('No file matched the artifacts none/**.');
    expect(readdirSync(join(store.dir, 'artifacts'))).toEqual([]);
  });

  it('of a stream that breaks off are given up after a few tries, leaving nothing', async () => {
    const id = ended(0);
    const cut = async () => Readable.from([(await buffer(entries())).subarray(0, 2000)]);
    await expect(settle(id, cut)).rejects.toThrow();
    await expect(settle(id, cut)).rejects.toThrow();
    await settle(id, cut);
    expect(queue.job(id)?.reason).toContain('Failed to keep');
    expect(readdirSync(join(store.dir, 'artifacts'))).toEqual([]);
  });

  it('end at once when the manager stops', async () => {
    const id = ended(0);
    const abort = new AbortController();
    const { stuck, settling } = settleStuck(id, abort.signal);
    abort.abort();
    await expect(settling).rejects.toThrow();
    expect(stuck.destroyed).toBe(true);
    expect(queue.job(id)?.reason).toBeNull();
  });

  it('are given up when the job is cancelled meanwhile, and its result stays', async () => {
    const id = ended(0);
    const { stuck, settling } = settleStuck(id);
    queue.cancel(id);
    await settling;
    expect(stuck.destroyed).toBe(true);
    commit({ change: 'settled', job: id, agent: 'a' });
    expect(queue.job(id)).toMatchObject({
      state: 'done',
      result: { kind: 'code', code: 0 },
      reason: 'Failed to keep its artifacts: the job was cancelled while onejob read them.',
    });
  });

  it('are given up when the manager no longer waits', async () => {
    const id = ended(0);
    const hurry = new AbortController();
    const { settling } = settleStuck(id, never, hurry.signal);
    hurry.abort('onejob was stopped while it was reading them');
    await settling;
    expect(queue.job(id)?.reason).toContain('onejob was stopped while it was reading them');
  });

  it('are given up by the manager that finds them begun three times', async () => {
    const id = ended(0);
    for (let times = 0; times < 3; times += 1) {
      void settle(id, () => new Promise<Readable>(() => {}));
      await new Promise((resolve) => setImmediate(resolve));
      reopen();
    }
    await settle(id, () => Promise.reject(new Error('unread')));
    expect(queue.job(id)?.reason).toContain('onejob was killed 3 times while it read them');
  });

  it('are forgotten with their job', async () => {
    const id = ended(0);
    await settle(id, async () => entries());
    commit({ change: 'settled', job: id, agent: 'a' });
    sync();
    await queue.prune(now + 1_000, 5_000);
    expect(queue.job(id)).not.toBeNull();
    await queue.prune(now + 10_000, 5_000);
    expect(queue.job(id)).toBeNull();
    expect(existsSync(join(store.dir, 'artifacts', `${id}.tar`))).toBe(false);
  });
});

describe('a job handed in again under the id its client chose', () => {
  const id = '0123456789ab';

  it('is the same job: while it waits, after a restart, and when it is over', () => {
    expect(submit({ id }).id).toBe(id);
    expect(submit({ id }).state).toBe('queued');
    reopen();
    expect(submit({ id }).state).toBe('queued');
    expect(queue.list({ all: true, pool: null })).toHaveLength(1);
    run(id, 'a');
    commit({ change: 'ended', job: id, agent: 'a', result: { kind: 'code', code: 3 } }, { change: 'settled', job: id, agent: 'a' });
    sync();
    expect(submit({ id })).toMatchObject({ state: 'done', result: { kind: 'code', code: 3 } });
    expect(queue.jobs.next('default', null)).toBeNull();
  });
});

describe('a temporary daemon', () => {
  it('hands out no job of a daemon that stays, says why it waits, and can cancel it', () => {
    const { id } = submit();
    const other = submit();
    reopen(undefined, '');
    expect([queue.jobs.next('default', null), queue.waiting('default'), queue.unfinished]).toEqual([null, 0, 0]);
    expect(queue.job(id)).toMatchObject({ state: 'queued', reason: expect.stringContaining('"onejob up"') });
    expect(queue.stranded()).toMatchObject({ waiting: new Map(), leftToOthers: 2 });
    expect(queue.cancel(id).state).toBe('done');
    reopen();
    expect(queue.jobs.next('default', null)?.job).toBe(other.id);
  });

  it('hands out those of another temporary one with the same config only; one that stays hands out all', () => {
    reopen(undefined, '/etc/a.yml');
    const { id } = submit();
    expect(queue.jobs.next('default', null)?.job).toBe(id);
    reopen(undefined, '/etc/b.yml');
    expect([queue.jobs.next('default', null), queue.job(id)?.reason]).toEqual([null, expect.stringContaining('/etc/a.yml')]);
    reopen(undefined, '/etc/a.yml');
    expect(queue.jobs.next('default', null)?.job).toBe(id);
    reopen();
    expect([queue.jobs.next('default', null)?.job, queue.stranded().leftToOthers]).toEqual([id, 0]);
  });

  it('keeps the changes of a held job that runs, and gives one that comes back to nobody', () => {
    const { id } = submit();
    commit({ change: 'reserved', job: id, agent: 'a1' });
    reopen(undefined, '');
    expect(queue.isHeld(id)).toBe(true);
    commit({ change: 'returned', job: id, agent: 'a1', failure: null });
    expect([queue.job(id)?.state, queue.jobs.next('default', null)]).toEqual(['queued', null]);
  });
});

function runAndEnd(job: string, agent: string, code: number): void {
  run(job, agent);
  commit({ change: 'ended', job, agent, result: { kind: 'code', code } });
  commit({ change: 'settled', job, agent });
}

describe('an attended job', () => {
  it('lets its clients into its sandbox while it runs, as no other job does', () => {
    const [attended, other] = [submit({ attended: true }), submit()];
    expect(queue.attendedBy(attended.id)).toBeNull();
    run(attended.id, 'a1');
    run(other.id, 'a2');
    expect(queue.attendedBy(attended.id)).toBe('a1');
    reopen();
    expect(queue.attendedBy(attended.id)).toBe('a1');
    expect(queue.attendedBy(other.id)).toBeNull();
    end(attended.id, 'a1');
    expect(queue.attendedBy(attended.id)).toBeNull();
    expect(queue.attendedBy('nothing')).toBeNull();
  });
});

describe('a job that needs others', () => {
  const events = (): CiEvent[] => {
    const seen: CiEvent[] = [];
    queue.observe((event) => seen.push(event), never);
    return seen;
  };

  it('starts once all of them have passed, and says meanwhile which it waits for', () => {
    const [a, b] = [submit(), submit()];
    const last = submit({ needs: [a.id, b.id] });
    expect(last).toMatchObject({ state: 'queued', needs: [a.id, b.id] });
    expect(last.reason).toBe(`it needs job ${a.id}, ${b.id} to pass first`);
    runAndEnd(a.id, 'a1', 0);
    expect(queue.waiting('default')).toBe(1);
    const seen = events();
    runAndEnd(b.id, 'a2', 0);
    expect(seen).toContainEqual({ kind: 'waiting', pool: 'default' });
    expect(queue.jobs.next('default', null)?.job).toBe(last.id);
  });

  it('then starts before the jobs of its user that came later', () => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    const later = [submit(), submit()];
    runAndEnd(first.id, 'a1', 0);
    expect(queue.job(second.id)?.ahead).toBe(0);
    expect(later.map(({ id }) => queue.job(id)?.ahead)).toEqual([1, 2]);
    expect(queue.jobs.next('default', null)?.job).toBe(second.id);
  });

  it.each([
    ['fails', { kind: 'code', code: 1 } as const],
    ['is lost', { kind: 'lost', reason: 'gone' } as const],
  ])('is cancelled with all that need it, if one %s', (_, result) => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    const third = submit({ needs: [second.id] });
    run(first.id, 'a1');
    commit({ change: 'ended', job: first.id, agent: 'a1', result });
    commit({ change: 'settled', job: first.id, agent: 'a1' });
    for (const [job, needed] of [
      [second, first],
      [third, second],
    ] as const)
      expect(queue.job(job.id)).toMatchObject({
        state: 'done',
        result: { kind: 'cancelled' },
        verdict: { kind: 'cancelled' },
        reason: `It was cancelled because job ${needed.id}, which it needs, did not pass.`,
      });
    sync();
    expect(queue.unfinished).toBe(0);
  });

  it('still waits after a restart, and hears of an end that came before it', async () => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    reopen();
    expect(queue.jobs.next('default', null)?.job).toBe(first.id);
    runAndEnd(first.id, 'a1', 0);
    reopen();
    expect(queue.jobs.next('default', null)?.job).toBe(second.id);
  });

  it('is refused if one is unknown or has failed, and needs nothing of one that has passed', () => {
    const [bad, good] = [submit(), submit()];
    runAndEnd(bad.id, 'a1', 1);
    runAndEnd(good.id, 'a2', 0);
    expect(() => submit({ needs: ['nothing'] })).toThrow('there is no such job or array in the own queue');
    expect(() => submit({ needs: [bad.id] })).toThrow('that job has ended and did not pass');
    expect(submit({ needs: [good.id] }).reason).toBe('default is busy');
  });

  it.each([
    ['starts', 0, 'queued'],
    ['is cancelled', 1, 'done'],
  ])('%s also if the commit that said so had failed before', (_, code, state) => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    run(first.id, 'a1');
    end(first.id, 'a1', code);
    const settled: Change = { change: 'settled', job: first.id, agent: 'a1' };
    const failing = () =>
      store.transaction({ durable: false }, () => {
        queue.jobs.record(settled);
        throw new Error('disk full');
      });
    expect(failing).toThrow('disk full');
    queue.jobs.rolledBack();
    expect(queue.jobs.next('default', null)).toBeNull();
    expect(queue.job(second.id)?.state).toBe('queued');
    commit(settled);
    expect(queue.job(second.id)?.state).toBe(state);
    expect(queue.waiting('default')).toBe(code === 0 ? 1 : 0);
  });

  it.each([
    ['starts', 0, { state: 'queued', result: null }],
    ['is cancelled', 1, { state: 'done', result: { kind: 'cancelled' } }],
  ])('%s after a restart, if it never heard that the other one had ended', (_, code, expected) => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    const third = submit({ needs: [second.id] });
    const { progress } = store.jobs.get(second.id) ?? {};
    runAndEnd(first.id, 'a1', code);
    if (progress !== undefined) store.transaction({ durable: true }, () => store.jobs.save(second.id, progress));
    reopen();
    expect(queue.job(second.id)).toMatchObject(expected);
    expect(queue.waiting('default')).toBe(code === 0 ? 1 : 0);
    expect(queue.job(third.id)).toMatchObject({ state: expected.state });
  });

  it('is cancelled at a restart, if the other one is no longer known', () => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    store.transaction({ durable: true }, () => store.jobs.remove(first.id));
    reopen();
    expect(queue.job(second.id)).toMatchObject({ state: 'done', reason: expect.stringContaining(`job ${first.id}`) });
  });

  it('is cancelled at the end of a chain of thousands', () => {
    const request = { ...jobRequest.parse({ command: ['true'] }), pool: 'default', array: null };
    store.transaction({ durable: true }, () => {
      for (let n = 0; n < 5_000; n += 1)
        store.jobs.insert(newJob(`j${n}`, request, false, now, { blockedBy: n === 0 ? [] : [`j${n - 1}`] }));
    });
    reopen();
    queue.cancel('j0');
    expect(queue.job('j4999')).toMatchObject({ state: 'done', result: { kind: 'cancelled' } });
    expect(queue.unfinished).toBe(0);
  });

  it('waits for the pool only since it may start, and has no place in the queue before', () => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    expect(queue.job(second.id)).not.toHaveProperty('ahead');
    run(first.id, 'a1');
    expect(queue.waitingSince().get('default')).toBeUndefined();
    now += 60_000;
    end(first.id, 'a1');
    commit({ change: 'settled', job: first.id, agent: 'a1' });
    expect(queue.waitingSince().get('default')).toBe(now);
    expect(queue.job(second.id)?.ahead).toBe(0);
    now += 5_000;
    runAndEnd(second.id, 'a2', 0);
    expect(store.outcomes.get(second.id)?.wait).toBe(5_000);
  });

  it('is refused by a temporary daemon, if another daemon has the job that it needs', () => {
    const first = submit();
    reopen(undefined, '');
    expect(() => submit({ needs: [first.id] })).toThrow('this daemon is temporary and does not run that job');
    expect(queue.waitingSince().get('default')).toBeUndefined();
    expect(queue.job(first.id)).not.toHaveProperty('ahead');
  });

  it('can be cancelled while it waits', () => {
    const first = submit();
    const second = submit({ needs: [first.id] });
    expect(queue.cancel(second.id).state).toBe('done');
    runAndEnd(first.id, 'a1', 0);
    expect(queue.job(second.id)?.result).toEqual({ kind: 'cancelled' });
  });
});

describe('an array', () => {
  const array = (indices: number[], more: Partial<JobRequest> = {}) =>
    queue.submitArray({ job: jobRequest.parse({ id: '00000000000a', command: ['true'], pool: 'default', ...more }), indices });

  it('gives each job its index, and the same jobs when it is submitted again', () => {
    const jobs = array([0, 5]);
    expect(jobs.map((job) => job.array)).toEqual([
      { id: '00000000000a', index: 0 },
      { id: '00000000000a', index: 5 },
    ]);
    expect(array([0, 5]).map(({ id }) => id)).toEqual(jobs.map(({ id }) => id));
    expect(queue.arrayJobs('00000000000a').map(({ id }) => id)).toEqual(jobs.map(({ id }) => id));
    expect(queue.waiting('default')).toBe(2);
  });

  it('tells a job its index', async () => {
    const [, job] = array([0, 5]);
    commit({ change: 'assigned', job: job?.id ?? '', agent: 'a1' });
    const { script } = await queue.register(context(job?.id ?? '', 'a1'));
    expect(script).toContain("ONEJOB_ARRAY_INDEX='5'");
  });

  it('is what a job takes itself for that is an attempt of another one', async () => {
    const of = { job: '0123456789ab', attempt: 3, array: { id: '00000000000b', index: 7 } };
    const { id } = submit({ attemptOf: of });
    commit({ change: 'assigned', job: id, agent: 'a1' });
    const { script } = await queue.register(context(id, 'a1'));
    const told = { JOB_ID: of.job, ATTEMPT: '3', ARRAY_ID: of.array.id, ARRAY_INDEX: '7' };
    for (const [name, value] of Object.entries(told)) expect(script).toContain(`export ONEJOB_${name}='${value}'`);
  });

  it('is needed as a whole by its id, also with more jobs than may be named', () => {
    const jobs = array(Array.from({ length: 1_500 }, (_, at) => at));
    const { id, needs } = submit({ needs: ['00000000000a', jobs[0]?.id ?? ''] });
    expect(needs).toEqual(['00000000000a', jobs[0]?.id]);
    expect(store.jobs.get(id)?.progress.blockedBy).toEqual(jobs.map((job) => job.id));
    runAndEnd(jobs[7]?.id ?? '', 'a7', 1);
    expect(queue.job(id)?.result).toEqual({ kind: 'cancelled' });
    expect(() => submit({ needs: ['00000000000a'] })).toThrow(`needs ${jobs[7]?.id}: that job has ended and did not pass`);
    expect(() => queue.verify(jobRequest.parse({ command: ['true'], needs: ['00000000000a'] }))).toThrow('did not pass');
    expect(() => queue.verify(jobRequest.parse({ command: ['true'], needs: ['nobody'] }))).toThrow('no such job or array');
  });

  it('needs no more jobs than can be remembered', () => {
    array(Array.from({ length: 2_000 }, (_, at) => at));
    const other = { id: '00000000000b', command: ['true'], pool: 'default', needs: ['00000000000a'] };
    expect(() =>
      queue.submitArray({ job: jobRequest.parse(other), indices: Array.from({ length: 1_000 }, (_, at) => at) }),
    ).toThrow('2000 jobs that each of 1000 jobs needs');
    expect(queue.waiting('default')).toBe(2_000);
  });

  it('is cancelled in one commit, and tells which of its jobs had not ended', () => {
    const [done, running, waiting] = array([0, 1, 2]).map(({ id }) => id);
    const next = submit({ needs: ['00000000000a'] });
    runAndEnd(done ?? '', 'a0', 0);
    run(running ?? '', 'a1');
    expect(queue.cancelArray('00000000000a').map(({ id, state }) => [id, state])).toEqual([
      [running, 'running'],
      [waiting, 'done'],
    ]);
    expect(queue.job(next.id)?.result).toEqual({ kind: 'cancelled' });
    end(running ?? '', 'a1');
    expect(store.jobs.get(running ?? '')?.progress.cancelling).toBe(true);
    expect(() => queue.cancelArray('00000000000c')).toThrow(expect.objectContaining({ code: 'E_JOB_UNKNOWN' }));
  });

  it('is accepted as a whole or not at all', () => {
    expect(() => array([0, 1], { pool: 'none' })).toThrow('no pool of the own queue is called "none"');
    expect(queue.list({ all: true, pool: null })).toEqual([]);
  });

  it('shares one workspace, which stays until the last of its jobs is done', async () => {
    const workspace = await queue.putWorkspace(Readable.from(['x']), never);
    const jobs = array([0, 1], { workspace });
    const files = () => readdirSync(join(store.dir, 'workspaces'));
    for (const [at, { id }] of jobs.entries()) {
      expect(files()).toEqual([`${workspace}.tar`]);
      runAndEnd(id, `a${at}`, 0);
      sync();
    }
    await queue.close();
    expect(files()).toEqual([]);
  });
});

describe('a job that names its image', () => {
  const prove = (image: string) =>
    store.transaction({ durable: false }, () =>
      store.provedImages.save('default', { image, id: 'sha256:1', equipment: [], driver: null }),
    );
  const isCold = () => queue.jobs.next('default', null)?.cold;

  it('gets a sandbox of its own while standbys of its pool have another image', () => {
    prove('debian:old');
    const { id } = submit({ image: 'debian:stable-slim' });
    expect(isCold()).toBe(true);
    queue.cancel(id);
    submit();
    expect(isCold()).toBe(false);
  });

  it('takes a standby once the image of its pool has proved itself, and where nothing has yet', () => {
    const { id } = submit({ image: 'debian:stable-slim' });
    expect(isCold()).toBe(false);
    queue.cancel(id);
    prove('debian:stable-slim');
    submit({ image: 'debian:stable-slim' });
    expect(isCold()).toBe(false);
  });

  it('is looked at again when the config has another image', () => {
    submit({ image: 'debian:stable-slim' });
    reopen([{ ...pool('default'), recipe: { ...recipe, image: 'debian:new' } }]);
    expect(isCold()).toBe(true);
    reopen();
    expect(isCold()).toBe(false);
  });
});

describe('a power cut', () => {
  /** What the queue does, in order: what it commits and what it syncs. */
  function watched(): string[] {
    const done: string[] = [];
    const { transaction, syncNow } = store;
    Object.assign(store, {
      transaction: ((how, write) => {
        done.push(how.durable ? 'commit and sync' : 'commit');
        return transaction(how, write);
      }) satisfies Store['transaction'],
      syncNow: () => {
        done.push('sync');
        syncNow();
      },
    });
    return done;
  }

  it('undoes no job that was accepted: the slot that takes it at once shares the sync', () => {
    const done = watched();
    queue.observe((event) => void (event.kind === 'waiting' && done.push('offered')), never);
    submit();
    done.push('accepted');
    expect(done).toEqual(['commit', 'offered', 'sync', 'accepted']);
  });

  it('undoes no job that is handed in again after its sync has failed', () => {
    const { syncNow } = store;
    let isBroken = true;
    Object.assign(store, {
      syncNow: () => {
        if (isBroken) throw new OnejobError('E_STATE_FULL', 'Cannot sync it: input/output error.', { retry: true });
        syncNow();
      },
    });
    const id = 'abcdef012345';
    expect(() => submit({ id })).toThrow('Cannot sync');
    expect(() => submit({ id })).toThrow('Cannot sync');
    isBroken = false;
    expect(submit({ id })).toMatchObject({ id, state: 'queued' });
    expect(queue.list({ all: false, pool: null })).toHaveLength(1);
  });

  it('undoes no end that somebody has asked for before its sync', () => {
    const job = submit();
    run(job.id, 'a');
    end(job.id, 'a', 3);
    const done = watched();
    expect(queue.job(job.id)?.result).toEqual({ kind: 'code', code: 3 });
    expect(done).toContain('sync');
    // Also while a sync is under way.
    const tell = queue.jobs.syncing();
    done.length = 0;
    queue.job(job.id);
    expect(done).toContain('sync');
    tell();
    done.length = 0;
    queue.job(job.id);
    expect(done).toEqual([]);
  });
});

describe('jobs of a pool that the config no longer has', () => {
  const stranded = () => {
    const { id } = submit({ pool: 'gpu', env: { TOKEN: 'x' } });
    reopen([pool('default'), pool('next')]);
    return id;
  };

  it('say what a person can type, and are not next in any line', () => {
    const id = stranded();
    expect(queue.job(id)?.reason).toBe(
      'The own queue no longer has a pool called "gpu". Type "onejob move --waiting --pool gpu --to POOL", or "onejob cancel --waiting --pool gpu".',
    );
    expect(queue.job(id)).not.toHaveProperty('ahead');
    expect([...queue.stranded().waiting]).toEqual([['gpu', 1]]);
  });

  it('are counted also while they wait for other jobs', () => {
    const { id } = submit({ pool: 'gpu' });
    submit({ pool: 'gpu', needs: [id] });
    submit();
    expect([...queue.stranded().waiting].sort()).toEqual([
      ['default', 1],
      ['gpu', 2],
    ]);
  });

  it('move to another pool, keep everything else, and wait there after a restart too', () => {
    const id = stranded();
    const events: CiEvent[] = [];
    queue.observe((event) => events.push(event), never);
    const { submittedAt } = queue.job(id) ?? {};
    expect(queue.move(id, 'next')).toMatchObject({ id, pool: 'next', state: 'queued', reason: 'next is busy', submittedAt });
    expect(events).toEqual([{ kind: 'waiting', pool: 'next' }]);
    expect(queue.stranded().waiting.has('gpu')).toBe(false);
    expect(queue.jobs.next('gpu', null)).toBeNull();
    expect(queue.jobs.next('next', null)?.job).toBe(id);
    reopen([pool('default'), pool('next')]);
    expect(queue.job(id)).toMatchObject({ pool: 'next', ahead: 0 });
    expect(queue.list({ all: true, pool: 'next' })).toHaveLength(1);
    expect(store.jobs.get(id)?.request.env).toEqual({ TOKEN: 'x' });
  });

  it('move among living pools too, and to the same one without effect', () => {
    const { id } = submit({ pool: 'gpu' });
    submit();
    expect(queue.move(id, 'default')).toMatchObject({ pool: 'default' });
    expect(queue.move(id, 'default')).toMatchObject({ pool: 'default' });
    expect([queue.waiting('gpu'), queue.waiting('default')]).toEqual([0, 2]);
    // It was submitted first.
    expect(queue.job(id)?.ahead).toBe(0);
  });

  it('do not move to a pool of processes with an image of their own', () => {
    const { id } = submit({ pool: 'gpu', image: 'debian:stable-slim' });
    reopen([{ ...pool('plain'), runtime: 'process' }, pool('default')]);
    expect(() => queue.move(id, 'plain')).toThrow('pool "plain" runs its jobs as processes, which have no images');
    expect(queue.job(id)?.pool).toBe('gpu');
    expect(queue.move(id, 'default')).toMatchObject({ pool: 'default' });
  });

  it('do not move to a pool that could not run them, nor once they have begun or ended', () => {
    const { id } = submit({ pool: 'gpu', memory: 2 ** 30 });
    reopen([{ ...pool('small'), recipe: { ...recipe, memory: 2 ** 20 } }, pool('default')]);
    expect(() => queue.move(id, 'nosuch')).toThrow('no pool');
    expect(() => queue.move(id, 'small')).toThrow('Cannot give the job 1GiB of memory: agents of pool "small" have only 1MiB');
    expect(queue.job(id)?.pool).toBe('gpu');
    queue.move(id, 'default');
    run(id, 'a');
    const begun = `Cannot move job ${id} to pool small: it has begun.`;
    expect(() => queue.move(id, 'small')).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST', message: begun }));
    end(id, 'a');
    commit({ change: 'settled', job: id, agent: 'a' });
    sync();
    expect(() => queue.move(id, 'default')).toThrow('it has ended');
    expect(() => queue.move('nosuch', 'default')).toThrow('There is no job nosuch.');
  });
});

describe('cancelling only what waits', () => {
  it('leaves a job alone that has begun meanwhile', () => {
    const [waits, began] = [submit().id, submit().id];
    run(began, 'a');
    expect(queue.cancel(waits, { onlyWaiting: true })).toMatchObject({ state: 'done', result: { kind: 'cancelled' } });
    expect(queue.cancel(began, { onlyWaiting: true })).toMatchObject({ state: 'running', result: null });
    expect(store.jobs.get(began)?.progress.cancelling).toBe(false);
  });
});
