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
