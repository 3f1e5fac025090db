import { expect, it } from 'vitest';
import { handClock } from '../../core/testing.ts';
import type { BrokerAgent } from './broker/protocol.ts';
import { keptLog } from './broker/testing.ts';
import { endStrays } from './strays.ts';
import { away, fakeBroker, heldAgent } from './testing-broker.ts';
import { trustedEnv } from './testing-manager.ts';

/** A broker with agents of the services `bk` and `old`, and a manager that serves the services of `opened`. */
function bench(opened: readonly string[], agents: readonly BrokerAgent[], isThere = true) {
  const broker = fakeBroker();
  const book = new Map(agents.map((agent) => [agent.id, agent]));
  for (const agent of agents) broker.put(agent);
  const [clock, log] = [handClock(), keptLog()];
  const live = new Set<string>();
  const abort = new AbortController();
  const one = { isThere, isOver: false };
  void endStrays(
    {
      agents: async () => {
        if (!one.isThere) throw away();
        return [...book.keys()].flatMap((id) => broker.agent(id) ?? []);
      },
      calls: broker.calls,
      opened: new Set(opened),
      isLive: (agent) => live.has(agent),
      ...{ clock, log },
    },
    abort.signal,
  ).then(() => {
    one.isOver = true;
  });
  async function pass(ms: number): Promise<void> {
    for (let gone = 0; gone <= ms; gone += 1_000) {
      for (let n = 0; n < 8; n++) await new Promise<void>((resolve) => setImmediate(resolve));
      clock.advance(1_000);
    }
  }
  return { broker, log, live, abort, one, pass, gone: (id: string) => broker.lose(id) };
}

const accepted = heldAgent('a1', { service: 'old', env: trustedEnv });
const running = heldAgent('a2', { service: 'old', phase: 'running', agent: 'agent2', env: trustedEnv });
const served = heldAgent('a3', { env: trustedEnv });

it('ends agents of services that nobody serves, and no other', async () => {
  const { broker, pass, one, gone } = bench(['bk'], [accepted, served]);
  broker.up();
  await pass(1_000);
  expect(broker.ended).toEqual([
    { id: 'a1', signalReason: 'agent_stop', reason: 'The service "old" is not used by the config of onejob any more.' },
  ]);
  expect(broker.posted('/v1/leave')).toEqual([]);
  gone('a1');
  await pass(6_000);
  expect([one.isOver, broker.ended.length]).toEqual([true, 1]);
});

it('lets a job go on whose sandbox is there, and ends its agent once that is gone', async () => {
  const { broker, pass, live } = bench(['bk'], [running]);
  live.add('agent2');
  broker.up();
  await pass(60_000);
  expect(broker.ended).toEqual([]);
  live.clear();
  await pass(6_000);
  expect(broker.ended.map(({ id }) => id)).toEqual(['a2']);
});

it('waits for a broker that its services start', async () => {
  const { broker, pass, one } = bench(['bk'], [accepted], false);
  await pass(20_000);
  expect([broker.ended, one.isOver]).toEqual([[], false]);
  one.isThere = true;
  broker.up();
  await pass(6_000);
  expect(broker.ended.map(({ id }) => id)).toEqual(['a1']);
});

it('where no service needs the broker tells it to go, ends what it has, and is done once it is gone', async () => {
  const { broker, pass, one } = bench([], [accepted, heldAgent('a4', { service: 'old' })]);
  broker.up();
  await pass(12_000);
  expect([broker.posted('/v1/leave').length, broker.ended.map(({ id }) => id), one.isOver]).toEqual([1, ['a1', 'a4'], false]);
  one.isThere = false;
  await pass(6_000);
  expect(one.isOver).toBe(true);
});

it('does nothing where neither a service nor a broker is there', async () => {
  const { broker, pass, one, log } = bench([], [accepted], false);
  await pass(1_000);
  expect([one.isOver, broker.posts, log.lines]).toEqual([true, [], []]);
});

it('tries again what the broker refused, says so once, and ends when it is told to', async () => {
  const { broker, pass, abort, one, log } = bench(['bk'], [accepted]);
  broker.up();
  broker.instead = () => Promise.reject(away('is accepting, which cannot be broken off'));
  await pass(12_000);
  expect(log.lines.filter(({ level }) => level === 'warn')).toHaveLength(1);
  broker.instead = null;
  await pass(6_000);
  expect(broker.ended.map(({ id }) => id)).toEqual(['a1']);
  abort.abort();
  await pass(0);
  expect(one.isOver).toBe(true);
});
