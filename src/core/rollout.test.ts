import { describe, expect, test } from 'vitest';
import {
  choose,
  cleared,
  failed,
  isUnproved,
  keepsOld,
  lost,
  lostIn,
  noRollout,
  observe,
  provesAfter,
  provesAt,
  type Rollout,
  trust,
  wish,
} from './rollout.ts';
import { type Change, emptySlot, type JobResult, type Slot } from './slot.ts';

const now = 1_000;
const slot = (n: number, lanes: Partial<Slot> = {}): Slot => ({
  ...emptySlot({ key: `p/${n}`, runtime: 'docker', grace: 0 }),
  ...lanes,
});
const standby = (agent: string, fingerprint: string): Slot['standby'] => ({
  ...({ kind: 'standby', agent, reserved: null, fingerprint, since: 0 } as const),
});
const busy = (agent: string): Slot['agent'] => ({ kind: 'busy', agent, job: 'j', since: 0, due: null });
const idle = (agent: string, online: boolean): Slot['agent'] => ({ kind: 'idle', agent, fingerprint: 'new', online, since: 0 });
const anyone = { able: () => true, standby: true, fingerprint: () => 'new' };
const trusted: Rollout = { ...noRollout, trusted: 'one', wanted: 'one' };
const slots = [slot(1, { agent: busy('a1') }), slot(2), slot(3)];
/** p/2 tries something new. */
const trial = choose(wish(trusted, 'two'), slots, anyone);
const late = { binds: 'late', fingerprint: 'new', now } as const;
const early = { ...late, binds: 'early' } as const;
const failure = { code: 'E_X', message: 'x', retry: true };

describe('who tries it', () => {
  test('one slot does, the others keep what they have', () => {
    expect(['p/1', 'p/2', 'p/3'].map((key) => keepsOld(trial, key))).toEqual([true, false, true]);
  });

  test('all slots use the first mark, and one slot alone uses what is wanted', () => {
    expect(choose(wish(noRollout, 'one'), slots, anyone).canary).toBeNull();
    expect(choose(wish(trusted, 'two'), [slot(1)], anyone).canary).toBeNull();
    expect(isUnproved(wish(trusted, 'two'))).toBe(true);
  });

  test('a slot that has it already is preferred, as after a restart; then one that is free; one that cannot comes last', () => {
    const has = slot(3, { agent: busy('a3'), standby: standby('s3', 'new') });
    expect(choose(wish(trusted, 'two'), [slot(1), slot(2), has], anyone).canary).toBe('p/3');
    expect(choose(wish(trusted, 'two'), slots, { ...anyone, able: (key) => key !== 'p/2' }).canary).toBe('p/3');
    expect(choose(wish(trusted, 'two'), slots, { ...anyone, able: () => false }).canary).toBe('p/1');
  });

  test('the slot stays the same until it cannot have a sandbox, also for the next mark', () => {
    expect(choose(trial, [slot(1), slot(2, { agent: busy('a') })], anyone).canary).toBe('p/2');
    expect(choose(wish(trial, 'three'), slots, anyone)).toMatchObject({ canary: 'p/2', backoff: null });
    expect(choose(trial, slots, { ...anyone, able: (key) => key !== 'p/2' }).canary).toBe('p/3');
  });

  test('an old job that keeps the slot from trying anything: one that is free does, unless it makes a sandbox for a job', () => {
    const reserved = { job: 'j', limit: null, cold: false };
    const makes = slot(3, { standby: { kind: 'preparing', agent: 'a3', reserved, since: 0 } });
    const none = { ...anyone, standby: false };
    const atWork = slot(2, { agent: busy('old') });
    expect(choose(trial, [slot(1), atWork], none).canary).toBe('p/1');
    expect(choose(trial, [makes, atWork], none).canary).toBe('p/2');
    expect(choose(trial, [slot(1, { agent: busy('a1') }), atWork], none)).toBe(trial);
    const ready = observe(trial, slot(2, { standby: standby('new', 'new') }), late);
    const tries = slot(2, { agent: busy('new') });
    expect(choose(observe(ready, tries, late), [slot(1), tries], none).canary).toBe('p/2');
  });

  test('nobody tries anything once the old mark is wanted again', () => {
    expect(wish(trial, 'one')).toMatchObject({ canary: null });
    expect(isUnproved(wish(trial, 'one'))).toBe(false);
  });
});

describe('what proves it', () => {
  test('late binding: a standby that has been ready for ten minutes, or its job that has run for as long', () => {
    const ready = observe(trial, slot(2, { standby: standby('a', 'new') }), late);
    expect(provesAt(ready, true)).toBe(now + provesAfter);
    const working = observe(ready, slot(2, { agent: busy('a') }), { ...late, now: now + 5_000 });
    expect(provesAt(working, true)).toBe(now + provesAfter);
    expect(provesAt(observe(working, slot(2), late), true)).toBeNull();
  });

  test('early binding: an agent that has been online for ten minutes; one at the gate does not count', () => {
    const ready = observe(trial, slot(2, { standby: standby('a', 'new') }), early);
    expect(provesAt(ready, true)).toBeNull();
    const starting = observe(ready, slot(2, { agent: idle('a', false) }), early);
    expect(provesAt(starting, true)).toBeNull();
    expect(provesAt(observe(starting, slot(2, { agent: idle('a', true) }), { ...early, now: 7_000 }), true)).toBe(
      7_000 + provesAfter,
    );
  });

  test('nothing in the other slots, and no sandbox of the old mark', () => {
    expect(provesAt(observe(trial, slot(3, { standby: standby('a', 'new') }), late), true)).toBeNull();
    expect(provesAt(observe(trial, slot(2, { standby: standby('a', 'old') }), late), true)).toBeNull();
  });

  test('without the old image the others wait only until a sandbox is at its gate', () => {
    const ready = observe(trial, slot(2, { standby: standby('a', 'new') }), early);
    expect(provesAt(ready, false)).toBe(0);
    expect(provesAt(trial, false)).toBeNull();
  });

  test('where every slot uses it, ten minutes of one of them', () => {
    const first = wish(noRollout, 'one');
    expect(provesAt(observe(first, slot(3, { standby: standby('a', 'new') }), late), false)).toBe(now + provesAfter);
  });

  test('the end of a job is asked about once its agent is cleared', () => {
    const known = observe(trial, slot(2, { standby: standby('a', 'new') }), late);
    const working = observe(known, slot(2, { agent: busy('a') }), late);
    const ended = slot(2, { leaving: [{ agent: 'a', job: null, exit: null }] });
    const over = observe(working, ended, late);
    expect(provesAt(over, true)).toBeNull();
    expect(cleared(over, ended, slot(2))).toEqual(['a']);
    expect(cleared(over, slot(2), slot(2))).toEqual([]);
    const other = slot(3, { leaving: [{ agent: 'b', job: null, exit: null }] });
    expect(cleared(over, other, slot(3))).toEqual([]);
  });

  test('then everybody may have it', () => {
    expect(trust(trial)).toEqual({ ...noRollout, trusted: 'two', wanted: 'two' });
  });
});

test('after a lost job, an agent that waits proves nothing: one has to be at work for ten minutes', () => {
  const ready = observe(trial, slot(2, { standby: standby('a', 'new') }), late);
  const once = lost(ready, 'before');
  expect(provesAt(once, true)).toBeNull();
  const waits = observe(once, slot(2, { standby: standby('a', 'new') }), { ...late, now: now + 5 });
  expect(provesAt(waits, true)).toBeNull();
  expect(provesAt(observe(waits, slot(2, { agent: busy('a') }), { ...late, now: now + 9 }), true)).toBe(now + 9 + provesAfter);
  const online = observe(waits, slot(2, { agent: idle('a', true) }), early);
  expect(provesAt(online, true)).toBeNull();
  expect(provesAt(waits, false)).toBe(0);
  expect([wish(once, 'three').needsJob, trust(once).needsJob]).toEqual([false, false]);
});

test('a job is lost by the agent with the wanted mark that this step ends, which counts once', () => {
  const busyOne = observe(trial, slot(2, { agent: busy('a'), standby: standby('b', 'new') }), late);
  const two = { ...busyOne, agents: new Map(busyOne.agents).set('a', { slot: 'p/2', since: now }) };
  const ended = (agent: string, result: JobResult): Change => ({ change: 'ended', job: 'j', agent, result });
  const gone = { kind: 'lost', reason: 'it is gone' } as const;
  expect(lostIn(two, [ended('a', gone)])).toEqual({ agent: 'a', reason: 'it is gone' });
  expect([lostIn(two, [ended('x', gone)]), lostIn(two, [ended('a', { kind: 'cancelled' })])]).toEqual([null, null]);
  const once = lost(two, 'a');
  const left = slot(2, { leaving: [{ agent: 'a', job: null, exit: null }] });
  expect(cleared(observe(once, left, late), left, slot(2))).toEqual([]);
  expect(cleared(two, left, slot(2))).toEqual(['a']);
});

test('failures of the canary make it wait longer, and its ten minutes begin again', () => {
  const ready = observe(trial, slot(2, { standby: standby('a', 'new') }), late);
  const once = failed(ready, failure, 'prepare', now + 500, 0);
  expect([once.backoff.failures, once.backoff.until, provesAt(once, true)]).toEqual([1, now + 1_500, now + 500 + provesAfter]);
  const twice = failed(once, failure, 'prepare', now + 2_000, 0);
  expect([twice.backoff.failures, twice.backoff.until]).toEqual([2, now + 4_000]);
  expect(wish(twice, 'three').backoff).toBeNull();
});
