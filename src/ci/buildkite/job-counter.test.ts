import { setImmediate as turn } from 'node:timers/promises';
import { beforeEach, expect, it } from 'vitest';
import { openManager, testPool } from '../../../test/kit/buildkite-manager.ts';
import { handClock } from '../../../test/kit/core.ts';
import { OnejobError } from '../../base/errors.ts';
import { LaterError, type QueueCounts } from './api.ts';
import { JobCounter } from './job-counter.ts';

const told = (
  scheduled: Record<string, number>,
  known: readonly string[] = [],
  pollAfter: number | null = null,
  served: readonly string[] = [],
): { value: QueueCounts; skew: null } => ({
  value: {
    scheduled: new Map(Object.entries(scheduled)),
    known: new Set([...Object.keys(scheduled), ...known]),
    served: new Set(served),
    pollAfter,
  },
  skew: null,
});
const refused = new OnejobError('E_CI_CREDENTIAL', 'Cannot count the waiting jobs: answered 401.');
const away = new OnejobError('E_CI_UNREACHABLE', 'Cannot count the waiting jobs: away.', { retry: true });

let clock: ReturnType<typeof handClock>;
let asked: string[];
let token: string;
let answer: () => { value: QueueCounts; skew: null };
let lines: string[];
let abort: AbortController;
beforeEach(() => {
  clock = handClock();
  [asked, lines, token, abort] = [[], [], 't1', new AbortController()];
  answer = () => told({ gpu: 3 });
});

function follow(every = 10_000) {
  const say = (event: string) => void lines.push(event);
  const counts = new JobCounter({
    api: {
      counts: async (one) => {
        asked.push(one);
        return answer();
      },
    },
    token: async () => token,
    config: { name: 'bk', pollEvery: every },
    clock,
    log: { info: say, warn: say, error: say },
    random: () => 0,
  });
  void counts.follow(abort.signal);
  return counts;
}

async function pass(ms: number): Promise<void> {
  await turn();
  clock.advance(ms);
  await turn();
}

it('knows nothing before the first answer, then what waits in each queue', async () => {
  answer = () => told({ gpu: 3 }, ['idle']);
  const counts = follow();
  expect(counts.waiting('gpu')).toBeNull();
  await pass(0);
  expect([counts.waiting('gpu'), counts.waiting('idle'), counts.waiting('nope')]).toEqual([3, 0, null]);
  answer = () => told({ gpu: 5 });
  await pass(10_000);
  expect(counts.waiting('gpu')).toBe(5);
  expect(asked).toHaveLength(2);
});

it('asks no more often than the service wants, and than config says', async () => {
  answer = () => told({ gpu: 1 }, [], 60_000);
  follow();
  await pass(0);
  expect(clock.next()).toBe(60_000);
  answer = () => told({ gpu: 1 }, [], 2_000);
  await pass(60_000);
  expect(clock.next()).toBe(10_000);
});

it('an outage is waited out with growing pauses, and what was heard is forgotten in time', async () => {
  const counts = follow();
  await pass(0);
  answer = () => {
    throw away;
  };
  await pass(10_000);
  expect([counts.waiting('gpu'), clock.next()]).toEqual([3, 10_000]);
  await pass(10_000);
  expect(clock.next()).toBe(20_000);
  for (let times = 0; times < 10; times++) await pass(clock.next() ?? 0);
  expect([counts.waiting('gpu'), clock.next()]).toEqual([null, 300_000]);
  expect(lines).toEqual([]);
  answer = () => told({ gpu: 4 });
  await pass(300_000);
  expect([counts.waiting('gpu'), clock.next()]).toEqual([4, 10_000]);
});

it('a service that names a time is asked then', async () => {
  answer = () => {
    throw new LaterError(new OnejobError('E_CI_THROTTLED', 'Too often.', { retry: true }), 45_000);
  };
  follow();
  await pass(0);
  expect(clock.next()).toBe(45_000);
});

it('a refused token is reported once and not tried again for ten minutes, but another one at once', async () => {
  answer = () => {
    throw refused;
  };
  const counts = follow();
  await pass(0);
  for (let times = 0; times < 5; times++) await pass(10_000);
  expect([asked.length, lines, counts.waiting('gpu')]).toEqual([1, ['failed to count the jobs'], null]);
  for (let times = 0; times < 60; times++) await pass(10_000);
  expect(asked).toEqual(['t1', 't1']);
  answer = () => told({ gpu: 2 });
  token = 't2';
  await pass(10_000);
  expect([asked, counts.waiting('gpu')]).toEqual([['t1', 't1', 't2'], 2]);
  expect(lines).toEqual(['failed to count the jobs', 'counting the jobs works again']);
});

it('ends with its signal, and leaves no timer', async () => {
  follow();
  await pass(0);
  abort.abort();
  expect(clock.next()).toBeNull();
});

it('tells which pools have another number of waiting jobs than before: hosts in clouds have no slots here that would ask', async () => {
  const waiting = new Map([['gpu', 0]]);
  let asked = (): void => {};
  const counts = {
    waiting: (queue: string) => waiting.get(queue) ?? null,
    unserved: () => new Map<string, number>(),
    async follow(_signal: AbortSignal, tell: () => void = () => {}) {
      asked = tell;
    },
  };
  const pools = [testPool({ name: 'a', queue: 'gpu', agents: 0 }), testPool({ name: 'b', queue: 'other', agents: 0 })];
  await using one = openManager({ pools, parts: { counts } });
  await one.watch();
  asked();
  expect(one.of('waiting')).toEqual([{ kind: 'waiting', pool: 'a' }]);
  asked();
  waiting.set('gpu', 2);
  asked();
  waiting.clear();
  asked();
  expect(one.of('waiting')).toHaveLength(3);
});

it('knows in which queues jobs wait for agents that nobody has, as long as it is certain', async () => {
  answer = () => told({ gpu: 3, cpu: 1, idle: 0, typo: 2 }, [], null, ['gpu']);
  const counts = follow();
  expect([...counts.unserved()]).toEqual([]);
  await pass(0);
  expect([...counts.unserved()]).toEqual([
    ['cpu', 1],
    ['typo', 2],
  ]);
  answer = () => {
    throw away;
  };
  await pass(600_000);
  expect([...counts.unserved()]).toEqual([]);
});

it('shows jobs of a queue that no pool names and that has no agent, once they have waited', async () => {
  let asked = (): void => {};
  const unserved = new Map([
    ['typo', 2],
    ['default', 1],
  ]);
  const counts = {
    waiting: () => null,
    unserved: () => unserved,
    async follow(_signal: AbortSignal, tell: () => void = () => {}) {
      asked = tell;
    },
  };
  await using one = openManager({ parts: { counts } });
  await one.watch();
  asked();
  expect(one.service.unfit?.()).toEqual([]);
  await one.pass(300_000);
  expect(one.service.unfit?.()).toEqual([
    {
      jobs: 2,
      how: 'in queue "typo", which no pool here names and which has no agent at the service',
      hint: expect.stringContaining('Compare "agents" of the step with "queue" and "tags" of the pools.'),
    },
  ]);
  unserved.delete('typo');
  asked();
  expect(one.service.unfit?.()).toEqual([]);
});
