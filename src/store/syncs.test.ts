import { expect, test } from 'vitest';
import { createSyncs } from './syncs.ts';

/** A disk whose background syncs end when told to. */
function workbench() {
  const syncs: { done: () => void; fail: (error: Error) => void }[] = [];
  const disk = { now: 0, isBroken: false };
  const shared = createSyncs({
    sync: () => new Promise((done, fail) => syncs.push({ done, fail })),
    syncNow() {
      if (disk.isBroken) throw new Error('input/output error');
      disk.now += 1;
    },
  });
  const told: string[] = [];
  const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
  return {
    ...shared,
    disk,
    syncs,
    told,
    settled,
    commit: () => shared.committed({ durable: false }),
    ask: (who: string) =>
      void shared.sync().then(
        () => told.push(who),
        (error: Error) => told.push(`${who}: ${error.message}`),
      ),
  };
}

test('commits of one turn share one sync', async () => {
  const { commit, ask, syncs, told, settled } = workbench();
  commit();
  ask('one');
  commit();
  ask('two');
  await settled();
  expect([syncs.length, told]).toEqual([1, []]);
  syncs[0]?.done();
  await settled();
  expect([syncs.length, told]).toEqual([1, ['one', 'two']]);
});

test('a commit during a sync waits for the next one', async () => {
  const { commit, ask, syncs, told, settled } = workbench();
  commit();
  ask('one');
  await settled();
  commit();
  ask('two');
  await settled();
  syncs[0]?.done();
  await settled();
  expect([syncs.length, told]).toEqual([2, ['one']]);
  syncs[1]?.done();
  await settled();
  expect(told).toEqual(['one', 'two']);
});

test('a sync on the spot serves those who wait, and nobody syncs again', async () => {
  const { commit, ask, syncs, told, settled, syncNow, disk } = workbench();
  commit();
  ask('one');
  syncNow();
  await settled();
  expect([syncs.length, disk.now, told]).toEqual([0, 1, ['one']]);
  syncNow();
  ask('again');
  await settled();
  expect([syncs.length, disk.now, told]).toEqual([0, 1, ['one', 'again']]);
});

test('a durable commit serves everything before it', async () => {
  const { commit, committed, ask, syncs, told, settled } = workbench();
  commit();
  ask('one');
  committed({ durable: true });
  await settled();
  expect([syncs.length, told]).toEqual([0, ['one']]);
});

test('a failed sync is told to those whose commits it was for, and the next one is a new try', async () => {
  const { commit, ask, syncs, told, settled, syncNow, disk } = workbench();
  commit();
  ask('one');
  await settled();
  commit();
  ask('two');
  syncs[0]?.fail(new Error('input/output error'));
  await settled();
  expect([syncs.length, told]).toEqual([2, ['one: input/output error']]);
  syncs[1]?.done();
  await settled();
  expect(told).toEqual(['one: input/output error', 'two']);
  commit();
  disk.isBroken = true;
  expect(syncNow).toThrow('input/output error');
  ask('three');
  await settled();
  expect(syncs.length).toBe(3);
});
