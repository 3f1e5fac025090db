import { describe, expect, test } from 'vitest';
import { backoff } from './backoff.ts';
import { isOpen, leavingLimit, type PoolView, plan } from './plan.ts';
import { emptySlot, type Slot } from './slot.ts';

const now = 100_000;
const empty = emptySlot({ key: 'p/1', runtime: 'docker', grace: 5_000 });
const ready: Slot = { ...empty, standby: { kind: 'standby', agent: 'a1', reserved: null, fingerprint: 'f', since: now - 10 } };
const job = { job: 'j1', limit: null, cold: false };
const pool: PoolView = {
  binds: 'late',
  wanted: true,
  standby: true,
  paused: false,
  backoff: null,
  fingerprint: 'f',
  standbyMaxAge: 1_000,
  waiting: null,
  devices: [],
  held: false,
  closed: false,
  lost: false,
  mayRenew: true,
  ownImageOnly: false,
  unneeded: false,
  contested: false,
  pilots: null,
  alone: false,
};
const failure = { code: 'E_X', message: 'x', retry: true };

describe('plan', () => {
  test('keeps one standby, also while an agent runs', () => {
    expect(plan(empty, pool, now)).toEqual({ kind: 'fill', reserved: null });
    const working: Slot = { ...empty, agent: { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null } };
    expect(plan(working, pool, now)).toEqual({ kind: 'fill', reserved: null });
    expect(plan(ready, pool, now)).toBeNull();
  });

  test('keeps no standby next to an agent where an engine would grant it devices of its own, and renews without one', () => {
    const alone = { ...pool, alone: true };
    expect(plan(empty, alone, now)).toEqual({ kind: 'fill', reserved: null });
    const working: Slot = { ...empty, agent: { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null } };
    expect(plan(working, alone, now)).toBeNull();
    const idle: Slot = { ...empty, agent: { kind: 'idle', agent: 'a1', fingerprint: 'f', online: true, since: now } };
    const early = { ...alone, binds: 'early' as const };
    expect(plan(idle, early, now)).toBeNull();
    expect(plan(idle, { ...early, fingerprint: 'g' }, now)).toEqual({ kind: 'retire', agent: 'a1' });
  });

  test('releases a waiting job to a standby that fits', () => {
    expect(plan(ready, { ...pool, waiting: job }, now)).toEqual({ kind: 'assign', job: 'j1', limit: null });
    expect(plan(ready, { ...pool, binds: 'early' }, now)).toEqual({ kind: 'engage' });
  });

  test('an agent with devices leased for a job that nobody has any more ends, and so does what was made for it', () => {
    const idle: Slot = { ...empty, agent: { kind: 'idle', agent: 'a1', fingerprint: 'f', online: true, since: now - 15_000 } };
    const leased = { ...pool, binds: 'early' as const, standby: false, standbyMaxAge: 3_600_000, devices: null };
    const end = { kind: 'retire', agent: 'a1' };
    expect(plan(idle, leased, now)).toBeNull();
    expect(plan(idle, { ...leased, unneeded: true }, now)).toEqual(end);
    const later = now + 45_000;
    expect([plan(idle, { ...leased, contested: true }, later), plan(idle, { ...leased, contested: true }, now)]).toEqual([
      end,
      null,
    ]);
    const granted = { ...leased, devices: [], unneeded: true };
    expect([plan(ready, granted, now), plan(empty, granted, now)]).toEqual([{ kind: 'discard' }, null]);
    expect(plan(empty, { ...granted, unneeded: false }, now)).toEqual({ kind: 'fill', reserved: null });
  });

  test('a standby with leased devices that may not start gives them to another pool, whatever it was made for', () => {
    const granted = { ...pool, standby: false, contested: true };
    const reserved: Slot = { ...ready, standby: { ...ready.standby, reserved: job } as Slot['standby'] };
    for (const slot of [ready, reserved])
      for (const more of [{ paused: true }, { held: true }, { backoff: backoff(null, failure, 'prepare', now, 0) }]) {
        expect(plan(slot, { ...granted, ...more }, now)).toEqual({ kind: 'discard' });
        expect(plan(slot, { ...granted, ...more, contested: false }, now)).toBeNull();
      }
    expect(plan(reserved, granted, now)).toEqual({ kind: 'assign', job: 'j1', limit: null });
  });

  test('a standby of before its pool began to lease devices goes when another pool waits', () => {
    expect(plan(ready, { ...pool, standby: false, contested: true }, now)).toEqual({ kind: 'discard' });
    expect(plan(ready, { ...pool, standby: false, contested: true, waiting: job }, now)).toMatchObject({ kind: 'assign' });
    expect(plan(ready, { ...pool, standby: false }, now)).toBeNull();
  });

  test('a slot is open while it would accept a job at once, whatever waits now', () => {
    expect(isOpen(ready, pool, now)).toBe(true);
    expect(isOpen(ready, { ...pool, waiting: { ...job, cold: true } }, now)).toBe(true);
    expect(isOpen(empty, pool, now)).toBe(false);
    expect(isOpen(empty, { ...pool, standby: false }, now)).toBe(true);
    const closed: Partial<PoolView>[] = [
      { wanted: false },
      { paused: true },
      { held: true },
      { fingerprint: 'g' },
      { devices: ['GPU-1'] },
    ];
    for (const view of closed) expect(isOpen(ready, { ...pool, ...view }, now)).toBe(false);
    expect(isOpen({ ...ready, agent: { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null } }, pool, now)).toBe(false);
    expect(isOpen({ ...ready, agent: { kind: 'proving', agent: 'a0', since: 0 } }, pool, now)).toBe(false);
  });

  test('while a trial leaves a slot without the image, only a job with its own sandbox starts, and nothing is given up', () => {
    const own = { job: 'j1', limit: null, cold: true };
    const none = { ...pool, ownImageOnly: true, fingerprint: null };
    expect([plan(empty, none, now), plan(ready, none, now), isOpen(empty, none, now)]).toEqual([null, null, false]);
    expect([plan(empty, { ...none, waiting: job }, now), plan(ready, { ...none, waiting: job }, now)]).toEqual([null, null]);
    expect(plan(empty, { ...none, standby: false, waiting: job }, now)).toBeNull();
    expect(plan(empty, { ...none, waiting: own }, now)).toEqual({ kind: 'fill', reserved: own });
    expect(plan(ready, { ...none, waiting: own }, now)).toEqual({ kind: 'discard' });
    const working: Slot = { ...ready, agent: { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null } };
    expect([plan(working, { ...none, waiting: own }, now), plan({ ...working, standby: empty.standby }, none, now)]).toEqual([
      null,
      null,
    ]);
    const early: PoolView = { ...none, binds: 'early' };
    const idle: Slot = { ...empty, agent: { kind: 'idle', agent: 'a0', fingerprint: 'e', online: true, since: now - 2_000 } };
    expect([plan(empty, early, now), plan(ready, early, now), plan(idle, { ...early, standby: false }, now)]).toEqual([
      null,
      null,
      null,
    ]);
  });

  test('makes room for a job that needs another sandbox, and makes one for it alone', () => {
    const waiting = { ...job, cold: true };
    expect(plan(ready, { ...pool, waiting }, now)).toEqual({ kind: 'discard' });
    expect(plan(empty, { ...pool, waiting }, now)).toEqual({ kind: 'fill', reserved: { job: 'j1', limit: null, cold: true } });
  });

  test('prepares only for a waiting job without standbys', () => {
    expect(plan(empty, { ...pool, standby: false }, now)).toBeNull();
    expect(plan(empty, { ...pool, standby: false, waiting: job }, now)).toEqual({
      kind: 'fill',
      reserved: job,
    });
  });

  test('makes an agent that must be online first as soon as its lane is free, also without standbys', () => {
    const early: PoolView = { ...pool, binds: 'early', standby: false };
    expect(plan(empty, early, now)).toEqual({ kind: 'fill', reserved: null });
    const busy: Slot = { ...empty, agent: { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null } };
    expect(plan(busy, early, now)).toBeNull();
  });

  test('S11: discards a standby that is too old or made from something else', () => {
    expect(plan(ready, { ...pool, waiting: job, standbyMaxAge: 5 }, now)).toEqual({ kind: 'discard' });
    expect(plan(ready, { ...pool, waiting: job, fingerprint: 'g' }, now)).toEqual({ kind: 'discard' });
    expect(plan(ready, { ...pool, waiting: job, fingerprint: null }, now)).toEqual({ kind: 'discard' });
    expect(plan(ready, { ...pool, fingerprint: 'g', paused: true }, now)).toBeNull();
  });

  test('starts nothing while paused, backing off, or with too many agents to clear', () => {
    const held = backoff(null, failure, 'prepare', now, 0);
    const leaving = Array.from({ length: leavingLimit }, (_, i) => ({ agent: `l${i}`, job: null, exit: null }));
    for (const slot of [empty, ready]) {
      expect(plan(slot, { ...pool, waiting: job, paused: true }, now)).toBeNull();
      expect(plan(slot, { ...pool, waiting: job, backoff: held }, now)).toBeNull();
      expect(plan({ ...slot, leaving }, { ...pool, waiting: job }, now)).toBeNull();
    }
    expect(plan(empty, { ...pool, backoff: held }, held.until)).not.toBeNull();
  });

  test('S1: gives up a standby whose devices are no longer the slot’s, and makes none without devices', () => {
    const leased: Slot = { ...ready, devices: ['GPU-1', 'GPU-2'] };
    expect(plan(leased, { ...pool, waiting: job, devices: ['GPU-2', 'GPU-1'] }, now)).toMatchObject({ kind: 'assign' });
    for (const devices of [['GPU-1'], ['GPU-1', 'GPU-3'], [], null])
      expect(plan(leased, { ...pool, waiting: job, devices }, now)).toEqual({ kind: 'discard' });
    const preparing: Slot = { ...leased, standby: { kind: 'preparing', agent: 'a1', reserved: null, since: now } };
    expect(plan(preparing, { ...pool, devices: ['GPU-3', 'GPU-4'] }, now)).toEqual({ kind: 'discard' });
    expect(plan(empty, { ...pool, waiting: job, devices: null }, now)).toBeNull();
    expect(plan(empty, { ...pool, waiting: job, devices: ['GPU-1'] }, now)).toBeNull();
  });

  test('releases nothing on devices that must not be used now, and keeps the standby', () => {
    const leased: Slot = { ...ready, devices: ['GPU-1'] };
    expect(plan(leased, { ...pool, waiting: job, devices: ['GPU-1'], held: true }, now)).toBeNull();
    expect(plan({ ...leased, standby: { kind: 'none' } }, { ...pool, devices: ['GPU-1'], held: true }, now)).toEqual({
      kind: 'fill',
      reserved: null,
    });
  });

  test('empties the slot of a pool that is no longer wanted, but lets a job run on', () => {
    expect(plan(ready, { ...pool, wanted: false }, now)).toEqual({ kind: 'discard' });
    expect(plan(empty, { ...pool, wanted: false, waiting: job }, now)).toBeNull();
    const busy: Slot = { ...empty, agent: { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null } };
    expect(plan(busy, { ...pool, wanted: false }, now)).toBeNull();
  });

  describe('an idle agent', () => {
    const lane = { kind: 'idle', agent: 'a0', fingerprint: 'f', online: true, since: now - 10 } as const;
    const idle: Slot = { ...ready, agent: lane };
    const early: PoolView = { ...pool, binds: 'early' };
    const retired = { kind: 'retire', agent: 'a0' };

    test('stays while it is wanted and current, also while its pool is paused for a reason of its own', () => {
      expect(plan(idle, early, now)).toBeNull();
      expect(plan(idle, { ...early, fingerprint: null }, now)).not.toEqual(retired);
      expect(plan(idle, { ...early, fingerprint: 'g', paused: true }, now)).toBeNull();
    });

    test('goes when its pool drains, when a person pauses it, and when another slot has its devices', () => {
      expect(plan(idle, { ...early, wanted: false }, now)).toEqual(retired);
      expect(plan(idle, { ...early, paused: true, closed: true }, now)).toEqual(retired);
      expect(plan({ ...idle, devices: ['GPU-1'] }, { ...early, devices: ['GPU-2'] }, now)).toEqual(retired);
      expect(plan({ ...idle, devices: ['GPU-1'] }, { ...early, devices: null }, now)).not.toEqual(retired);
      expect(plan(idle, { ...early, held: true }, now)).toBeNull();
      expect(plan(idle, { ...early, held: true, lost: true }, now)).toEqual(retired);
    });

    test('S11: is renewed once the next one is ready, one slot after the other', () => {
      const fresh: Slot = { ...idle, standby: { kind: 'standby', agent: 'a1', reserved: null, fingerprint: 'g', since: now } };
      expect(plan(fresh, { ...early, fingerprint: 'g' }, now)).toEqual(retired);
      expect(plan(fresh, { ...early, fingerprint: 'g', mayRenew: false }, now)).toBeNull();
      expect(plan(idle, { ...early, fingerprint: 'g' }, now)).toEqual({ kind: 'discard' });
      expect(plan({ ...idle, standby: { kind: 'none' } }, { ...early, fingerprint: 'g' }, now)).toEqual({
        kind: 'fill',
        reserved: null,
      });
      const old: Slot = { ...idle, agent: { ...lane, since: now - 2_000 } };
      expect(plan(old, early, now)).toEqual(retired);
      expect(plan({ ...old, standby: { kind: 'none' } }, { ...early, standby: false }, now)).toEqual(retired);
    });
  });
});

describe('backoff', () => {
  test('doubles from one second up to five minutes', () => {
    const waits: number[] = [];
    for (let held = backoff(null, failure, 'prepare', 0, 0); waits.length < 11; held = backoff(held, failure, 'prepare', 0, 0))
      waits.push(held.until);
    expect(waits).toEqual([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].map((seconds) => seconds * 1000));
  });

  test('waits half a minute at once when trying again cannot help', () => {
    expect(backoff(null, { ...failure, retry: false }, 'prepare', 0, 0).until).toBe(30_000);
  });

  test('spreads pools that failed together by up to a fifth', () => {
    expect(backoff(null, failure, 'prepare', 0, 0.999).until).toBe(800);
  });
});
