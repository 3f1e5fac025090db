/** A machine that has joined, in virtual time: its daemon, its controller and its cloud are acted out. */
import { afterEach, describe, expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import type { Client } from '../../api/client.ts';
import { OnejobError } from '../../base/errors.ts';
import { turn } from '../../system/system-clock.ts';
import { type AttendParts, attend, depart } from './attend.ts';
import type { Memory } from './attend-state.ts';
import { type AttendLook, localDaemon } from './local-daemon.ts';
import { type BeatCall, newSecret, type Order, type StageName } from './protocol.ts';

const [second, minute, hour] = [1_000, 60_000, 3_600_000];
const absent = () => new OnejobError('E_DAEMON_ABSENT', 'No daemon runs.');
const unreachable = () => new OnejobError('E_CLOUD_UNREACHABLE', 'The controller gave no answer.', { retry: true });

const endings: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0)) await end();
});

interface Given {
  readonly machine?: Partial<AttendParts['machine']>;
  /** ms from one look for notices to the next; none: the cloud gives none. */
  readonly noticesEvery?: number;
  /** Whether the controller asks something about its jobs. */
  readonly isAsked?: () => boolean;
}

function world({ machine = {}, noticesEvery, isAsked }: Given = {}) {
  const clock = handClock();
  const said: { stage: StageName; text: string; at: number }[] = [];
  const beats: (Omit<BeatCall, 'run'> & { at: number })[] = [];
  const told: string[] = [];
  const log: string[] = [];
  const line = (event: string, fields: object = {}) => void log.push(`${event} ${JSON.stringify(fields)}`);
  const state = {
    order: 'stay' as Order,
    controller: null as Error | null,
    /** null: no daemon runs. */
    daemon: { busy: 0, agents: 2, waiting: null, problem: null, isDraining: false, lastEnd: null } as AttendLook | null,
    notice: null as number | null,
    memory: null as Memory | null,
    poweredOff: 0,
  };
  const change = (more: Partial<AttendLook>) => {
    if (state.daemon !== null) state.daemon = { ...state.daemon, ...more };
  };
  const parts = (): AttendParts => ({
    machine: { guestEnds: false, away: 3600, ...machine },
    credential: newSecret(),
    beat: 30 * second,
    clock,
    log: { info: line, warn: line, error: line },
    client: {
      async stage(stage, text) {
        if (state.controller !== null) throw state.controller;
        said.push({ stage, text, at: clock.now() });
      },
      async beat(beat) {
        if (state.controller !== null) throw state.controller;
        beats.push({ slots: null, ...beat, at: clock.now() });
        return state.order;
      },
    },
    daemon: {
      async look() {
        if (state.daemon === null) throw absent();
        return state.daemon;
      },
      async drain() {
        if (state.daemon === null) throw absent();
        told.push('drain');
        change({ isDraining: true, agents: state.daemon.busy });
      },
      async down(how, grace, taken) {
        if (state.daemon === null) throw absent();
        told.push(`down ${how} ${grace}${taken ? ' taken' : ''}`);
        state.daemon = null;
      },
    },
    interruptions: noticesEvery === undefined ? null : { every: noticesEvery, look: async () => state.notice },
    tunnel: isAsked === undefined ? null : { isBusy: isAsked, run: async () => {} },
    memory: {
      read: () => state.memory,
      write(memory) {
        state.memory = memory;
      },
    },
    async powerOff() {
      state.poweredOff += 1;
    },
  });
  let over: Promise<void> = Promise.resolve();
  let stop = new AbortController();
  const settle = async (): Promise<void> => {
    for (let at = 0; at < 8; at++) await turn();
  };
  const start = async (): Promise<void> => {
    stop = new AbortController();
    over = attend(parts(), stop.signal);
    await settle();
  };
  const end = async (): Promise<void> => {
    stop.abort();
    await over;
  };
  endings.push(end);
  return {
    clock,
    said,
    beats,
    told,
    log,
    state,
    change,
    start,
    end,
    stages: () => said.map(({ stage }) => stage),
    over: () => over,
    /** Lets time pass, with everything that happens in it. */
    async pass(ms: number): Promise<void> {
      const until = clock.now() + ms;
      for (let next = clock.next(); next !== null && clock.now() + next <= until; next = clock.next()) {
        clock.advance(next);
        await settle();
      }
      clock.advance(until - clock.now());
      await settle();
    },
  };
}

describe('a machine that has joined', () => {
  it('says so once its daemon answers, and beats', async () => {
    const { start, stages, beats, pass, change } = world();
    await start();
    expect(stages()).toEqual(['joined']);
    change({ busy: 1, waiting: 3 });
    await pass(60 * second);
    expect(stages()).toEqual(['joined']);
    expect(beats.at(-1)).toMatchObject({ busy: 1, agents: 2, waiting: 3, idleFor: 0, problem: null });
    expect(beats.length).toBeLessThanOrEqual(5);
  });

  it('has not joined while its daemon does not answer, and says why', async () => {
    const { start, stages, beats, pass, state } = world();
    const daemon = state.daemon;
    state.daemon = null;
    await start();
    await pass(minute);
    expect(stages()).toEqual([]);
    expect(beats.at(-1)?.problem).toContain('No daemon runs.');
    state.daemon = daemon;
    await pass(minute);
    expect(stages()).toEqual(['joined']);
    expect(beats.at(-1)?.problem).toBeNull();
  });

  it('tells how long it has no job, also when jobs come and go between two looks', async () => {
    const { start, beats, pass, change, clock } = world();
    await start();
    await pass(10 * minute);
    expect(beats.at(-1)?.idleFor).toBeCloseTo(10 * minute, -5);
    change({ lastEnd: clock.wall() - 5 * second });
    await pass(minute);
    expect(beats.at(-1)?.idleFor).toBeLessThan(70 * second);
    change({ busy: 1 });
    await pass(minute);
    expect(beats.at(-1)?.idleFor).toBe(0);
  });
});

describe('an order to drain', () => {
  it('starts no new job, waits for those that run, ends the daemon, and says that it is drained', async () => {
    const { start, stages, told, pass, change, state } = world();
    change({ busy: 1 });
    await start();
    state.order = 'drain';
    await pass(minute);
    expect(told).toEqual(['drain']);
    await pass(hour);
    expect([told, stages()]).toEqual([['drain'], ['joined']]);
    change({ busy: 0, agents: 0 });
    await pass(10 * second);
    expect(told).toEqual(['drain', 'down drain null']);
    expect(stages()).toEqual(['joined', 'drained']);
    await pass(hour);
    expect(state.poweredOff).toBe(0);
    expect(stages()).toEqual(['joined', 'drained']);
  });

  it('waits until the controller has fetched what its jobs made, but not for ever', async () => {
    let isAsked = true;
    for (const isForgotten of [false, true]) {
      const { start, stages, told, pass, change, state } = world({ isAsked: () => isAsked });
      isAsked = true;
      change({ busy: 1 });
      await start();
      state.order = 'drain';
      await pass(minute);
      change({ busy: 0, agents: 0 });
      await pass(9 * minute);
      expect([told, stages()]).toEqual([['drain'], ['joined']]);
      isAsked = isForgotten;
      await pass(isForgotten ? 2 * minute : 5 * second);
      expect(stages()).toEqual(['joined', 'drained']);
    }
  });

  it('is kept over a restart of its own, and of the daemon', async () => {
    const { start, end, told, pass, change, state, stages } = world();
    change({ busy: 1 });
    await start();
    state.order = 'drain';
    await pass(minute);
    await end();
    state.order = 'stay';
    change({ isDraining: false });
    await start();
    await pass(10 * second);
    expect(told).toEqual(['drain', 'drain']);
    const daemon = state.daemon;
    state.daemon = null;
    await pass(minute);
    // A daemon that crashed has not ended: its job may run.
    expect(stages()).not.toContain('drained');
    state.daemon = daemon;
    change({ busy: 0, agents: 0 });
    await pass(10 * second);
    expect(told.at(-1)).toBe('down drain null');
    await end();
    await start();
    expect(stages().at(-1)).toBe('drained');
  });

  it('to end does not wait for jobs', async () => {
    const { start, told, pass, change, state, stages } = world();
    change({ busy: 1 });
    await start();
    state.order = 'end';
    await pass(minute);
    expect(told).toEqual(['down end 5000']);
    expect(stages()).toEqual(['joined', 'drained']);
  });

  it('is followed by its own end where a shutdown ends the machine and nobody destroys it', async () => {
    const { start, pass, state, over } = world({ machine: { guestEnds: true } });
    await start();
    state.order = 'drain';
    await pass(9 * minute);
    expect(state.poweredOff).toBe(0);
    await pass(3 * minute);
    expect(state.poweredOff).toBe(1);
    await over();
  });
});

describe('a controller that does not answer', () => {
  it('changes nothing for jobs, and hears later what happened', async () => {
    const { start, told, pass, change, state, stages, log } = world();
    change({ busy: 1 });
    state.controller = unreachable();
    await start();
    await pass(3 * hour);
    expect([told, stages()]).toEqual([[], []]);
    expect(log.filter((line) => line.includes('jobs continue'))).toHaveLength(1);
    state.controller = null;
    await pass(minute);
    expect(stages()).toEqual(['joined']);
    expect(told).toEqual([]);
  });

  it('and no job for long: the machine drains itself', async () => {
    for (const guestEnds of [true, false]) {
      const { start, told, pass, state, change } = world({ machine: { guestEnds, away: 1800 } });
      await start();
      await pass(5 * minute);
      state.controller = unreachable();
      await pass(20 * minute);
      change({ busy: 1 });
      await pass(20 * minute);
      change({ busy: 0 });
      await pass(29 * minute);
      expect(told).toEqual([]);
      await pass(5 * minute);
      expect(told).toEqual(['drain', 'down drain null']);
      await pass(15 * minute);
      expect(state.poweredOff).toBe(guestEnds ? 1 : 0);
    }
  });

  it('that knows the machine no more is like one that is away', async () => {
    const { start, told, pass, state, change } = world();
    change({ busy: 1 });
    await start();
    state.controller = new OnejobError('E_CLOUD_DENIED', 'The controller answered 403.');
    await pass(2 * hour);
    expect(told).toEqual([]);
  });

  it('does not make it drain while the daemon does not answer, since a job may run', async () => {
    const { start, told, pass, state } = world({ machine: { guestEnds: true } });
    await start();
    state.controller = unreachable();
    state.daemon = null;
    await pass(3 * hour);
    expect([told, state.poweredOff]).toEqual([[], 0]);
  });
});

describe('a notice of the cloud', () => {
  it('is told at once; nothing new starts, and what still runs near its end is ended', async () => {
    const { start, told, pass, change, state, said, clock, stages } = world({ noticesEvery: 5 * second });
    change({ busy: 1 });
    await start();
    await pass(minute);
    const seen = clock.now();
    state.notice = clock.wall() + 2 * minute;
    const at = new Date(state.notice).toISOString();
    await pass(6 * second);
    expect(said.at(-1)).toMatchObject({ stage: 'preempted', text: at });
    expect(told).toEqual(['drain']);
    await pass(90 * second);
    expect(told).toEqual(['drain']);
    await pass(15 * second);
    expect(told).toEqual(['drain', 'down end 5000 taken']);
    expect(stages()).toEqual(['joined', 'preempted', 'drained']);
    expect((said.at(-1)?.at ?? 0) - seen).toBeLessThan(115 * second);
  });

  it('of half a minute leaves jobs the first half of it', async () => {
    const { start, told, pass, change, state, clock, stages } = world({ noticesEvery: second });
    change({ busy: 1 });
    await start();
    state.notice = clock.wall() + 30 * second;
    await pass(10 * second);
    expect(told).toEqual(['drain']);
    await pass(11 * second);
    expect(told).toEqual(['drain', 'down end 5000 taken']);
    expect(stages().at(-1)).toBe('drained');
  });

  it('is heeded without a controller, and after a restart', async () => {
    const { start, end, told, pass, change, state, clock } = world({ noticesEvery: second });
    change({ busy: 1 });
    state.controller = unreachable();
    await start();
    state.notice = clock.wall() + 2 * minute;
    await pass(10 * second);
    await end();
    state.notice = null;
    await start();
    await pass(2 * minute);
    expect(told).toEqual(['drain', 'down end 5000 taken']);
  });
});

describe('a shutdown of the system', () => {
  const departing = (more: Partial<AttendParts>) => {
    const clock = handClock();
    const done: string[] = [];
    let looks = 0;
    const over = depart({
      credential: newSecret(),
      clock,
      log: { info() {}, warn() {}, error() {} },
      interruptions: { every: second, look: async () => clock.wall() + 30 * second },
      client: {
        stage: async (stage) => void done.push(stage),
        beat: async () => 'stay',
      },
      daemon: {
        async look() {
          looks += 1;
          if (looks > 3) throw absent();
          return { busy: 1, agents: 1, slots: 1, waiting: null, problem: null, isDraining: false, lastEnd: null };
        },
        async drain() {},
        down: async (...how) => void done.push(`down ${how.join(' ')}`),
      },
      ...more,
    }).then(() => done.push('over'));
    return {
      done,
      async pass(ms: number) {
        for (let passed = 0; passed < ms; passed += 100) {
          clock.advance(100);
          for (let at = 0; at < 4; at++) await turn();
        }
        if (done.includes('over')) await over;
      },
    };
  };

  it('ends the jobs that run, and tells whether the cloud began it', async () => {
    const { done, pass } = departing({});
    await pass(2 * second);
    expect(done.toSorted()).toEqual(['down end 5000 true', 'drained', 'over', 'preempted']);
    const other = departing({ interruptions: null });
    await other.pass(2 * second);
    expect(other.done).toEqual(['down end 5000 true', 'drained', 'over']);
  });

  it('is not held up by a daemon or a controller that does not answer', async () => {
    const hangs = async (...args: unknown[]) => {
      const signal = args.at(-1) as AbortSignal;
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    };
    const { done, pass } = departing({
      client: { stage: hangs, beat: async () => 'stay' },
      daemon: {
        look: async () => Promise.reject(unreachable()),
        drain: async () => {},
        down: async () => Promise.reject(unreachable()),
      },
    });
    await pass(19 * second);
    expect(done).toEqual([]);
    await pass(2 * second);
    expect(done).toEqual(['over']);
  });
});

describe('the daemon of a machine cannot work', () => {
  const backoff = { failures: 3, retryIn: 5, reason: 'HTTP 401 from github.com', waitsFor: null };
  const slot = { agent: { agent: null, job: null, state: 'free', online: null }, standby: { agent: null }, leaving: [] };
  const usual = { name: 'gpu', waiting: null, paused: [], backoff: null, draining: false, leaving: false, slots: [slot] };
  const problemOf = async (pools: readonly object[], problems: readonly string[] = []): Promise<string | null> => {
    const client = { status: async () => ({ pools, problems, missing: [] }), endedJobs: async () => [] };
    const clock = handClock();
    const quiet = { info() {}, warn() {}, error() {} };
    return (await localDaemon(client as unknown as Client, { clock, log: quiet }).look()).problem;
  };
  const online = { ...slot, agent: { ...slot.agent, agent: 'a1', state: 'idle', online: true } };

  it.each([
    ['a problem of the host', [usual], ['The Engine does not answer.'], 'The Engine does not answer.'],
    ['all its pools back off', [{ ...usual, backoff }], [], 'pool gpu: HTTP 401 from github.com'],
    ['its services hold all its pools', [{ ...usual, paused: ['Token refused.'] }], [], 'pool gpu: Token refused.'],
    ['it has no slot', [{ ...usual, slots: [] }], [], 'pool gpu: it has no agents, since no device fits'],
  ])('with %s', async (_, pools, problems, said) => {
    expect(await problemOf(pools, problems)).toBe(said);
  });

  it.each([
    ['nothing is wrong', [usual]],
    [
      'one of its pools works',
      [
        { ...usual, backoff },
        { ...usual, name: 'cpu' },
      ],
    ],
    ['an agent of the pool that backs off waits for jobs', [{ ...usual, backoff, slots: [slot, online] }]],
    ['somebody has paused it', [{ ...usual, paused: ['by alice'], backoff }]],
    ['it drains', [{ ...usual, draining: true, backoff }]],
  ])('but not while %s', async (_, pools) => {
    expect(await problemOf(pools)).toBeNull();
  });
});
