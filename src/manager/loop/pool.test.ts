import { expect, test } from 'vitest';
import { poolLike } from '../../../test/kit/pool.ts';
import { emptySlot } from '../../core/slot.ts';
import { type Pool, withoutDevices } from './pool.ts';

const host = { stopping: false, paused: false, now: 0 };

const poolOf = (env: Record<string, string>): Pool =>
  poolLike({ standbyMaxAge: 1, recipe: { env } }, { service: { capabilities: { binds: 'late' }, jobs: { next: () => null } } });

test('slots with the same recipe share a fingerprint', () => {
  const pool = poolOf({ A: 'same' });
  pool.rollout.learn('p/1', 'f');
  expect(pool.view('p/2', host).fingerprint).toBe('f');
});

test('a slot whose recipe contains its agent’s name has its own fingerprint', () => {
  const pool = poolOf({ CACHE: '/caches/{name}' });
  pool.rollout.learn('p/1', 'f1');
  expect(pool.view('p/1', host).fingerprint).toBe('f1');
  expect(pool.view('p/2', host).fingerprint).toBeNull();
});

test('only an agent that had a job, not one that was only online, makes the back-off start again', () => {
  const pool = poolOf({});
  const failure = { code: 'E_AGENT_OUTDATED', message: 'wants to be updated', retry: true };
  expect(pool.failed(failure, 'release', 0, 0).failures).toBe(1);
  expect(pool.worked('online')).toBe(true);
  expect(pool.backoff).toBeNull();
  expect(pool.failed(failure, 'release', 10_000, 0).failures).toBe(2);
  pool.worked('online');
  pool.worked('release');
  expect(pool.failed(failure, 'release', 20_000, 0).failures).toBe(1);
});

test('a pool whose agents borrow devices needs none once no job has waited for a while; each pool that leases hears of others', () => {
  let waiting: number | null = 1;
  const poolWith = (more: object, binds: 'early' | 'late' = 'early') => {
    const service = { capabilities: { binds }, jobs: null, waiting: () => waiting };
    const devices = { ...withoutDevices, contested: () => true };
    return poolLike({ standby: false, devices: { count: 1 }, ...more }, { service, devices });
  };
  const early = poolWith({});
  const others = [poolWith({ standby: true }), poolWith({ devices: { count: 0 } }), poolWith({}, 'late')];
  const unneeded = (pool: Pool, now: number) => pool.view('p/1', { ...host, now }).unneeded;
  expect(unneeded(early, 0)).toBe(false);
  waiting = 0;
  expect([unneeded(early, 100), unneeded(early, 15_099), unneeded(early, 15_100)]).toEqual([false, false, true]);
  expect(others.map((pool) => unneeded(pool, 100) || unneeded(pool, 90_000))).toEqual([false, false, false]);
  waiting = null;
  expect(unneeded(early, 16_000)).toBe(false);
  waiting = 0;
  expect([unneeded(early, 17_000), unneeded(early, 31_000)]).toEqual([false, false]);
  expect([early, ...others].map((pool) => pool.view('p/1', host).contested)).toEqual([true, false, false, true]);
});

test('a slot with devices takes only a job that needs as many, and the one that they were leased for', () => {
  const asks: Record<string, number | null> = { large: 4, usual: null, small: 1 };
  let next = 'large';
  let only: string | null = null;
  const reserved = (job: string) => ({ job, limit: null, cold: false });
  const jobs = {
    next: () => reserved(next),
    waits: (_: string, job: string) => (job === 'gone' ? null : reserved(job)),
    devicesFor: (job: string) => asks[job] ?? null,
  };
  const poolWith = (count: number | 'all', standby = false) => {
    const devices = { ...withoutDevices, of: (key: string) => (key === 'p/1' ? ['a'] : null), jobOf: () => only };
    return poolLike({ standby, devices: { count } }, { service: { capabilities: { binds: 'late' }, jobs }, devices });
  };
  const job = (pool: Pool, key = 'p/1') => pool.view(key, host).waiting?.job ?? null;
  expect(job(poolWith(1))).toBeNull();
  expect(job(poolWith(1), 'p/2')).toBe('large');
  expect(job(poolWith(1, true))).toBe('large');
  next = 'usual';
  expect([job(poolWith(1)), job(poolWith(2)), job(poolWith('all'))]).toEqual(['usual', null, 'usual']);
  next = 'large';
  only = 'small';
  expect(job(poolWith(1))).toBe('small');
  only = 'gone';
  expect(job(poolWith(1))).toBeNull();
});

test('agents that bind early are asked of an engine while jobs wait, and are unneeded once none has waited for a while', () => {
  let waiting: number | null = 2;
  const service = { capabilities: { binds: 'early' }, jobs: null, waiting: () => waiting };
  const runtime = { name: 'cluster', capabilities: { images: false, grants: 'engine' } };
  const pool = poolLike({ standby: false, devices: { count: 0 } }, { service, runtime });
  const at = (now: number) => {
    const { pilots, unneeded } = pool.view('p/1', { ...host, now });
    return [pilots, unneeded];
  };
  expect(at(0)).toEqual(['more', false]);
  for (const key of ['p/1', 'p/2'])
    pool.index({
      ...emptySlot({ key, runtime: 'cluster', grace: 0 }),
      standby: { kind: 'preparing', agent: key, reserved: null, since: 0 },
    });
  expect(at(1)).toEqual(['enough', false]);
  // One of them has the job, which its service has not shown yet.
  waiting = 1;
  expect(at(2)).toEqual(['enough', false]);
  waiting = 0;
  expect([at(100), at(15_100)]).toEqual([
    ['enough', false],
    ['enough', true],
  ]);
});

test.each([true, false])('a job that names an image gets no standby of a runtime without images (images: %s)', (images) => {
  const jobs = {
    next: () => ({ job: 'j', limit: null, cold: false }),
    namesImage: (job: string) => job === 'j',
  };
  const service = { capabilities: { binds: 'late' }, jobs };
  const pool = poolLike({}, { service, runtime: { name: 'any', capabilities: { images } } });
  expect(pool.view('p/1', host).waiting).toEqual({ job: 'j', limit: null, cold: !images });
});
