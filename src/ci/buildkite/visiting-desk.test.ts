import { expect, it } from 'vitest';
import { handClock } from '../../core/testing.ts';
import { keptLog } from './broker/testing.ts';
import { fakeBroker, heldAgent } from './testing-broker.ts';
import { visitingDesk } from './visiting-desk.ts';

function bench() {
  const broker = fakeBroker();
  const [clock, log] = [handClock(), keptLog()];
  const desk = visitingDesk({ calls: broker.calls, clock, log });
  const away: (string | null)[] = [];
  const seen: string[] = [];
  desk.listen('bk', {
    all: (agents) => void seen.push(...agents.map(({ id }) => id)),
    agent() {},
    health() {},
    away: (why) => void away.push(why),
  });
  async function pass(ms: number): Promise<void> {
    for (let gone = 0; gone < ms; gone += 100) {
      for (let n = 0; n < 4; n++) await new Promise<void>((resolve) => setImmediate(resolve));
      clock.advance(100);
    }
  }
  return { broker, log, desk, away, seen, pass };
}

it('starts no broker, says whose it is to, and ends at once', async () => {
  const { desk, log, away, pass } = bench();
  await pass(60_000);
  expect(new Set(away)).toEqual(new Set(['no daemon runs; the broker is started by "onejob up"']));
  expect(log.lines).toEqual([]);
  // Virtual time stands still: nothing is waited for.
  await desk.close(false);
});

it('hears of agents from a broker that is there, and leaves it as it is when it is to stay', async () => {
  const { broker, desk, away, seen, pass } = bench();
  broker.put(heldAgent('a1', { phase: 'running', agent: 'agent1', env: {} }));
  broker.up();
  await pass(1_000);
  expect([away.at(-1), seen, desk.port]).toEqual([null, ['a1'], 7070]);
  await desk.close(true);
  expect(broker.posted('/v1/leave')).toEqual([]);
  expect(broker.agent('a1')?.phase).toBe('running');
});
