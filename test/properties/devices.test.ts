/** S1 in random worlds: devices vanish, come back, are put away and asked for by jobs, while looks fail and managers die. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { World } from '../sim/world.ts';
import { movesOf } from './moves.ts';

const { steps, play, playChecked } = movesOf([
  ['submit', 4, (world) => world.submit(false)],
  ['perform', 14, (world, pick) => world.perform(pick, 'works')],
  ['perform failing', 2, (world, pick) => world.perform(pick, 'fails')],
  ['deliver', 14, (world, pick) => world.deliver(pick, 'once')],
  ['deliver again', 2, (world, pick) => world.deliver(pick, 'twice')],
  ['exit', 5, (world, pick) => world.exit(pick, pick % 3)],
  ['resync', 2, (world) => world.resync()],
  ['crash', 1, (world) => world.crash()],
  ['look', 6, (world) => world.look(true)],
  ['look that fails', 2, (world) => world.look(false)],
  ['time', 3, (world, pick) => world.advance((pick % 40) * 500)],
  [
    'a device comes or goes',
    2,
    (world, pick) => {
      const uuid = `GPU-${(pick % 4) + 1}`;
      if (!world.gpus.delete(uuid)) world.gpus.add(uuid);
    },
  ],
  [
    'a device is put away or cleared',
    2,
    (world, pick) => {
      const known = world.registry?.known.get(`GPU-${(pick % 4) + 1}`);
      if (known === undefined) return;
      const reserved = known.reserved === null ? { by: 'alice', since: 0, until: null } : null;
      world.registry?.change({ ...known, reserved });
    },
  ],
]);
const options = fc.record({ slots: fc.integer({ min: 1, max: 3 }), gpus: fc.integer({ min: 0, max: 4 }), standby: fc.boolean() });

test('S1: whatever comes, goes, fails or dies, a device is in one slot at most', () => {
  fc.assert(
    fc.property(options, steps, (option, chosen) => {
      const world = new World({ ...option, binds: 'late' });
      playChecked(world, chosen);
    }),
    { numRuns: 1000 },
  );
});

test('S1: no agent is made without the devices of its slot', () => {
  fc.assert(
    fc.property(options, steps, (option, chosen) => {
      const world = new World({ ...option, binds: 'late' });
      play(world, chosen);
      expect([...world.sandboxes.values()].filter((one) => one.devices.length !== 1)).toEqual([]);
    }),
    { numRuns: 300 },
  );
});

test('once faults stop and a device is there, every job ends', () => {
  fc.assert(
    fc.property(options, steps, (option, chosen) => {
      const world = new World({ ...option, binds: 'late' });
      play(world, chosen);
      for (let n = 1; n <= 4; n++) world.gpus.add(`GPU-${n}`);
      world.look(true);
      for (const known of world.registry?.known.all ?? []) world.registry?.change({ ...known, reserved: null });
      world.settle();
      expect(world.check()).toEqual([]);
      expect([...world.jobs.values()].filter((job) => job.results.length !== 1)).toEqual([]);
    }),
    { numRuns: 300 },
  );
});
