import { expect, it } from 'vitest';
import { type LimitFacts, limitsOf } from './job-limits.ts';

const pool = { config: { timeout: 3_600_000, recipe: { memory: 2 ** 30, cpus: null } }, poolTimeout: true };
const none = { memory: null, cpus: null, timeout: null };
const facts: LimitFacts = { job: { state: 'running', startedAt: 5 }, own: none, pool, since: 1 };

it.each<[string, Partial<LimitFacts>, ReturnType<typeof limitsOf>]>([
  ["the pool's", {}, { memory: 2 ** 30, cpus: null, timeout: 3_600_000 }],
  ['its own first', { own: { memory: 2 ** 26, cpus: 2, timeout: 60_000 } }, { memory: 2 ** 26, cpus: 2, timeout: 60_000 }],
  [
    'of a service that has its own time limits',
    { own: null, pool: { ...pool, poolTimeout: false } },
    { memory: 2 ** 30, cpus: null },
  ],
  [
    'of a job that ended under this config',
    { job: { state: 'done', startedAt: 5 } },
    { memory: 2 ** 30, cpus: null, timeout: 3_600_000 },
  ],
  ['of a job that ended under another config', { job: { state: 'done', startedAt: 0 }, own: { ...none, cpus: 2 } }, { cpus: 2 }],
  ['of a job that began under another config and still runs', { job: { state: 'running', startedAt: 0 } }, {}],
  ['of a job that waits', { job: { state: 'waiting', startedAt: null } }, { memory: 2 ** 30, cpus: null, timeout: 3_600_000 }],
  ['of a job whose pool is gone', { pool: null, own: { ...none, memory: 2 ** 26 } }, { memory: 2 ** 26 }],
])('shows %s', (_, change, limits) => {
  expect(limitsOf({ ...facts, ...change })).toEqual(limits);
});
