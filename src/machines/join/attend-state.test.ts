/** What follows from what, for a machine that has joined: each row is an event in a state, and the effects of it. */
import { describe, expect, test } from 'vitest';
import { type AttendEvent, type AttendRules, type AttendState, attendStart, type Failed, next } from './attend-state.ts';
import type { AttendLook } from './local-daemon.ts';

const [now, wall] = [1_000_000, 1_700_000_000_000];
const rules: AttendRules = { guestEnds: false, away: 3600, beat: 30_000, askEvery: 5_000 };
const free: AttendLook = { busy: 0, agents: 2, slots: 2, waiting: null, problem: null, isDraining: false, lastEnd: null };
const empty: AttendLook = { ...free, agents: 0, isDraining: true };
const absent: Failed = { isAbsent: true, why: 'No daemon runs.' };
const turning = { isRunning: true, again: false };
const joined: AttendState = { ...attendStart(null, now - 7_200_000), look: free, hasJoined: true };
const draining: AttendState = { ...joined, goal: 'drain', look: empty, turn: turning };
const drained: AttendState = { ...draining, isDown: true, drainedAt: now - 700_000 };

const looked = (look: AttendLook | Failed, isAsked = false): AttendEvent => ({ kind: 'looked', look, isAsked });
const acted = (how: 'drain' | 'down', goal: 'drain' | 'end', failed: Failed | null = null): AttendEvent => ({
  kind: 'acted',
  how,
  goal,
  failed,
});

/** An effect in a few words; logs are left out. */
function words(state: AttendState, event: AttendEvent, more: Partial<AttendRules> = {}): string[] {
  return next(state, event, { now, wall }, { ...rules, ...more }).effects.flatMap((effect) => {
    switch (effect.do) {
      case 'log':
        return [];
      case 'wait':
        return [`${effect.wait} in ${effect.ms}`];
      case 'down':
        return [`down ${effect.how} ${effect.grace}`];
      case 'stage':
        return [`stage ${effect.stage}`];
      case 'remember':
        return [`remember ${effect.memory.goal}`];
      default:
        return [effect.do];
    }
  });
}

const noticed = wall + 120_000;

describe('the effects of an event', () => {
  test.each<[string, AttendState, AttendEvent, string[], Partial<AttendRules>?]>([
    ['it begins', attendStart(null, now), { kind: 'started' }, ['look', 'beat in 30000', 'ask']],
    ['where the cloud gives no notice', attendStart(null, now), { kind: 'started' }, ['look', 'beat in 30000'], { askEvery: null }],
    [
      'it begins again after a notice',
      attendStart({ goal: 'drain', isDown: false, notice: noticed }, now),
      { kind: 'started' },
      ['look', 'beat in 30000', 'stage preempted'],
    ],
    [
      'its daemon answers for the first time',
      { ...attendStart(null, now), turn: turning },
      looked(free),
      ['stage joined', 'beat', 'turn in 30000'],
    ],
    ['its daemon is absent before that', { ...attendStart(null, now), turn: turning }, looked(absent), ['turn in 30000']],
    ['it is to drain', joined, { kind: 'ordered', order: 'drain' }, ['remember drain', 'look', 'beat in 30000']],
    ['it is to stay after it was to drain', { ...joined, goal: 'drain' }, { kind: 'ordered', order: 'stay' }, ['beat in 30000']],
    [
      'it is to end while a look is under way',
      { ...joined, turn: turning },
      { kind: 'ordered', order: 'end' },
      ['remember end', 'beat in 30000'],
    ],
    ['its daemon does not drain yet', draining, looked(free), ['drain']],
    ['its daemon was told to drain', draining, acted('drain', 'drain'), ['look']],
    ['its daemon could not be told', draining, acted('drain', 'drain', absent), ['turn in 2000']],
    ['an agent is left', draining, looked({ ...empty, agents: 1 }), ['turn in 2000']],
    ['no agent is left', draining, looked(empty), ['down drain null']],
    ['the controller still asks for what its jobs made', draining, looked(empty, true), ['turn in 2000']],
    ['it has asked for too long', { ...draining, emptySince: now - 600_000 }, looked(empty, true), ['down drain null']],
    [
      'the daemon was told to end just now',
      { ...draining, told: { goal: 'drain', at: now - 1_000 } },
      looked(empty),
      ['turn in 2000'],
    ],
    [
      'the daemon was told to drain, but is to end',
      { ...draining, goal: 'end', told: { goal: 'drain', at: now } },
      looked(empty),
      ['down end 5000'],
    ],
    [
      'the daemon has gone as it was told',
      { ...draining, isDown: true },
      looked(absent),
      ['stage drained', 'beat', 'turn in 2000'],
    ],
    ['the daemon has gone by itself', draining, looked(absent), ['down drain null']],
    ['nobody destroys it', drained, looked(absent), ['powerOff'], { guestEnds: true }],
    ['nobody destroys it where a shutdown does not end it', drained, looked(absent), ['turn in 2000']],
    [
      'the cloud takes it back',
      joined,
      { kind: 'asked', notice: noticed },
      ['remember stay', 'stage preempted', 'remember drain', 'look'],
    ],
    ['the cloud does not', joined, { kind: 'asked', notice: null }, ['ask in 5000']],
    [
      'the time of a notice is over',
      { ...draining, endsAt: now },
      looked({ ...empty, agents: 1 }),
      ['remember end', 'down end 5000'],
    ],
    [
      'there was neither a job nor a controller for long',
      { ...joined, turn: turning, isAway: true },
      looked(free),
      ['remember drain', 'drain'],
    ],
    [
      'there was no controller, but a job',
      { ...joined, turn: turning, isAway: true },
      looked({ ...free, busy: 1 }),
      ['turn in 30000'],
    ],
    [
      'a stage was taken, and another one waits',
      {
        ...joined,
        stages: [
          ['joined', ''],
          ['drained', ''],
        ],
        isStaging: true,
      },
      { kind: 'staged', refused: null },
      ['stage drained'],
    ],
    [
      'a stage was not taken for the second time',
      { ...joined, stages: [['joined', '']], isStaging: true, failures: 1 },
      { kind: 'staged', refused: { why: '', retry: true } },
      ['stage in 2000'],
    ],
  ])('when %s', (_, state, event, effects, more) => {
    expect(words(state, event, more)).toEqual(effects);
  });
});

test('what the daemon is told to end by is in the memory of that effect', () => {
  const { effects } = next(draining, looked(empty), { now, wall }, rules);
  expect(effects).toMatchObject([{ do: 'down', memory: { goal: 'drain', isDown: true } }]);
});
