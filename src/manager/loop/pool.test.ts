import { expect, test } from 'vitest';
import type { CiService } from '../../ci/ci-service.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Runtime } from '../../runtimes/runtime.ts';
import { noDevices, Pool } from './pool.ts';

const host = { stopping: false, paused: false, now: 0 };

function poolOf(env: Record<string, string>): Pool {
  const config = { name: 'p', standby: true, standbyMaxAge: 1, recipe: { env } } as unknown as PoolConfig;
  const service = { capabilities: { binds: 'late' }, jobs: { next: () => null } } as unknown as CiService;
  return new Pool(config, { service, runtime: { name: 'docker' } as Runtime, keepStandby: true, devices: noDevices });
}

test('slots with the same recipe share a fingerprint', () => {
  const pool = poolOf({ A: 'same' });
  pool.learn('p/1', 'f');
  expect(pool.view('p/2', host).fingerprint).toBe('f');
});

test('a slot whose recipe contains its agent’s name has its own fingerprint', () => {
  const pool = poolOf({ CACHE: '/caches/{name}' });
  pool.learn('p/1', 'f1');
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

test('only a pool whose agents borrow devices gives them back when no job waits, or when others wait for them', () => {
  let waiting: number | null = 0;
  const viewOf = (more: object, binds: 'early' | 'late' = 'early') => {
    const config = { name: 'p', standby: false, devices: { count: 1 }, recipe: {}, ...more } as unknown as PoolConfig;
    const service = { capabilities: { binds }, jobs: null, waiting: () => waiting } as unknown as CiService;
    const devices = { ...noDevices, contested: () => true };
    const pool = new Pool(config, { service, runtime: { name: 'docker' } as Runtime, keepStandby: true, devices });
    const { unneeded, contested } = pool.view('p/1', host);
    return [unneeded, contested];
  };
  expect(viewOf({})).toEqual([true, true]);
  expect([viewOf({ standby: true }), viewOf({ devices: { count: 0 } }), viewOf({}, 'late')]).toEqual(Array(3).fill([false, false]));
  waiting = 1;
  expect(viewOf({})).toEqual([false, true]);
  waiting = null;
  expect(viewOf({})).toEqual([false, true]);
});
