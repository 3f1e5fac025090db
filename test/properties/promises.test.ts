/** The numbered promises, held in random worlds: moves shuffle, repeat, drop and delay what the loop hears. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { World, type WorldOptions } from '../sim/world.ts';
import { movesOf } from './moves.ts';

const { steps, play, playChecked } = movesOf([
  ['submit', 4, (world, pick) => world.submit(pick % 5 === 0)],
  ['perform', 12, (world, pick) => world.perform(pick, 'works')],
  ['perform failing', 2, (world, pick) => world.perform(pick, 'fails')],
  ['perform, answer lost', 2, (world, pick) => world.perform(pick, 'quiet')],
  ['deliver', 12, (world, pick) => world.deliver(pick, 'once')],
  ['deliver again', 3, (world, pick) => world.deliver(pick, 'twice')],
  ['lose a report', 2, (world, pick) => world.deliver(pick, 'lose')],
  ['exit', 4, (world, pick) => world.exit(pick, pick % 3)],
  ['give', 3, (world, pick) => world.give(pick)],
  ['resync', 2, (world) => world.resync()],
  ['cancel', 1, (world, pick) => world.cancel(pick)],
  ['crash', 1, (world) => world.crash()],
  ['time', 4, (world, pick) => world.advance((pick % 40) * 500)],
  [
    'new fingerprint',
    1,
    (world, pick) => {
      world.fingerprint = `f${pick % 3}`;
      world.pool.rollout.learn('', world.fingerprint);
      world.loop.replanAll();
    },
  ],
  [
    'outage',
    1,
    (world) => {
      world.reachable = !world.reachable;
    },
  ],
  [
    'pause',
    1,
    (world, pick) => {
      if (!world.pool.pause.release(`p${pick % 2}`)) world.pool.pause.hold(`p${pick % 2}`);
      world.loop.replanAll();
    },
  ],
]);

const options: fc.Arbitrary<WorldOptions> = fc.record({
  slots: fc.integer({ min: 1, max: 3 }),
  binds: fc.constantFrom('late', 'early'),
  standby: fc.boolean(),
});

test('S1-S4, S6, S7, S9 and S11 hold after every step, whatever is shuffled, repeated, dropped, delayed or killed', () => {
  fc.assert(
    fc.property(options, steps, (option, chosen) => {
      const world = new World({ ...option, standby: option.standby || option.binds === 'early' });
      playChecked(world, chosen);
    }),
    { numRuns: 6000 },
  );
});

test('once faults stop, every accepted job ends exactly once and nothing is left over', () => {
  fc.assert(
    fc.property(options, steps, (option, chosen) => {
      const world = new World({ ...option, binds: 'late' });
      play(world, chosen);
      for (const reason of ['p0', 'p1']) world.pool.pause.release(reason);
      world.settle();
      expect(world.check()).toEqual([]);
      expect([...world.jobs.values()].map((job) => job.results.length)).toEqual([...world.jobs.values()].map(() => 1));
      world.loop.beginStop();
      for (let i = 0; i < 20; i++) world.settle();
      expect(world.loop.isEmpty).toBe(true);
      expect([...world.sandboxes.values()].filter((one) => one.state !== 'removed')).toEqual([]);
    }),
    { numRuns: 1500 },
  );
});

test('S6: an outage ends nothing and starts nothing', () => {
  fc.assert(
    fc.property(steps, (chosen) => {
      const world = new World({ slots: 2, binds: 'late', standby: true });
      play(world, chosen);
      world.reachable = false;
      world.pending.length = 0;
      world.reports.length = 0;
      const sandboxes = world.sandboxes.size;
      const running = [...world.sandboxes.values()].filter((one) => one.state === 'running').map((one) => one.agent);
      const results = [...world.jobs.values()].map((job) => job.results.length);
      for (let i = 0; i < 10; i++) world.resync();
      expect(world.sandboxes.size).toBe(sandboxes);
      expect([...world.sandboxes.values()].filter((one) => one.state === 'running').map((one) => one.agent)).toEqual(running);
      expect([...world.jobs.values()].map((job) => job.results.length)).toEqual(results);
    }),
    { numRuns: 300 },
  );
});
