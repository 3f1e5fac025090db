/**
 * S3, S4, S6, S7 with the whole manager in virtual time: kills, outages and lost answers at moments that the seed draws.
 * Each job runs at most once and has one result, and nothing is left.
 */
import { describe, expect, test } from 'vitest';
import type { Slot } from '../../src/core/slot.ts';
import { SimHost } from './host.ts';
import { noFaults } from './runtime.ts';

const hour = 3_600_000;

interface Day {
  readonly jobs: number;
  readonly crashes: number;
  readonly outages: number;
}

/** What happened on a day, for the story and for the assertion that something did. */
async function live(seed: number, { jobs, crashes, outages }: Day) {
  const host = new SimHost(seed, '{ default: { agents: 3, runtime: process, stop_grace: 5s } }');
  const { random, time, engine } = host;
  engine.faults = { fails: 0.05, answerLost: 0.05, eventLost: 0.1 };
  await host.start();
  const expected = new Map<string, number>();
  const later: (() => Promise<void>)[] = [];
  const within = (span: number, what: () => Promise<void>) => time.after(random() * span, () => void later.push(what));
  const span = jobs * 10_000;
  for (let n = 0; n < jobs; n++) {
    within(span, async () => {
      const exit = Math.floor(random() * 4);
      expected.set(host.submit({ ms: random() * 20_000, exit, says: `line of ${n}\n` }), exit);
    });
  }
  for (let n = 0; n < crashes; n++) {
    within(span, async () => {
      await host.crash();
      await host.start();
    });
  }
  for (let n = 0; n < outages; n++) within(span, async () => engine.outage(random() * 60_000));
  // Between two steps, never inside one: whatever a manager waits for is under way.
  const step = async (): Promise<void> => {
    for (let what = later.shift(); what !== undefined; what = later.shift()) await what();
  };
  const isOver = () => expected.size === jobs && [...expected.keys()].every((id) => host.job(id).state === 'done');
  const isDone = async (): Promise<boolean> => {
    await step();
    return host.crashes === crashes && isOver();
  };
  await time.run(isDone, 24 * hour);
  engine.faults = noFaults;
  // What was lost on the way is found by a resync, at the latest.
  await time.run(() => engine.sandboxes.size === 3 && host.manager.loop.reconciler.slots.every(isStanding), hour);
  const results = [...expected].map(([id, exit]) => ({ exit, result: host.job(id).result, begun: engine.begun.get(id) ?? 0 }));
  return { host, results };
}

/** Nothing but a standby at the gate. */
const isStanding = ({ agent, standby, leaving }: Slot) =>
  agent.kind === 'free' && standby.kind === 'standby' && leaving.length === 0;

describe('days of a host, each from its seed', () => {
  test.each(Array.from({ length: 12 }, (_, seed) => seed))('seed %i', async (seed) => {
    const { host, results } = await live(seed, { jobs: 40, crashes: 12, outages: 3 });
    try {
      expect(results.map(({ result }) => result)).toEqual(results.map(({ exit }) => ({ kind: 'code', code: exit })));
      expect(results.map(({ begun }) => begun)).toEqual(results.map(() => 1));
      expect(host.crashes).toBe(12);
      expect(host.engine.outages).toBeGreaterThan(0);
      expect(host.engine.made).toBeGreaterThanOrEqual(40);
    } catch (error) {
      console.log(
        host.story
          .slice(-60)
          .map(([ms, what]) => `${(ms / 1000).toFixed(3)} ${what}`)
          .join('\n'),
      );
      throw error;
    } finally {
      await host.close();
    }
  });
});
