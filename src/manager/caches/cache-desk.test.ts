/** All caches of a host together: what is shown, what is cleared, and what stays. */
import { mkdirSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { listStored, storedFolder } from '../../ci/stored/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { type CacheDesk, createCacheDesk } from './cache-desk.ts';
import { Caches } from './caches.ts';

const never = new AbortController().signal;
const day = 86_400_000;
const place = eachScratch();
let inUse: string | null;
let free: number;
let desk: CacheDesk;
let caches: Caches;
beforeEach(() => {
  inUse = null;
  free = 500;
  caches = new Caches({
    folder: join(place.path, 'caches'),
    clock: systemClock,
    log: { info() {}, warn() {}, error() {} },
    wanted: () => [{ pool: 'gpu', agents: ['gpu.1'], caches: ['depot'], limit: 2 ** 20, perProject: true, untrusted: true }],
    nameOf: (key) => key,
    mayTrim: ({ repository }) => repository !== inUse,
    minFree: 0.1,
    disk: async () => ({ bavail: free, blocks: 1_000, bsize: 1024 }),
  });
  desk = createCacheDesk({ stateDir: place.path, clock: systemClock, named: caches, services: ['lab'] });
});

function file(path: string, daysAgo = 0): void {
  mkdirSync(dirname(join(place.path, path)), { recursive: true });
  writeFileSync(join(place.path, path), Buffer.alloc(10_000, 1));
  const at = (Date.now() - daysAgo * day) / 1000;
  utimesSync(join(place.path, path), at, at);
}
const names = async () => (await desk.list(never)).map(({ of, name, project, trusted }) => `${of} ${name} ${project} ${trusted}`);

beforeEach(() => {
  file('caches/gpu/gpu.1@acme%2Fapp/depot/a');
  file('caches/gpu/untrusted/0a1b/depot/a');
  file('service-caches/lab/acme%2Fapp/trusted/npm%0Av1', 1);
  file('service-caches/lab/acme%2Fapp/untrusted-0a/npm', 2);
});
const all = ['gpu depot acme/app true', 'gpu depot 0a1b false', 'lab npm acme/app true', 'lab npm acme/app false'];

test('named caches and archives are listed with whose they are', async () => {
  expect(await names()).toEqual(all);
});

test.each([
  [{ untrusted: true }, [all[0], all[2]]],
  [{ of: 'lab' }, all.slice(0, 2)],
  [{ name: 'depot', of: 'lab' }, all],
  [{ project: 'acme/app' }, [all[1]]],
  [{}, []],
])('%j clears what it names, and nothing else', async (only, left) => {
  const wouldBe = await desk.clear({ ...only, dryRun: true }, never);
  expect(await names()).toEqual(all);
  const done = await desk.clear({ ...only, dryRun: false }, never);
  await caches.settled();
  expect(await names()).toEqual(left);
  expect(done).toEqual({ ...wouldBe, dryRun: false });
  expect(done).toMatchObject({ caches: 4 - left.length, inUse: 0 });
});

test('what a job has stays', async () => {
  inUse = 'acme/app';
  expect(await desk.clear({ name: 'depot', dryRun: false }, never)).toMatchObject({ caches: 1, inUse: 1 });
  await caches.settled();
  expect(await names()).toEqual([all[0], all[2], all[3]]);
});

test('archives go when nobody used them for long, or their service is gone', async () => {
  file('service-caches/lab/acme%2Fapp/trusted/old', 91);
  file('service-caches/gone/acme%2Fapp/trusted/old', 8);
  file('service-caches/gone/acme%2Fapp/trusted/new', 6);
  await desk.tidy();
  expect(await names()).toEqual([...all.slice(0, 2), 'gone new acme/app true', ...all.slice(2)]);
});

test('archives go while the disk has too little free space, the longest unused first', async () => {
  const asked = caches.lacking.bind(caches);
  free = 0;
  inUse = 'acme/app';
  caches.lacking = async () => {
    const kept = await listStored(storedFolder(place.path));
    if (kept.length < 2) free = 500;
    return asked();
  };
  await desk.makeRoom(never);
  expect((await names()).slice(-1)).toEqual(['lab npm acme/app true']);
});
