import { expect, test } from 'vitest';
import { gcpWorld, never } from '../../../test/kit/gcp.ts';
import type { Made, Order } from '../cloud.ts';

const scope = { places: [], everywhere: false };

test('a machine is made with its labels, its end and its disk, and is gone after it was destroyed', async () => {
  const { cloud, gcp, done, pass, order } = await gcpWorld();
  const wanted = order();
  const made = await done(cloud.create(wanted, never));
  expect(made).toEqual({ id: wanted.run, place: 'us-central1-a', zone: 'us-central1-a' });
  const holds = await done(cloud.setEnd(wanted, made, never));
  expect(holds).toMatch(/^Compute Engine deletes it at \d{4}-.*Z \(terminationTimestamp\)$/);
  const labels = { owner: 'lab-7', run: wanted.run, host: 'burst', born: wanted.born, expires: wanted.expires };
  const { owner: _, ...told } = labels;
  const listed = await done(cloud.list('lab-7', scope, never));
  expect(listed).toEqual({
    things: [
      { ...told, kind: 'machine', id: wanted.run, place: 'us-central1-a', state: 'running', offer: wanted.offer },
      { ...told, kind: 'disk', id: wanted.run, place: 'us-central1-a', state: 'running', offer: null },
    ],
    unknown: [],
  });
  await done(cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, never));
  expect((await done(cloud.list('lab-7', scope, never))).things[0]).toMatchObject({ kind: 'machine', state: 'ending' });
  await pass(30_000);
  expect(await done(cloud.list('lab-7', scope, never))).toEqual({ things: [], unknown: [] });
  // Again, as the controller does when it is not sure.
  await done(cloud.destroy({ kind: 'machine', id: made.id, place: made.place }, never));
  expect([gcp.machines(), gcp.disks()]).toEqual([[], []]);
});

test('Google itself deletes a machine at its end', async () => {
  const ends: string[] = [];
  const { cloud, gcp, done, pass, order } = await gcpWorld({ hooks: { onEnd: (_, why) => void ends.push(why) } });
  const wanted = order();
  await done(cloud.create(wanted, never));
  await pass(6 * 3_600_000 - 60_000);
  expect(gcp.machines()).toHaveLength(1);
  await pass(120_000);
  expect([gcp.machines(), gcp.disks(), ends]).toEqual([[], [], ['end of life']]);
});

/** Makes one and says what became of it. */
async function tried(act: Promise<Made>): Promise<unknown> {
  return act.catch((error: unknown) => error);
}
const typed = (type: string, more: Partial<Order['offer']> = {}) => ({
  offer: { type, spot: false, zone: 'us-central1-a', ...more },
});

test('a stockout comes in an operation that was accepted with 200', async () => {
  const { cloud, gcp, done, order } = await gcpWorld();
  gcp.faults.stockout = { zones: ['us-central1-a'], available: ['us-central1-b', 'us-central1-f'] };
  const error = await tried(done(cloud.create(order(), never)));
  expect(error).toMatchObject({
    ...{ code: 'E_CLOUD_CAPACITY', reason: 'ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS', isAmbiguous: false, retry: true },
    zones: ['us-central1-b', 'us-central1-f'],
    message: expect.stringMatching(
      /^Cannot create onejob-[0-9a-f]{16} \(n1-standard-4\/nvidia-tesla-t4, on demand, us-central1-a\): Compute Engine in acme-ci answered ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: .*us-central1-b, us-central1-f had capacity\.$/,
    ),
  });
  expect(gcp.requests.filter(({ method }) => method === 'POST')).toHaveLength(2);
  expect(typed('x')).toBeDefined();
});
