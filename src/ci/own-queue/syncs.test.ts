/** How often the disk is synced on the way of a job, counted at the system call, with a real store and the real queue. */
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { jobRequest } from '../../contract/job.ts';
import { openStore } from '../../store/store.ts';
import { createOwnQueue } from './own-queue.ts';

const counted = { syncs: 0 };
const { fdatasync, fdatasyncSync } = fs;

beforeAll(() => {
  const counting =
    (call: (...args: never[]) => unknown) =>
    (...args: never[]) => {
      counted.syncs += 1;
      return call(...args);
    };
  Object.assign(fs, { fdatasync: counting(fdatasync), fdatasyncSync: counting(fdatasyncSync) });
  syncBuiltinESMExports();
});
afterAll(() => {
  Object.assign(fs, { fdatasync, fdatasyncSync });
  syncBuiltinESMExports();
});

/** A queue of `slots` that wait, each of which takes a job at once as the loop does: commits the release, and asks for its sync. */
function waiting(slots: number) {
  const dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  const pool = { name: 'p', runtime: null, timeout: null, recipe, devices: { ...oneDevice, count: 0 }, standby: true };
  const queue = createOwnQueue({ store, pools: [pool] });
  const scripts: string[] = [];
  const released: Promise<void>[] = [];
  let isHeld = false;
  const take = (): void => {
    while (!isHeld && released.length < slots) {
      const next = queue.jobs.next('p', null);
      if (next === null) return;
      const { job } = next;
      store.transaction({ durable: false }, () => queue.jobs.record({ change: 'assigned', job, agent: `of ${job}` }));
      queue.jobs.committed();
      released.push(store.sync().then(() => void scripts.push(job)));
    }
  };
  const stop = new AbortController();
  queue.observe((event) => event.kind === 'waiting' && take(), stop.signal);
  const request = jobRequest.parse({ command: ['true'], pool: 'p' });
  counted.syncs = 0;
  return {
    queue,
    request,
    scripts,
    released,
    take,
    /** As a pause does. */
    hold(held: boolean): void {
      isHeld = held;
    },
    async [Symbol.asyncDispose]() {
      stop.abort();
      await queue.close();
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

test('a job that is accepted while a slot waits shares the sync of its acceptance', async () => {
  await using here = waiting(1);
  const { id } = here.queue.submit(here.request);
  expect([counted.syncs, here.released.length]).toEqual([1, 1]);
  await Promise.all(here.released);
  expect([counted.syncs, here.scripts]).toEqual([1, [id]]);
});

test('so do all jobs of an array', async () => {
  await using here = waiting(5);
  here.queue.submitArray({ job: here.request, indices: [0, 1, 2, 3, 4] });
  await Promise.all(here.released);
  expect([counted.syncs, here.scripts.length]).toEqual([1, 5]);
});

test('releases of one turn share one sync', async () => {
  await using here = waiting(4);
  here.hold(true);
  for (let n = 0; n < 4; n += 1) here.queue.submit(here.request);
  // Each acceptance has its own.
  expect([counted.syncs, here.released.length]).toEqual([4, 0]);
  here.hold(false);
  here.take();
  await Promise.all(here.released);
  expect([counted.syncs, here.scripts.length]).toEqual([5, 4]);
});
