/** Archives on a real disk: what goes first, and what nobody may push out. */
import { existsSync, mkdirSync, readdirSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import type { statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { listStored, NoRoom, ownerPath, removeStored, StoredCaches } from './store.ts';

const KiB = 1024;
const place = eachScratch();
const limits = { bytes: 100 * KiB, minFree: 0.1 };
const [mine, theirs, fork] = [
  { service: 'lab', project: 'acme/app', trust: 'trusted' },
  { service: 'lab', project: 'acme/other', trust: 'trusted-protected' },
  { service: 'lab', project: 'acme/app', trust: 'untrusted-0a1b' },
].map(ownerPath) as [string, string, string];
let later: number;
let free: number;
let store: StoredCaches;
beforeEach(() => {
  later = 0;
  free = 1_000;
  const disk = (async () => ({ bavail: free, blocks: 1_000, bsize: KiB })) as unknown as typeof statfs;
  store = new StoredCaches(join(place.path, 'kept'), () => Date.now() + later, disk);
});

async function put(owner: string, key: string, bytes = 30 * KiB): Promise<void> {
  later += 1_000;
  const { id, handle } = await store.begin(owner, key, bytes, limits);
  await handle.write(Buffer.alloc(bytes, 1));
  await handle.close();
  expect(await store.commit(owner, id)).toBe(true);
}
async function has(owner: string, key: string): Promise<boolean> {
  later += 1_000;
  const found = await store.open(owner, key);
  await found?.handle.close();
  return found !== null;
}
const keys = async () => (await listStored(join(place.path, 'kept'))).map(({ key }) => key).sort();

describe('beyond the limit', () => {
  it('what was used longest ago goes first, of all trusted jobs of a service', async () => {
    for (const [owner, key] of [
      [mine, 'a'],
      [theirs, 'b'],
      [mine, 'c'],
    ] as const)
      await put(owner, key);
    expect(await has(mine, 'a')).toBe(true);
    await put(mine, 'd');
    expect(await keys()).toEqual(['a', 'c', 'd']);
    // Nothing is left of who has nothing any more.
    expect(readdirSync(join(place.path, 'kept', 'lab'))).toEqual(['acme%2Fapp']);
  });

  it('untrusted jobs push out their own only', async () => {
    await put(mine, 'a', 90 * KiB);
    for (const key of ['x', 'y', 'z', 'w']) await put(fork, key);
    expect(await keys()).toEqual(['a', 'w', 'y', 'z']);
  });

  it('a thousand archives of untrusted jobs are enough, however small they are', async () => {
    const at = join(place.path, 'kept', fork);
    mkdirSync(at, { recursive: true });
    for (let n = 0; n < 1_000; n += 1) writeFileSync(join(at, `k${n}`), 'x');
    await put(mine, 'a', 10);
    expect(await keys()).toHaveLength(1_001);
    await put(fork, 'new', 10);
    expect(await keys()).toHaveLength(1_001);
  });

  it('one is refused that is too large alone, or would leave the disk too little', async () => {
    await put(mine, 'a');
    await expect(store.begin(mine, 'b', 101 * KiB, limits)).rejects.toThrow(NoRoom);
    free = 110;
    await expect(store.begin(mine, 'b', 20 * KiB, limits)).rejects.toThrow(/disk\.min_free/);
    expect(await keys()).toEqual(['a']);
  });

  it('those that are being written count as a whole, and are not pushed out until nobody writes to them', async () => {
    const [one, two] = [await store.begin(mine, 'a', 60 * KiB, limits), await store.begin(mine, 'b', 40 * KiB, limits)];
    await expect(store.begin(mine, 'c', KiB, limits)).rejects.toThrow(/other/);
    await one.handle.close();
    await two.handle.close();
    later = 3_600_001;
    await put(mine, 'c');
    expect(await keys()).toEqual(['c']);
    expect(await store.commit(mine, one.id)).toBe(false);
  });

  it('a disk that others have promised to fill has no room twice', async () => {
    free = 200;
    const one = await store.begin(fork, 'sparse', 90 * KiB, limits);
    await expect(store.begin(mine, 'b', 30 * KiB, limits)).rejects.toThrow(/disk\.min_free/);
    await one.handle.close();
  });
});

it('no key leads out of its folder, and each key is one file', async () => {
  const odd = ['../../../../etc/passwd', '.parts', '..', '/', 'a\nb', `${'x'.repeat(500)}1`, `${'x'.repeat(500)}2`, '%2e%2e'];
  for (const key of odd) await put(mine, key, 10);
  for (const key of odd) expect(await has(mine, key)).toBe(true);
  expect(await has(mine, 'x'.repeat(500))).toBe(false);
  expect(readdirSync(join(place.path, 'kept', mine))).toHaveLength(odd.length + 1);
  expect(readdirSync(place.path)).toEqual(['kept']);
  expect(statSync(join(place.path, 'kept')).mode & 0o777).toBe(0o700);
});

it('only plain files are listed and removed', async () => {
  const at = join(place.path, 'kept', mine);
  mkdirSync(join(at, 'folder'), { recursive: true });
  writeFileSync(join(place.path, 'precious'), 'x');
  symlinkSync(join(place.path, 'precious'), join(at, 'link'));
  expect(await keys()).toEqual([]);
  await put(mine, 'a', 10);
  await removeStored(join(place.path, 'kept'), await listStored(join(place.path, 'kept')));
  expect(await keys()).toEqual([]);
  expect(existsSync(join(place.path, 'precious'))).toBe(true);
});

it('a cache of Actions is the first one, a bucket has the last one', async () => {
  await put(mine, 'a', 10);
  const { id, handle } = await store.begin(mine, 'a', 20, limits);
  await handle.close();
  expect(await store.commit(mine, id, true)).toBe(false);
  await put(mine, 'a', 30);
  expect((await listStored(join(place.path, 'kept'))).map(({ bytes }) => bytes)).toEqual([30]);
});

it('keys are found by their beginning, the newest first', async () => {
  for (const key of ['npm-1', 'npm-2', 'pip-1']) await put(mine, key, 10);
  const old = new Date(0);
  utimesSync(join(place.path, 'kept', mine, 'npm-2'), old, old);
  expect(await store.find(mine, 'npm-')).toEqual(['npm-1', 'npm-2']);
  expect(await store.find(fork, 'npm-')).toEqual([]);
});
