/** Folders as a hostile job leaves them: all of it is counted, and nothing of the host. */
import { execFileSync } from 'node:child_process';
import {
  closeSync,
  ftruncateSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { nest } from '../../../test/support/nested.ts';
import { lacks } from '../../../test/support/require.ts';
import { measure } from './cache-tree.ts';

const never = new AbortController().signal;
const day = 86_400_000;
const place = eachScratch();
let cache: string;
let outside: string;
beforeEach(() => {
  cache = join(place.path, 'cache');
  outside = join(place.path, 'outside');
  for (const dir of [cache, outside]) mkdirSync(dir);
  writeFileSync(join(outside, 'precious'), 'do not touch');
});
afterEach(() => expect(readFileSync(join(outside, 'precious'), 'utf8')).toBe('do not touch'));

const sizes = async () => {
  const found = await measure(cache, Date.now(), never);
  return Object.fromEntries((found?.entries ?? []).map(({ name, bytes }) => [name, bytes]));
};
const MiB = 2 ** 20;

describe('is counted', () => {
  test('as the disk is: files with holes and with several names once, links not at all', async () => {
    mkdirSync(join(cache, 'a'));
    writeFileSync(join(cache, 'a', 'real'), Buffer.alloc(MiB, 1));
    linkSync(join(cache, 'a', 'real'), join(cache, 'again'));
    const sparse = openSync(join(cache, 'sparse'), 'w');
    ftruncateSync(sparse, 2 ** 40);
    closeSync(sparse);
    writeFileSync(join(outside, 'large'), Buffer.alloc(4 * MiB, 1));
    symlinkSync(outside, join(cache, 'link'));
    symlinkSync('/etc', join(cache, 'a', 'etc'));
    const found = await sizes();
    expect(Object.keys(found).sort()).toEqual(['a', 'again', 'link', 'sparse']);
    const total = Object.values(found).reduce((sum, each) => sum + each, 0);
    expect(total).toBeGreaterThan(MiB);
    expect(total).toBeLessThan(1.1 * MiB);
  });

  test('by when anything below was read or written, never later than now', async () => {
    mkdirSync(join(cache, 'old'));
    mkdirSync(join(cache, 'read'));
    for (const [name, atime, mtime] of [
      ['old/file', 30, 30],
      ['read/file', 2, 30],
      ['future', -400, -400],
    ] as const) {
      writeFileSync(join(cache, name), '');
      utimesSync(join(cache, name), (Date.now() - atime * day) / 1000, (Date.now() - mtime * day) / 1000);
    }
    for (const name of ['old', 'read']) utimesSync(join(cache, name), 1, (Date.now() - 40 * day) / 1000);
    const now = Date.now();
    const found = await measure(cache, now, never);
    const ages = Object.fromEntries((found?.entries ?? []).map(({ name, used }) => [name, Math.round((now - used) / day)]));
    expect(ages).toEqual({ old: 30, read: 2, future: 0 });
  });

  test('also when its names are not text, or hold line ends', async () => {
    execFileSync('sh', ['-c', `printf x > "$(printf '\\377\\376bad')"; printf x > "$(printf 'two\\nlines')"; mkdir -- '-rf'`], {
      cwd: cache,
    });
    expect(
      Object.keys(await sizes())
        .map((name) => Buffer.from(name, 'latin1').toString('hex'))
        .sort(),
    ).toEqual(['-rf', 'two\nlines', '\xff\xfebad'].map((name) => Buffer.from(name, 'latin1').toString('hex')).sort());
  });

  test('as endless where it is nested too deep', async () => {
    nest(cache, 400);
    expect(await sizes()).toEqual({ d: Number.POSITIVE_INFINITY });
  });

  test('as nothing when it is not there, is a link, or no folder', async () => {
    symlinkSync(outside, join(place.path, 'link'));
    for (const name of ['none', 'link', 'outside/precious']) expect(await measure(join(place.path, name), 0, never)).toBeNull();
  });
});

test('is counted until that is aborted', async () => {
  writeFileSync(join(cache, 'file'), '');
  await expect(measure(cache, 0, AbortSignal.abort(new Error('enough')))).rejects.toThrow('enough');
});

test.skipIf(lacks('root'))('is counted without what is mounted there, not even from the same disk', async () => {
  mkdirSync(join(cache, 'mounted'));
  writeFileSync(join(outside, 'large'), Buffer.alloc(MiB, 1));
  execFileSync('mount', ['--bind', outside, join(cache, 'mounted')]);
  try {
    expect((await sizes()).mounted).toBeLessThan(10_000);
  } finally {
    execFileSync('umount', [join(cache, 'mounted')]);
  }
});
