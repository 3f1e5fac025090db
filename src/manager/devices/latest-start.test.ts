import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { DeviceHost, devicePool } from '../../../test/support/device-host.ts';
import { gpu as card } from '../../../test/support/devices.ts';
import { type AgentLane, emptySlot, type Slot, type StandbyLane } from '../../core/slot.ts';
import { beginBy, endingOf, type InLine, latestStart, type Wait, waitText } from './latest-start.ts';

const minute = 60_000;
const sure = (until: number | null, job = 'x') => ({ until, job, isSure: true });

test('enough devices are free when the last of the jobs that must end reaches its time limit', () => {
  expect(latestStart(4, 2, [sure(30), sure(10), sure(20)], 0)).toEqual({ at: 20, after: 'x', isSure: true, spare: 0 });
  expect(latestStart(4, 2, [sure(10), sure(10), sure(10), sure(40)], 0)).toMatchObject({ at: 10, spare: 1 });
  expect(latestStart(4, 2, [sure(10), sure(null)], 0)).toBeNull();
  expect(latestStart(2, 1, [{ ...sure(10), isSure: false }], 0)).toMatchObject({ isSure: false });
  // It should have ended already.
  expect(latestStart(2, 1, [sure(10)], 50)?.at).toBe(50);
});

test('a job may go before others if it delays none of them', () => {
  const latest = { at: 60 * minute, after: 'x', isSure: true, spare: 0 };
  const wait: Wait = { pool: 'p', job: 'w', count: 4, most: 4, held: ['a', 'b'], latest, endless: null };
  const on = (...uuids: string[]) => new Set(uuids);
  expect(beginBy(on('c'), null, [wait], 0)).toBe(Number.POSITIVE_INFINITY);
  expect(beginBy(on('a'), 50 * minute, [wait], 0)).toBe(10 * minute);
  expect(beginBy(on('a'), 59 * minute, [wait], 0)).toBe(minute);
  expect(beginBy(on('a'), 59 * minute, [wait], 1)).toBeNull();
  expect(beginBy(on('a'), null, [wait], 0)).toBeNull();
  expect(beginBy(on('a'), minute, [{ ...wait, latest: null }], 0)).toBeNull();
  expect(beginBy(on('a'), null, [{ ...wait, latest: { ...latest, spare: 1 } }], 0)).toBe(Number.POSITIVE_INFINITY);
  expect(beginBy(on('a', 'b'), null, [{ ...wait, latest: { ...latest, spare: 1 } }], 0)).toBeNull();
});

test('a slot gives its devices back at the time limit of its job and the time that it has to end', () => {
  const reserved = { job: 'j', limit: 100, cold: false };
  const slot = (agent: AgentLane, standby: StandbyLane = { kind: 'none' }): Slot => {
    return { ...emptySlot({ key: 'p/1', runtime: 'sim', grace: 5, devices: ['a'] }), agent, standby };
  };
  const end = (...[agent, standby]: Parameters<typeof slot>) => {
    const { until, isSure } = endingOf(slot(agent, standby), 1_000);
    return [until, isSure];
  };
  const base = { agent: 'a1', job: 'j', since: 900 };
  expect(end({ kind: 'busy', ...base, due: 1_050 })).toEqual([1_055, true]);
  expect(end({ kind: 'busy', ...base, due: null })).toEqual([null, true]);
  expect(end({ kind: 'releasing', ...base, limit: 100, fingerprint: 'f' })).toEqual([1_105, false]);
  expect(end({ kind: 'proving', agent: 'a1', since: 900 })).toEqual([1_000, true]);
  expect(end({ kind: 'free' }, { kind: 'preparing', agent: 'a1', reserved, since: 900 })).toEqual([1_105, false]);
  expect(end({ kind: 'free' }, { kind: 'preparing', agent: 'a1', reserved: null, since: 900 })).toEqual([null, false]);
  expect(end({ kind: 'idle', agent: 'a1', fingerprint: 'f', online: true, since: 900 })).toEqual([null, false]);
});

describe('in words', () => {
  const clock = { now: () => 0, wall: () => new Date(2026, 10, 20, 12).getTime() };
  const wait: Wait = { pool: 'p', job: 'w', count: 4, most: 4, held: ['a', 'b'], latest: null, endless: null };
  const say = (more: Partial<Wait>) => waitText({ ...wait, ...more }, clock);
  const latest = { at: 149.2 * minute, after: 'x', isSure: true, spare: 0 };

  test('a job that waits says for how many, what is kept for it, and until when at the latest', () => {
    expect(say({ latest })).toBe(
      'job w waits for 4 devices: 2 are free and kept for it; it starts by 14:30 at the latest, when job x reaches its time limit',
    );
    expect(say({ latest: { ...latest, after: null }, held: ['a'] })).toMatch(/: 1 is free .* by 14:30 at the latest$/);
    expect(say({ count: 'all', job: null, held: [] })).toBe('the next job waits for all devices: none is free');
  });

  test('it promises nothing that it does not know', () => {
    expect(say({ latest: { ...latest, isSure: false } })).toBe('job w waits for 4 devices: 2 are free and kept for it');
    expect(say({ endless: 'y' })).toMatch(/; nobody knows until when, as job y has no time limit$/);
    expect(say({ most: 3 })).toBe('job w waits for 4 devices: no more than 3 can be used now');
  });

  test('a job that needs one says the same as ever, and when', () => {
    expect(say({ count: 1, most: 0, held: [], endless: 'y' })).toBe('no device is free for it');
    expect(say({ count: 1, held: [], latest })).toMatch(/^no device is free for it; job w starts by 14:30 at the latest, when/);
  });
});

describe('on a host with four cards', () => {
  const large: InLine = { job: 'large', count: 4, lasts: null };
  let line: InLine[] = [];
  let host: DeviceHost;

  const agent = (key: string, lane: AgentLane, standby: StandbyLane = { kind: 'none' }) => {
    const devices = host.registry.slotDevices.of(key) ?? host.slots.find((one) => one.key === key)?.devices ?? [];
    const slot: Slot = { ...emptySlot({ key, runtime: 'sim', grace: 0, devices }), agent: lane, standby };
    host.slots = [...host.slots.filter((one) => one.key !== key), slot];
    host.registry.slotChanged(slot);
    return devices.length;
  };

  beforeEach(() => {
    line = [{ job: 'long', count: 1, lasts: 60 * minute }];
    host = new DeviceHost({
      pools: [devicePool('any', { agents: 4, standby: false })],
      waiting: () => (line[0] === undefined ? null : { turn: line[0].job, devices: line[0].count }),
      lineOf: () => line,
    });
    onTestFinished(() => host[Symbol.dispose]());
    host.sees([0, 1, 2, 3].map((n) => card(n)));
    const due = host.now + 60 * minute;
    expect(agent('any/1', { kind: 'busy', agent: 'a1', job: 'long', since: host.now, due })).toBe(1);
    line = [large];
    host.registry.demandChanged(null);
  });

  test('a large job keeps what is free, and says until when it waits', () => {
    const { slotDevices, partition } = host.registry;
    expect(partition.waits[0]?.held).toHaveLength(3);
    expect(slotDevices.of('any/2')).toBeNull();
    expect(slotDevices.heldBack('any/2')).toBe(
      'job large waits for 4 devices: 3 are free and kept for it; it starts by 13:00 at the latest, when job long reaches its time limit',
    );
  });

  test('a smaller one that ends in time goes before it, and what it passed keeps its place', () => {
    host.now += 10 * minute;
    line = [large, { job: 'short', count: 2, lasts: 20 * minute }, { job: 'other', count: 1, lasts: 10 * minute }];
    host.registry.demandChanged(null);
    const { slotDevices } = host.registry;
    expect([slotDevices.jobOf?.('any/2'), slotDevices.of('any/2')?.length]).toEqual(['short', 2]);
    const reserved = { job: 'short', limit: 20 * minute, cold: false };
    agent('any/2', { kind: 'free' }, { kind: 'preparing', agent: 'a2', reserved, since: host.now });
    expect(host.registry.waitingText('any')).toBe('it has waited 600 s, and it is next');
    // The next one takes what is left.
    expect([slotDevices.jobOf?.('any/3') ?? null, slotDevices.of('any/3')?.length ?? 0]).toEqual(['other', 1]);
  });

  test('one that takes too long to begin does not begin any more', () => {
    line = [large, { job: 'short', count: 2, lasts: 50 * minute }];
    host.registry.demandChanged(null);
    const reserved = { job: 'short', limit: 50 * minute, cold: false };
    agent('any/2', { kind: 'free' }, { kind: 'preparing', agent: 'a2', reserved, since: host.now });
    const { slotDevices } = host.registry;
    host.now += 10 * minute;
    expect([slotDevices.of('any/2')?.length, slotDevices.heldBack('any/2')]).toEqual([2, null]);
    host.now += 1;
    expect([slotDevices.of('any/2'), slotDevices.heldBack('any/2')]).toEqual([null, expect.stringMatching('might end too late')]);
    agent('any/2', { kind: 'free' });
    expect(slotDevices.jobOf?.('any/2')).toBeNull();
  });

  test('one that has begun stays', () => {
    line = [large, { job: 'short', count: 2, lasts: 50 * minute }];
    host.registry.demandChanged(null);
    agent('any/2', { kind: 'busy', agent: 'a2', job: 'short', since: host.now, due: host.now + 50 * minute });
    host.now += 11 * minute;
    expect([host.registry.slotDevices.lost('any/2'), host.registry.slotDevices.heldBack('any/2')]).toEqual([false, null]);
  });
});
