import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import type { Log } from '../../base/log.ts';
import type { ForgottenView } from '../../contract/schema.ts';
import { emptySlot, type Slot, type SlotEvent } from '../../core/slot.ts';
import type { Reconciler } from './reconciler.ts';
import { Shutdown } from './shutdown.ts';

const at = (key: string, agent: Slot['agent'], more: Partial<Slot> = {}): Slot => ({
  ...emptySlot({ key, runtime: 'sim', grace: 0 }),
  agent,
  ...more,
});
const working = { kind: 'busy', agent: 'b1', job: 'theirs', since: 0, due: null } as const;
const free = { kind: 'free' } as const;

const removed: ForgottenView = { service: 'azure', removed: ['p1'], left: [], problem: null };

/** A loop with one agent at work until `ends` is called, and services that forget when they are told to. */
function stopping(unreachable: string | null = null, temporary = false) {
  let unsettled: string | null = null;
  const place = emptySlot({ key: 'lab/1', runtime: 'sim', grace: 0 });
  let slots: Slot[] = [{ ...place, agent: { kind: 'busy', agent: 'a1', job: 'j1', since: 0, due: null } }];
  const told: string[] = [];
  const said: string[] = [];
  const forgets = Promise.withResolvers<ForgottenView[]>();
  const clock = handClock();
  const reconciler = {
    get slots() {
      return slots;
    },
    get isEmpty() {
      return slots.length === 0;
    },
    beginStop: () => told.push('stop'),
    post: (key: string, event: SlotEvent) => told.push(`end ${key}${'why' in event && event.why === 'taken' ? ' taken' : ''}`),
  } as unknown as Reconciler;
  const hurried: string[] = [];
  const shutdown = new Shutdown({
    reconciler,
    clock,
    unreachable: () => unreachable,
    unsettled: () => unsettled,
    busy: () => false,
    temporary,
    log: { info: (event: string) => void said.push(event), warn() {} } as unknown as Log,
    hurry: (why) => void hurried.push(why),
    isForeign: ({ key }) => key.startsWith('bk/'),
    drainOthers: () => told.push('drain'),
    forget(instead) {
      told.push(`forget ${instead}`);
      return instead === null ? forgets.promise : Promise.resolve([{ ...removed, removed: [], left: ['p1'], problem: instead }]);
    },
  });
  let how: string | null = null;
  void shutdown.finished.then((end) => {
    how = end;
  });
  const ends = () => {
    slots = [];
    shutdown.look();
  };
  const holds = (...now: Slot[]) => {
    slots = now;
    shutdown.look();
  };
  const fails = (why: string) => {
    unsettled = why;
  };
  return {
    fails,
    shutdown,
    told,
    said,
    hurried,
    holds,
    clock,
    ends,
    answers: () => forgets.resolve([removed]),
    finished: () => how,
  };
}

test('placeholders are removed only once nothing is left, and the end waits for that', async () => {
  const { shutdown, told, ends, answers, finished } = stopping();
  shutdown.begin({ how: 'end', grace: 0, forget: true });
  await turn();
  expect(told).toEqual(['stop', 'end lab/1']);
  ends();
  shutdown.look();
  await turn();
  expect([told, finished()]).toEqual([['stop', 'end lab/1', 'forget null'], null]);
  answers();
  expect(await shutdown.forgotten).toEqual([removed]);
  await turn();
  expect(finished()).toBe('end');
});

test('agents hear whether the cloud takes the machine', () => {
  const { shutdown, told } = stopping();
  shutdown.begin({ how: 'end', grace: 0, forget: false, taken: true });
  expect(told).toEqual(['stop', 'end lab/1 taken']);
});

test('without being asked nothing is forgotten', async () => {
  const { shutdown, told, ends, finished } = stopping();
  shutdown.begin({ how: 'drain', grace: null, forget: false });
  ends();
  await turn();
  expect([told, finished()]).toEqual([['stop'], 'drain']);
});

test('a request by the second of two stops counts, too', async () => {
  const { shutdown, told, ends } = stopping();
  shutdown.begin({ how: 'drain', grace: null, forget: true });
  shutdown.begin({ how: 'end', grace: 0, forget: false });
  ends();
  expect(told).toContain('forget null');
});

test('agents that cannot be ended keep what they need, and that is reported', async () => {
  const { shutdown, told, clock, finished } = stopping('the Engine is away');
  shutdown.begin({ how: 'end', grace: 0, forget: true });
  clock.advance(5_000);
  expect(await shutdown.forgotten).toEqual([expect.objectContaining({ left: ['p1'], problem: expect.stringContaining('left') })]);
  await turn();
  expect([told.at(-1), finished()]).toEqual(['forget agents were left running and need it', 'leave']);
});

test('a job whose service is away is left to the next daemon, once its time is over', async () => {
  const { shutdown, clock, fails, holds, finished } = stopping();
  const leaving = [{ agent: 'a1', job: 'j1', exit: null }];
  shutdown.begin({ how: 'end', grace: null, forget: false });
  holds(at('lab/1', free, { leaving }));
  fails('nothing listens there');
  clock.advance(9_999);
  await turn();
  expect(finished()).toBeNull();
  clock.advance(10_000);
  await turn();
  expect(finished()).toBe('leave');
  // A timer would keep the process alive.
  shutdown.look();
  expect(clock.next()).toBeNull();
});

test('nothing is left that has not failed, or that works', async () => {
  const { shutdown, clock, fails, holds, finished } = stopping();
  const leaving = [{ agent: 'a1', job: 'j1', exit: null }];
  shutdown.begin({ how: 'end', grace: 0, forget: false });
  holds(at('lab/1', free, { leaving }));
  clock.advance(60_000);
  fails('nothing listens there');
  holds(at('lab/1', working, { leaving }));
  clock.advance(60_000);
  await turn();
  expect(finished()).toBeNull();
});

test('a person who does not want to wait for a service leaves with the third signal', async () => {
  const { shutdown, ends, finished } = stopping();
  shutdown.begin({ how: 'end', grace: 0, forget: true });
  ends();
  await turn();
  for (let times = 0; times < 3; times += 1) shutdown.signal('end');
  await turn();
  expect(finished()).toBe('leave');
});

test('a temporary manager that ends by itself leaves other services’ agents, once its own are gone', async () => {
  const { shutdown, told, said, clock, holds, finished } = stopping(null, true);
  const standby = { kind: 'standby', agent: 's1', reserved: null, fingerprint: 'f', since: 0 } as const;
  holds(at('bk/1', working), at('lab/1', free, { standby }));
  shutdown.clients(1);
  shutdown.clients(0);
  clock.advance(300);
  expect([told, finished()]).toEqual([['drain'], null]);
  // A client that comes now would be left, too.
  expect(shutdown.isEnding).toBe(true);
  holds(at('bk/1', working), at('lab/1', free));
  await turn();
  expect([told, finished()]).toEqual([['drain'], 'leave']);
  expect(said).toContain("leaving other services' agents");
});

test('a temporary manager that ends by itself does not wait forever for its own agents', async () => {
  const { shutdown, clock, holds, finished } = stopping(null, true);
  holds(at('bk/1', working), at('lab/1', free, { leaving: [{ agent: 'l1', job: null, exit: null }] }));
  shutdown.clients(1);
  shutdown.clients(0);
  clock.advance(300);
  clock.advance(5_000);
  await turn();
  expect(finished()).toBe('leave');
});

test('a temporary manager with only its own agents ends them', async () => {
  const { shutdown, told, clock, ends, finished } = stopping(null, true);
  shutdown.clients(1);
  shutdown.clients(0);
  clock.advance(300);
  expect(told).toEqual(['stop', 'end lab/1']);
  ends();
  await turn();
  expect(finished()).toBe('end');
});

test('a client that returns in time keeps a temporary manager, whatever else is here', async () => {
  const { shutdown, told, clock, holds, finished } = stopping(null, true);
  holds(at('bk/1', working));
  shutdown.clients(1);
  shutdown.clients(0);
  clock.advance(100);
  shutdown.clients(1);
  clock.advance(60_000);
  await turn();
  expect([told, finished(), shutdown.isEnding]).toEqual([[], null, false]);
});

test('a person’s request to a temporary manager applies to everything here', () => {
  const { shutdown, told, holds } = stopping(null, true);
  holds(at('bk/1', working));
  shutdown.begin({ how: 'end', grace: 0, forget: false });
  expect(told).toEqual(['stop', 'end bk/1']);
});

test('a permanent manager never refuses requests at its end: the next one handles them', () => {
  const { shutdown } = stopping();
  shutdown.begin({ how: 'leave', grace: null, forget: false });
  expect(shutdown.isEnding).toBe(false);
});

test('files of ended jobs are awaited a little longer than jobs, and not at all at the second signal', async () => {
  const { shutdown, clock, holds, hurried } = stopping();
  holds(at('lab/1', free, { leaving: [{ agent: 'l1', job: 'j', exit: null }] }));
  const why = ['onejob was stopped while it was reading them'];
  shutdown.signal('drain');
  clock.advance(3_600_000);
  expect(hurried).toEqual([]);
  shutdown.begin({ how: 'end', grace: 20_000, forget: false });
  clock.advance(29_000);
  expect(hurried).toEqual([]);
  clock.advance(1_000);
  expect(hurried).toEqual(why);

  const other = stopping();
  other.holds(at('lab/1', free, { leaving: [{ agent: 'l1', job: 'j', exit: null }] }));
  other.shutdown.signal('end');
  expect(other.hurried).toEqual([]);
  other.shutdown.signal('end');
  expect(other.hurried).toEqual(why);
});
