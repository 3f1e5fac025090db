import { expect, test } from 'vitest';
import { poolLike } from '../../../test/kit/pool.ts';
import { emptySlot, type Reserved, type Slot } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Runtime } from '../../ports/runtime.ts';
import type { Pool } from './pool.ts';
import { intentOf, slotView, step } from './reconciler.ts';

const host = { stopping: false, paused: false, now: 100 };
const taking = { ...host, newAgent: () => 'new' };

function serviceOf(name: string, waiting: Reserved | null = null): CiService {
  const capabilities = {
    binds: 'late',
    standsForSlots: false,
    terms: 1,
    poolTimeout: true,
    jobOnStdout: false,
  };
  return { name, capabilities, jobs: { next: () => waiting } } as unknown as CiService;
}

function poolOf(service: CiService, others: readonly CiService[] = []): Pool {
  const serviceNamed = (name: string) => others.find((one) => one.name === name) ?? service;
  const pool = poolLike({ standbyMaxAge: 1_000, stopGrace: 5 }, { service, serviceNamed });
  pool.rollout.learn('p/1', 'f');
  return pool;
}

const empty = emptySlot({ key: 'p/1', runtime: 'docker', service: 'own', grace: 5 });
const standby = { kind: 'standby', agent: 'next', reserved: null, fingerprint: 'f', since: 0 } as const;
const busy = { kind: 'busy', agent: 'old', job: 'j1', since: 0, due: null } as const;
const ended = { kind: 'exited', agent: 'old', exit: { kind: 'code', code: 0 }, released: true } as const;

test('an end, the release of the next agent and the standby behind it are one step', () => {
  const pool = poolOf(serviceOf('own', { job: 'j2', limit: null, cold: false }));
  const { slot, changes, actions } = step({ ...empty, standby, agent: busy }, ended, pool, taking);
  expect(slot.agent).toMatchObject({ kind: 'releasing', agent: 'next', job: 'j2' });
  expect(slot.standby).toMatchObject({ kind: 'preparing', agent: 'new' });
  expect(changes).toContainEqual(expect.objectContaining({ change: 'ended', job: 'j1' }));
  expect(changes).toContainEqual({ change: 'assigned', job: 'j2', agent: 'next' });
  expect(actions.map(({ act }) => act)).toEqual(['settle', 'release', 'prepare']);
});

test('without an event the slot is only planned, and an unchanged slot is the same object', () => {
  const pool = poolOf(serviceOf('own'));
  expect(step(empty, null, pool, taking).slot.standby).toMatchObject({ kind: 'preparing', agent: 'new', since: 100 });
  const waiting: Slot = { ...empty, standby };
  expect(step(waiting, null, pool, taking)).toEqual({ slot: waiting, changes: [], actions: [] });
  expect(step(waiting, null, pool, taking).slot).toBe(waiting);
});

test('a pool that moves to another runtime lets its agent end, makes no new one there, and continues in the new one', () => {
  const pool = poolOf(serviceOf('own', { job: 'j2', limit: null, cold: false }));
  pool.moveTo({ name: 'other', capabilities: { grants: 'host' } } as Runtime);
  pool.rollout.learn('p/1', 'f');
  const moving = step({ ...empty, standby, agent: busy }, null, pool, taking).slot;
  expect([moving.standby.kind, moving.agent, moving.runtime]).toEqual(['none', busy, 'docker']);
  const gone = step({ ...moving, agent: { kind: 'free' }, leaving: [] }, null, pool, taking).slot;
  expect([gone.runtime, gone.standby]).toEqual(['other', expect.objectContaining({ kind: 'preparing' })]);
});

test('after a failure the same step begins nothing, although its pool does not know yet', () => {
  const preparing: Slot = { ...empty, standby: { kind: 'preparing', agent: 'a', reserved: null, since: 0 } };
  const failure = { code: 'E_TEST', message: 'no', retry: true };
  const { slot, changes } = step(preparing, { kind: 'prepareFailed', agent: 'a', failure }, poolOf(serviceOf('own')), taking);
  expect(changes).toContainEqual({ change: 'failed', stage: 'prepare', failure });
  expect(slot.standby.kind).toBe('none');
});

test('paused work does not begin, and unwanted sandboxes go', () => {
  const pool = poolOf(serviceOf('own'));
  expect(intentOf(empty, pool, { ...host, paused: true })).toBeNull();
  expect(intentOf({ ...empty, standby }, pool, { ...host, stopping: true })).toEqual({ kind: 'discard' });
});

test('a slot of another service joins its pool only once it is empty, and its next work is another step', () => {
  const [own, old] = [serviceOf('own'), serviceOf('old')];
  const pool = poolOf(own, [old]);
  const gone: Slot = { ...empty, service: 'old', grace: 99, leaving: [{ agent: 'old', job: null, exit: null }] };
  expect(slotView(gone, pool, host).wanted).toBe(false);
  expect(step(gone, null, pool, taking).slot).toBe(gone);
  const freed = step(gone, { kind: 'cleared', agent: 'old', outcome: null }, pool, taking);
  expect(freed).toMatchObject({ slot: empty, actions: [] });
  expect(step(freed.slot, null, pool, taking).actions.map(({ act }) => act)).toEqual(['prepare']);
});
