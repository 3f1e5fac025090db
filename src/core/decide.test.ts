/** Decisions for given slots and events. docs/slot-lifecycle.md has the whole table; these tests are the reasons behind it. */
import { describe, expect, test } from 'vitest';
import { decide, killInterval } from './decide.ts';
import { type AgentLane, emptySlot, type Slot, type SlotEvent, type StandbyLane } from './slot.ts';

const now = 10_000;
const empty = emptySlot({ key: 'p/1', runtime: 'docker', grace: 5_000 });
const gpu: Slot = { ...empty, devices: ['GPU-1'] };
const standby: StandbyLane = { kind: 'standby', agent: 'a1', reserved: null, fingerprint: 'f', since: 0 };
const busy: AgentLane = { kind: 'busy', agent: 'a0', job: 'j0', since: 0, due: null };
const releasing: AgentLane = { kind: 'releasing', agent: 'a0', job: 'j0', limit: 7_000, fingerprint: 'f', since: 0 };
const failure = { code: 'E_X', message: 'x', retry: true } as const;
const withStandby = (lane: StandbyLane, slot = empty): Slot => ({ ...slot, standby: lane });
const withAgent = (lane: AgentLane, slot = empty): Slot => ({ ...slot, agent: lane });
const exit = (code: number, released: boolean): SlotEvent => ({
  kind: 'exited',
  agent: 'a0',
  exit: { kind: 'code', code },
  released,
});

describe('the standby lane', () => {
  test('a fill is prepared, and its job is reserved in the same commit', () => {
    const reserved = { job: 'j1', limit: null, cold: true };
    const step = decide(empty, { kind: 'fill', agent: 'a1', reserved }, now);
    expect(step.slot.standby).toEqual({ kind: 'preparing', agent: 'a1', reserved, since: now });
    expect(step.changes).toEqual([{ change: 'reserved', job: 'j1', agent: 'a1' }]);
    expect(step.actions).toEqual([{ act: 'prepare', agent: 'a1', job: 'j1' }]);
  });

  test('an image without a shell is a failure of the image, with an explanation', () => {
    const preparing = withStandby({ kind: 'preparing', agent: 'a0', reserved: null, since: 0 });
    const step = decide(preparing, exit(127, false), now);
    expect(step.changes).toEqual([
      { change: 'failed', stage: 'prepare', failure: expect.objectContaining({ code: 'E_NO_SHELL', retry: false }) },
    ]);
    expect(step.actions).toEqual([{ act: 'clear', agent: 'a0' }]);
  });

  test("a job's own broken image returns the job with the reason, and does not block the pool", () => {
    const preparing = withStandby({ kind: 'preparing', agent: 'a0', reserved: { job: 'j0', limit: null, cold: true }, since: 0 });
    const permanent = { ...failure, retry: false };
    const step = decide(preparing, { kind: 'prepareFailed', agent: 'a0', failure: permanent }, now);
    expect(step.changes).toEqual([{ change: 'returned', job: 'j0', agent: 'a0', failure: permanent }]);
  });

  test('a standby that the Engine ended is replaced, and the pool does not back off', () => {
    const step = decide(
      withStandby(standby),
      { kind: 'exited', agent: 'a1', exit: { kind: 'lost', reason: 'x' }, released: false },
      now,
    );
    expect(step.changes).toEqual([]);
    expect(step.slot.standby).toEqual({ kind: 'none' });
  });

  test('a cancelled job that waits for its sandbox ends cancelled and settles before the sandbox goes', () => {
    const preparing = withStandby({ kind: 'preparing', agent: 'a0', reserved: { job: 'j0', limit: null, cold: true }, since: 0 });
    const step = decide(preparing, { kind: 'stop', agent: 'a0', why: 'cancelled', grace: 0 }, now);
    expect(step.changes).toEqual([{ change: 'ended', job: 'j0', agent: 'a0', result: { kind: 'cancelled' } }]);
    const settled = decide(step.slot, { kind: 'settled', agent: 'a0' }, now);
    expect(settled.changes).toEqual([{ change: 'settled', job: 'j0', agent: 'a0' }]);
    expect(settled.actions).toEqual([{ act: 'clear', agent: 'a0' }]);
    expect(decide(settled.slot, { kind: 'cleared', agent: 'a0', outcome: null }, now).slot.leaving).toEqual([]);
  });
});

describe('release', () => {
  test('a failed release that began after all: our KILL counts as the infrastructure’s, its own exit code counts', () => {
    const releasing = withAgent({ kind: 'releasing', agent: 'a0', job: 'j0', limit: null, fingerprint: 'f', since: 0 });
    const failed = decide(releasing, { kind: 'releaseFailed', agent: 'a0', failure, countsAgainst: 'pool' }, now).slot;
    const begun = decide(failed, { kind: 'released', agent: 'a0' }, now).slot;
    const ended = (code: number) => decide(begun, exit(code, true), now).changes;
    expect(ended(137)).toMatchObject([{ change: 'ended', job: 'j0', result: { kind: 'lost' } }]);
    expect(ended(3)).toEqual([{ change: 'ended', job: 'j0', agent: 'a0', result: { kind: 'code', code: 3 } }]);
  });

  test('moves the standby to the agent lane, and records the assignment before anything is sent', () => {
    const step = decide(withStandby(standby), { kind: 'assign', job: 'j1', limit: 60_000 }, now);
    expect(step.slot).toMatchObject({ standby: { kind: 'none' }, agent: { kind: 'releasing', agent: 'a1', job: 'j1' } });
    expect(step.changes).toEqual([{ change: 'assigned', job: 'j1', agent: 'a1' }]);
    expect(step.actions).toEqual([{ act: 'release', agent: 'a1', job: 'j1' }]);
  });

  test('needs a free agent lane, and a sandbox made for one job takes no other', () => {
    const taken = withStandby(standby, withAgent(busy));
    expect(decide(taken, { kind: 'assign', job: 'j1', limit: null }, now).slot).toBe(taken);
    const mine = withStandby({ ...standby, reserved: { job: 'j9', limit: null, cold: true } });
    expect(decide(mine, { kind: 'assign', job: 'j1', limit: null }, now).slot).toBe(mine);
    expect(decide(mine, { kind: 'engage' }, now).slot).toBe(mine);
  });

  test('the time limit runs from released, not from when files began to be sent', () => {
    const step = decide(withAgent(releasing), { kind: 'released', agent: 'a0' }, now);
    expect(step.slot.agent).toEqual({ kind: 'busy', agent: 'a0', job: 'j0', since: now, due: now + 7_000 });
    expect(decide(step.slot, { kind: 'released', agent: 'a0' }, now).changes).toEqual([]);
  });

  test('an end before the release returns the job; an end after it is the result', () => {
    expect(decide(withAgent(releasing), exit(97, false), now).changes[0]).toMatchObject({
      change: 'returned',
      failure: { code: 'E_DEVICE_LOST' },
    });
    expect(decide(withAgent(releasing), exit(97, true), now).changes).toEqual([
      { change: 'ended', job: 'j0', agent: 'a0', result: { kind: 'code', code: 97 } },
    ]);
  });

  test('a failed release ends the sandbox, and checks its log before the job may run again', () => {
    const step = decide(withAgent(releasing), { kind: 'releaseFailed', agent: 'a0', failure, countsAgainst: 'pool' }, now);
    expect(step.slot.agent).toMatchObject({ kind: 'ending', signal: 'KILL', why: 'unreleased', released: false });
    expect(decide(step.slot, exit(137, false), now).changes).toEqual([{ change: 'returned', job: 'j0', agent: 'a0', failure }]);
    expect(decide(step.slot, exit(137, true), now).changes[0]).toMatchObject({
      change: 'ended',
      result: { kind: 'lost' },
    });
  });

  test('a job that began unseen, and was ended for that, has not failed by itself', () => {
    const stop = { kind: 'stop', agent: 'a0', why: 'unreleased', grace: 0 } as const;
    const step = decide(withAgent(releasing), stop, now);
    expect(step.actions).toEqual([{ act: 'terminate', agent: 'a0' }]);
    for (const code of [143, 137]) {
      const ended = decide(step.slot, exit(code, true), now).changes[0];
      expect(ended).toMatchObject({ change: 'ended', result: { kind: 'lost' } });
    }
    const own = decide(step.slot, exit(3, true), now).changes[0];
    expect(own).toMatchObject({ change: 'ended', result: { kind: 'code', code: 3 } });
  });

  test('a sandbox that somebody removed during the release is lost: nobody knows whether the script began', () => {
    const step = decide(withAgent(releasing), { kind: 'gone', agent: 'a0' }, now);
    expect(step.changes[0]).toMatchObject({ change: 'ended', result: { kind: 'lost' } });
  });
});

describe('the end of an agent', () => {
  test('frees the lane at once; it is cleared while the next one works', () => {
    const step = decide(withAgent(busy), exit(3, true), now);
    expect(step.slot).toMatchObject({ agent: { kind: 'free' }, leaving: [{ agent: 'a0', job: 'j0', exit: null }] });
    expect(step.changes).toEqual([{ change: 'ended', job: 'j0', agent: 'a0', result: { kind: 'code', code: 3 } }]);
    expect(step.actions).toEqual([{ act: 'settle', agent: 'a0', job: 'j0' }]);
  });

  test('with devices the lane is free only after the proof', () => {
    const step = decide(withAgent(busy, gpu), exit(0, true), now);
    expect(step.slot.agent).toEqual({ kind: 'proving', agent: 'a0', since: now });
    expect(step.actions).toContainEqual({ act: 'prove', agent: 'a0' });
    expect(decide(step.slot, { kind: 'proved', agent: 'a0' }, now).slot.agent).toEqual({ kind: 'free' });
  });

  test('TERM first, then KILL after the grace, then KILL again', () => {
    const stopping = decide(withAgent(busy), { kind: 'stop', agent: 'a0', why: 'cancelled', grace: 2_000 }, now);
    expect(stopping.actions).toEqual([{ act: 'terminate', agent: 'a0' }]);
    expect(decide(stopping.slot, { kind: 'due' }, now + 1_999).slot).toBe(stopping.slot);
    const killing = decide(stopping.slot, { kind: 'due' }, now + 2_000);
    expect(killing.actions).toEqual([{ act: 'kill', agent: 'a0' }]);
    const again = decide(killing.slot, { kind: 'due' }, now + 2_000 + killInterval);
    expect(again.actions).toEqual([{ act: 'kill', agent: 'a0' }]);
    expect(decide(again.slot, exit(137, true), now).changes[0]).toMatchObject({ result: { kind: 'cancelled' } });
  });

  test('a job over its time limit ends as timed out', () => {
    const late = decide(withAgent({ ...busy, due: now }), { kind: 'due' }, now);
    expect(late.slot.agent).toMatchObject({ kind: 'ending', signal: 'TERM', why: 'timeout', due: now + empty.grace });
    expect(decide(late.slot, exit(0, true), now).changes[0]).toMatchObject({ result: { kind: 'timeout' } });
  });

  test('a job whose files exceed the limit ends for that reason, whatever its exit code', () => {
    const stopping = decide(withAgent(busy), { kind: 'stop', agent: 'a0', why: 'disk', grace: 2_000 }, now);
    expect(stopping.actions).toEqual([{ act: 'terminate', agent: 'a0' }]);
    expect(decide(stopping.slot, exit(0, true), now).changes[0]).toMatchObject({ result: { kind: 'disk' } });
  });

  test('a second request to stop only hurries the first', () => {
    const first = decide(withAgent(busy), { kind: 'stop', agent: 'a0', why: 'cancelled', grace: 9_000 }, now).slot;
    expect(decide(first, { kind: 'stop', agent: 'a0', why: 'shutdown', grace: 10_000 }, now).slot).toBe(first);
    expect(decide(first, { kind: 'stop', agent: 'a0', why: 'shutdown', grace: 0 }, now).slot.agent).toMatchObject({
      why: 'cancelled',
      due: now,
    });
  });

  test('a shutdown because the cloud takes the machine back says so, whatever the exit code', () => {
    const stopping = decide(withAgent(busy), { kind: 'stop', agent: 'a0', why: 'taken', grace: 2_000 }, now);
    expect(decide(stopping.slot, exit(1, true), now).changes[0]).toMatchObject({
      result: { kind: 'lost', reason: 'the cloud ended the machine while the job ran' },
    });
  });

  test('a shutdown before the script began returns the job to its queue', () => {
    const step = decide(withAgent(releasing), { kind: 'stop', agent: 'a0', why: 'shutdown', grace: 0 }, now);
    expect(decide(step.slot, exit(143, false), now).changes).toEqual([
      { change: 'returned', job: 'j0', agent: 'a0', failure: null },
    ]);
  });
});

describe('early binding', () => {
  test('registers, releases, idles, then is busy with the job the service names', () => {
    let slot = decide(withStandby({ ...standby, agent: 'a0' }), { kind: 'engage' }, now).slot;
    expect(slot.agent.kind).toBe('registering');
    slot = decide(slot, { kind: 'registered', agent: 'a0' }, now).slot;
    slot = decide(slot, { kind: 'released', agent: 'a0' }, now).slot;
    expect(slot.agent).toEqual({ kind: 'idle', agent: 'a0', fingerprint: 'f', online: false, since: now });
    const seen = decide(slot, { kind: 'jobSeen', agent: 'a0', job: 'build-7', limit: null }, now);
    expect(seen.changes).toEqual([
      { change: 'worked', stage: 'release' },
      { change: 'started', job: 'build-7', agent: 'a0' },
    ]);
    expect(decide(seen.slot, { kind: 'jobSeen', agent: 'a0', job: 'build-8', limit: null }, now).slot).toBe(seen.slot);
  });

  const idle = { kind: 'idle', agent: 'a0', fingerprint: 'f', online: false, since: 0 } as const;

  test.each(['idle', 'retiring'] as const)(
    'the time limit of a job runs from when it was seen, also while its agent is %s',
    (kind) => {
      const seen = decide(withAgent({ ...idle, kind }), { kind: 'jobSeen', agent: 'a0', job: 'build-7', limit: 5_000 }, now).slot;
      expect(seen.agent).toMatchObject({ kind: 'busy', due: now + 5_000 });
      expect(decide(seen, { kind: 'due' }, now + 5_000).slot.agent).toMatchObject({
        kind: 'ending',
        signal: 'TERM',
        why: 'timeout',
        job: 'build-7',
      });
    },
  );

  test('an agent counts as working only once its service sees it', () => {
    const releasing = withAgent({ kind: 'releasing', agent: 'a0', job: null, limit: null, fingerprint: 'f', since: 0 });
    expect(decide(releasing, { kind: 'released', agent: 'a0' }, now).changes).toEqual([]);
    const online = decide(withAgent(idle), { kind: 'online', agent: 'a0' }, now);
    expect(online.changes).toEqual([{ change: 'worked', stage: 'online' }]);
    expect(decide(online.slot, { kind: 'online', agent: 'a0' }, now).slot).toBe(online.slot);
  });

  test('an agent that never comes online is ended, and its pool backs off; one that is online is not', () => {
    const silent = decide(withAgent(idle), { kind: 'releaseFailed', agent: 'a0', failure, countsAgainst: 'pool' }, now);
    expect(silent.slot.agent).toMatchObject({ kind: 'ending', signal: 'KILL', failure });
    expect(silent.changes).toEqual([{ change: 'failed', stage: 'release', failure }]);
    expect(decide(silent.slot, exit(137, true), now).changes).toEqual([]);
    const online = withAgent({ ...idle, online: true });
    expect(decide(online, { kind: 'releaseFailed', agent: 'a0', failure, countsAgainst: 'pool' }, now).slot).toBe(online);
  });

  test('is told to end only once its service gives it no more jobs; a job that came anyway runs', () => {
    const retiring = decide(withAgent({ ...idle, online: true }), { kind: 'retire', agent: 'a0' }, now);
    expect(retiring.actions).toEqual([{ act: 'retire', agent: 'a0' }]);
    expect(decide(retiring.slot, { kind: 'retired', agent: 'a0' }, now).actions).toEqual([{ act: 'terminate', agent: 'a0' }]);
    const late = decide(retiring.slot, { kind: 'jobSeen', agent: 'a0', job: 'build-7', limit: null }, now).slot;
    expect(late.agent).toMatchObject({ kind: 'busy', job: 'build-7' });
    expect(decide(late, { kind: 'retired', agent: 'a0' }, now).slot).toBe(late);
  });

  test('the exit of an agent that ends by itself is kept until its service has said whether it had a job', () => {
    const step = decide(withAgent(idle), exit(1, true), now);
    expect(step.slot).toMatchObject({ agent: { kind: 'free' }, leaving: [{ agent: 'a0', job: null, exit: { code: 1 } }] });
    expect(step.changes).toEqual([]);
    expect(step.actions).toEqual([{ act: 'clear', agent: 'a0' }]);
    const early = withAgent({ kind: 'releasing', agent: 'a0', job: null, limit: null, fingerprint: 'f', since: 0 });
    expect(decide(early, exit(1, true), now).slot.leaving).toEqual(step.slot.leaving);
    // Also why it was lost: nobody else can say that in the log of a job that it had.
    const lost = { kind: 'lost', reason: 'somebody deleted its pod' } as const;
    const gone = decide(withAgent(idle), { kind: 'exited', agent: 'a0', exit: lost, released: true }, now);
    expect(gone.slot.leaving).toEqual([{ agent: 'a0', job: null, exit: lost }]);
    const clear = (outcome: Extract<SlotEvent, { kind: 'cleared' }>['outcome']) =>
      decide(step.slot, { kind: 'cleared', agent: 'a0', outcome }, now).changes;
    expect(clear('worked')).toEqual([{ change: 'worked', stage: 'release' }]);
    expect(clear(failure)).toEqual([{ change: 'failed', stage: 'release', failure }]);
    expect(clear(null)).toEqual([]);
  });

  test('after a refused registration the lane is free and the pool backs off', () => {
    const registering = withAgent({ kind: 'registering', agent: 'a0', fingerprint: 'f', since: 0 });
    const step = decide(registering, { kind: 'registerFailed', agent: 'a0', failure }, now);
    expect(step.slot).toMatchObject({ agent: { kind: 'free' }, leaving: [{ agent: 'a0', job: null, exit: null }] });
    expect(step.changes).toEqual([{ change: 'failed', stage: 'release', failure }]);
  });
});

test('an event about another agent changes nothing, in any lane', () => {
  for (const slot of [withStandby(standby), withAgent(busy), withAgent(releasing)]) {
    const stranger: SlotEvent = { kind: 'exited', agent: 'stranger', exit: { kind: 'code', code: 0 }, released: true };
    expect(decide(slot, stranger, now)).toEqual({ slot, changes: [], actions: [] });
  }
});
