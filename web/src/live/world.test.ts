import { expect, test } from 'vitest';
import { busySlot, device, ended, job, pool, slot, workingDay } from '../../test/world.ts';
import { applied, reasonsRead, type World, worldOf } from './world.ts';

const now = 1_000_000;

function small(): World {
  const { status } = workingDay();
  const pools = [pool('a', [slot('a/1'), busySlot('a/2', 'j1', 5_000)]), pool('b', [slot('b/1')])];
  return worldOf({ ...status, pools }, [job('j1', { state: 'running' }), job('j2')], [device(0), device(1)], now, null);
}

test('times that count from now become times of day', () => {
  const backoff = { failures: 1, retryIn: 9_000, reason: 'no', waitsFor: null };
  const { status } = workingDay();
  const world = worldOf({ ...status, pools: [pool('a', [busySlot('a/1', 'j', 5_000)], { backoff })] }, [], [], now, null);
  expect(world.pools[0]?.slots[0]?.agent.since).toBe(995_000);
  expect(world.pools[0]?.backoff?.retryIn).toBe(1_009_000);
});

test('an event changes what it is about, and nothing else is a new object', () => {
  const before = small();
  const after = applied(before, [{ name: 'slot', data: { pool: 'a', key: 'a/1', slot: busySlot('a/1', 'j2', 0) } }], now);
  expect(after.pools[0]?.slots.map(({ agent }) => agent.job)).toEqual(['j2', 'j1']);
  expect(after.pools[0]?.slots[1]).toBe(before.pools[0]?.slots[1]);
  expect(after.pools[1]).toBe(before.pools[1]);
  expect(after.jobs).toBe(before.jobs);
  expect(after.devices).toBe(before.devices);
});

test('slots come and go, and so do pools, jobs and devices', () => {
  const after = applied(
    small(),
    [
      { name: 'slot', data: { pool: 'a', key: 'a/1', slot: null } },
      { name: 'slot', data: { pool: 'a', key: 'a/3', slot: slot('a/3') } },
      { name: 'pool', data: pool('c', []) },
      { name: 'gone', data: { what: 'pool', name: 'b' } },
      { name: 'gone', data: { what: 'job', name: 'j2' } },
      { name: 'gone', data: { what: 'device', name: device(1).uuid } },
    ],
    now,
  );
  expect(after.pools.map(({ name, slots }) => [name, slots.map(({ key }) => key)])).toEqual([
    ['a', ['a/2', 'a/3']],
    ['c', []],
  ]);
  expect([...after.jobs.keys()]).toEqual(['j1']);
  expect(after.devices).toHaveLength(1);
});

test('a pool keeps its slots when only its own part is reported', () => {
  const { slots: _, ...view } = pool('a', [], { paused: ['by hand'] });
  const after = applied(small(), [{ name: 'pool', data: view }], now);
  expect(after.pools[0]).toMatchObject({ paused: ['by hand'], slots: [{ key: 'a/1' }, { key: 'a/2' }] });
  expect(after.changes[0]?.what).toBe('Pool a was paused: by hand');
  const down = applied(small(), [{ name: 'pool', data: { ...view, paused: ['No Engine.'] } }], now);
  expect(down.changes[0]?.what).toBe('Pool a starts nothing new: No Engine.');
  expect(applied(down, [{ name: 'pool', data: { ...view, paused: [] } }], now).changes[0]?.what).toBe('Pool a starts jobs again');
});

test('of ended jobs only the newest are kept', () => {
  let world = small();
  for (let n = 0; n < 250; n += 1) world = applied(world, [{ name: 'job', data: ended(`e${n}`, 'passed', 'exit code 0') }], now);
  expect(world.jobs.size).toBe(102);
  expect(world.jobs.has('e249')).toBe(true);
  expect(world.jobs.has('e100')).toBe(false);
  expect(world.jobs.has('j2')).toBe(true);
  expect(world.changes).toHaveLength(200);
});

test('a job whose hold ends did not end again, and keeps its place', () => {
  const at = Date.now();
  const [failed, other] = [ended('1', 'code', 'so', { held: { until: at + 9 } }), ended('2', 'passed', 'so')];
  const world = { ...worldOf(workingDay().status, [failed, other], [], at, null) };
  const { held: _, ...left } = failed;
  const after = applied(
    world,
    [
      { name: 'job', data: left },
      { name: 'job', data: ended('3', 'code', 'so') },
    ],
    at,
  );
  expect([...after.jobs.keys()]).toEqual(['1', '2', '3']);
  expect(after.jobs.get('1')?.held).toBe(undefined);
  expect(after.changes).toEqual([]);
});

test('a waiting job keeps its place until it is read again, as events do not have it', () => {
  const [before, start] = [small(), { from: 1, to: 2 }];
  const known = reasonsRead(before, [job('j2', { ahead: 1, startsIn: start })]);
  const still = applied(known, [{ name: 'job', data: job('j2', { priority: 5 }) }], now);
  expect(still.jobs.get('j2')).toMatchObject({ priority: 5, ahead: 1, startsIn: start });
  const begun = applied(still, [{ name: 'job', data: job('j2', { state: 'running' }) }], now);
  expect(begun.jobs.get('j2')).not.toHaveProperty('ahead');
});

test('what is read about waiting jobs changes only why they wait', () => {
  const before = small();
  const read = [job('j1', { state: 'queued', reason: 'old' }), job('j2', { reason: 'its pool is paused' }), job('j3')];
  const after = reasonsRead(before, read);
  expect(after.jobs.get('j1')?.state).toBe('running');
  expect(after.jobs.get('j2')?.reason).toBe('its pool is paused');
  expect(after.jobs.has('j3')).toBe(false);
  expect(reasonsRead(after, read)).toBe(after);
});
