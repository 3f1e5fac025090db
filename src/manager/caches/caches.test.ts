/** Named caches on a real disk: what is kept, what goes first, and when nothing may be touched. */

import { mkdirSync, readdirSync, readFileSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import type { Mount } from '../../ports/runtime.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { CachePlace, WantedCaches } from './cache-places.ts';
import { Caches, unusedAfter, unwantedAfter } from './caches.ts';

const never = new AbortController().signal;
const KiB = 1024;
const day = 86_400_000;
const place = eachScratch();
let folder: string;
let wanted: WantedCaches[];
let later: number;
let idle: (place: CachePlace) => boolean;
/** Share of the disk that is free. */
let free: () => number;
let caches: Caches;
const logged: string[] = [];

beforeEach(() => {
  folder = join(place.path, 'caches');
  wanted = [
    { pool: 'gpu', agents: ['gpu.1', 'gpu.2'], caches: ['depot', 'git'], limit: 100 * KiB, perProject: false, untrusted: true },
  ];
  later = 0;
  idle = () => true;
  free = () => 0.5;
  logged.length = 0;
  const log = (event: string, fields?: object) => void logged.push(`${event} ${JSON.stringify(fields)}`);
  caches = new Caches({
    folder,
    clock: { ...systemClock, wall: () => Date.now() + later },
    log: { info: log, warn: log, error: log },
    wanted: () => wanted,
    nameOf: (key) => key.replace('/', '.'),
    mayTrim: (each) => idle(each),
    minFree: 0.1,
    disk: async () => ({ bavail: free() * 1_000, blocks: 1_000, bsize: KiB }),
  });
});
afterEach(async () => {
  await caches.close();
});

const mount = (path: string): Mount => ({
  host: join(folder, path),
  container: '/cache',
  readOnly: false,
  variable: null,
  cache: { name: path.split('/').at(-1) ?? '' },
});
/** Files of 20 KiB in a cache, each read last so many days ago. */
const fill = async (path: string, ages: Readonly<Record<string, number>>) => {
  await caches.ensure([mount(path)]);
  for (const [name, age] of Object.entries(ages)) {
    const file = join(folder, path, name, 'pack');
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, Buffer.alloc(20 * KiB, 1));
    const at = (Date.now() - age * day) / 1_000;
    utimesSync(file, at, at);
    utimesSync(dirname(file), at, at);
  }
};
const left = (path: string) => readdirSync(join(folder, path)).sort();
const six = { a: 6, b: 5, c: 4, d: 3, e: 2, f: 1 };

describe('folders', () => {
  test('are made for any user below what is closed to all others, and keep what is in them', async () => {
    await caches.ensure([mount('gpu/gpu.1/depot'), mount('gpu/untrusted/0a1b/git')]);
    writeFileSync(join(folder, 'gpu/gpu.1/depot/file'), 'kept');
    await caches.ensure([mount('gpu/gpu.1/depot')]);
    const mode = (path: string) => (statSync(join(folder, path)).mode & 0o7777).toString(8);
    expect(['', 'gpu', 'gpu/gpu.1', 'gpu/gpu.1/depot', 'gpu/untrusted/0a1b/git'].map(mode)).toEqual([
      '700',
      '700',
      '700',
      '777',
      '777',
    ]);
    expect(readFileSync(join(folder, 'gpu/gpu.1/depot/file'), 'utf8')).toBe('kept');
  });

  test('of the owner are his own matter', async () => {
    await caches.ensure([{ ...mount('x/y/z'), host: '/nowhere/at/all', cache: { name: null } }]);
    await caches.ensure([{ ...mount('x/y/z'), host: '/nowhere/at/all', cache: null }]);
    expect(readdirSync(place.path)).toEqual([]);
  });

  test.each(['gpu', 'gpu/gpu.1', 'gpu/gpu.1/depot'])('are refused when %s is a link', async (path) => {
    mkdirSync(join(place.path, 'elsewhere/gpu.1/depot'), { recursive: true });
    mkdirSync(dirname(join(folder, path)), { recursive: true, mode: 0o700 });
    symlinkSync(join(place.path, 'elsewhere'), join(folder, path));
    await expect(caches.ensure([mount('gpu/gpu.1/depot')])).rejects.toMatchObject({
      code: 'E_STATE_DIR',
      message: expect.stringContaining(join(folder, path)),
    });
    expect(readdirSync(join(place.path, 'elsewhere/gpu.1/depot'))).toEqual([]);
  });

  test('outside of their place are never made', async () => {
    await expect(caches.ensure([{ ...mount('a/b/c'), host: join(place.path, 'other/b/c/d') }])).rejects.toThrow(RangeError);
  });
});

describe('beyond its limit', () => {
  test('a cache loses what was unused for longest, completely', async () => {
    await fill('gpu/gpu.1/depot', six);
    caches.used('gpu/1');
    await caches.settled();
    expect(left('gpu/gpu.1/depot')).toEqual(['d', 'e', 'f']);
    expect(left('.trash')).toEqual([]);
    expect(caches.findings()).toEqual([
      expect.objectContaining({
        level: 'ok',
        subject: 'pool gpu',
        message: expect.stringMatching(/of depot of gpu\.1 were removed just now/),
      }),
    ]);
    expect(logged).toEqual([expect.stringContaining('cache trimmed {"cache":"depot of gpu.1","entries":3')]);
  });

  test('it keeps all while its slot has an agent, and is trimmed between two agents', async () => {
    await fill('gpu/gpu.1/depot', six);
    idle = () => false;
    caches.used('gpu/1');
    await caches.settled();
    expect(left('gpu/gpu.1/depot')).toHaveLength(6);
    expect(caches.findings()).toContainEqual(
      expect.objectContaining({ level: 'warning', message: expect.stringContaining('depot of gpu.1') }),
    );
    // Its next agent is about to be released, in the same turn.
    caches.used('gpu/1');
    expect(left('gpu/gpu.1/depot')).toEqual(['d', 'e', 'f']);
    await caches.settled();
  });

  test('an agent that comes meanwhile stops it at once', async () => {
    await fill('gpu/gpu.1/depot', six);
    let asked = 0;
    idle = () => ++asked <= 1;
    caches.used('gpu/1');
    await caches.settled();
    expect(left('gpu/gpu.1/depot')).toEqual(['b', 'c', 'd', 'e', 'f']);
  });

  test('only its own slot is looked at; untrusted jobs have theirs', async () => {
    await fill('gpu/gpu.1/depot', six);
    await fill('gpu/untrusted/0a1b/depot', six);
    caches.used('gpu/2');
    caches.used('other/1');
    await caches.settled();
    expect(left('gpu/gpu.1/depot')).toHaveLength(6);
    expect(left('gpu/untrusted/0a1b/depot')).toHaveLength(6);
    idle = ({ agent }) => agent === null;
    await caches.tidy();
    expect(left('gpu/gpu.1/depot')).toHaveLength(6);
    expect(left('gpu/untrusted/0a1b/depot')).toEqual(['d', 'e', 'f']);
  });

  test('all untrusted jobs of a pool have one limit; what was used longest ago goes first', async () => {
    for (const [fork, age] of [
      ['0a', 9],
      ['0b', 1],
      ['0c', 5],
    ] as const) {
      await fill(`gpu/untrusted/${fork}/depot`, { a: age, b: age });
      await caches.tidy();
    }
    // More than 120 KiB of 100 are cut down to 80.
    expect(['0a', '0b', '0c'].map((fork) => left(`gpu/untrusted/${fork}/depot`).length)).toEqual([0, 2, 1]);
    await fill('gpu/gpu.1/depot', { a: 1, b: 1, c: 1, d: 1 });
    caches.used('gpu/1');
    await caches.settled();
    expect(left('gpu/gpu.1/depot')).toHaveLength(4);
  });

  test('projects of a slot have one limit for each cache, and other slots keep theirs', async () => {
    wanted = wanted.map((one) => ({ ...one, perProject: true }));
    await fill('gpu/gpu.1@acme%2Fold/depot', { a: 9, b: 9, c: 9 });
    await fill('gpu/gpu.1@acme%2Fnew/depot', { a: 1, b: 1, c: 1 });
    await fill('gpu/gpu.2@acme%2Fold/depot', { a: 9, b: 9, c: 9 });
    await fill('gpu/gpu.1@acme%2Fold/git', { a: 9 });
    caches.used('gpu/1');
    await caches.settled();
    expect(left('gpu/gpu.1@acme%2Fold/depot')).toEqual([]);
    expect(left('gpu/gpu.1@acme%2Fnew/depot')).toHaveLength(3);
    expect(left('gpu/gpu.2@acme%2Fold/depot')).toHaveLength(3);
    expect(left('gpu/gpu.1@acme%2Fold/git')).toHaveLength(1);
    // Nobody wants those of slots any more, or of projects once that is not asked for.
    later = unwantedAfter + 1;
    wanted = wanted.map((one) => ({ ...one, perProject: false }));
    await caches.tidy();
    expect(readdirSync(join(folder))).toEqual(['.trash']);
  });

  test('links and odd names go like all else, and never what they lead to', async () => {
    const outside = join(place.path, 'outside');
    mkdirSync(outside);
    writeFileSync(join(outside, 'precious'), Buffer.alloc(500 * KiB, 1));
    await fill('gpu/gpu.1/depot', { 'two\nlines': 9, '-rf': 8, '..x': 7, ...six });
    symlinkSync(outside, join(folder, 'gpu/gpu.1/depot/link'));
    symlinkSync(outside, join(folder, 'gpu/gpu.1/depot/a/link'));
    wanted = wanted.map((one) => ({ ...one, limit: 1 }));
    caches.used('gpu/1');
    await caches.settled();
    expect([left('gpu/gpu.1/depot'), left('.trash')]).toEqual([[], []]);
    expect(readdirSync(outside)).toEqual(['precious']);
  });

  test('within its limit it keeps all', async () => {
    await fill('gpu/gpu.1/depot', { a: 80, b: 50, c: 1 });
    caches.used('gpu/1');
    await caches.settled();
    expect(left('gpu/gpu.1/depot')).toEqual(['a', 'b', 'c']);
    expect(caches.findings()[0]?.message).toMatch(/hold 7\d(\.\d)? KiB in 1 of their folders; each may have up to 100 KiB/);
  });
});

describe('the hourly look', () => {
  test('removes, after some days, what config does not name any more', async () => {
    for (const path of ['gone/gone.1/depot', 'gpu/gpu.3/depot', 'gpu/gpu.1/old', 'gpu/gpu.1/git']) await fill(path, { a: 1 });
    await caches.tidy();
    expect(left('gpu/gpu.1')).toEqual(['git', 'old']);
    later = unwantedAfter + 1_000;
    idle = ({ agent }) => agent !== 'gpu.3';
    await caches.tidy();
    expect([left(''), left('gpu'), left('gpu/gpu.1')]).toEqual([['.trash', 'gpu'], ['gpu.1', 'gpu.3'], ['git']]);
    expect(left('.trash')).toEqual([]);
  });

  test('empties what was unused for 90 days, but keeps its folder, which a standby may have', async () => {
    await fill('gpu/gpu.1/depot', { a: 95, b: 1 });
    await fill('gpu/gpu.2/depot', { a: 95, b: 91 });
    await fill('gpu/untrusted/0a1b/git', { a: 1 });
    await caches.tidy();
    await caches.tidy();
    expect([left('gpu/gpu.1/depot'), left('gpu/gpu.2/depot')]).toEqual([['a', 'b'], []]);
    later = unusedAfter + day;
    await caches.tidy();
    expect([left('gpu/gpu.1/depot'), left('gpu')]).toEqual([[], ['gpu.1', 'gpu.2']]);
  });

  test('and the start remove what a manager before left to be removed', async () => {
    mkdirSync(join(folder, '.trash/abc/deep'), { recursive: true });
    caches.start();
    await caches.settled();
    expect(left('.trash')).toEqual([]);
  });

  test('ignores files and links next to the caches, and an absent folder', async () => {
    await caches.tidy();
    mkdirSync(folder);
    writeFileSync(join(folder, 'note'), '');
    symlinkSync('/etc', join(folder, 'etc'));
    later = 100 * day;
    await caches.tidy();
    expect(left('')).toEqual(['etc', 'note']);
  });
});

describe('when the disk is full', () => {
  /** 1000 blocks of 1 KiB, of which 100 are to be free: what is removed becomes free. */
  const fullDisk = (lacking: number) => {
    const total = () => ['gpu/gpu.1/depot', 'gpu/gpu.2/depot'].reduce((sum, path) => sum + left(path).length * 20, 0);
    const before = total();
    free = () => (100 - lacking + before - total()) / 1_000;
  };

  test('idle caches give up what was not used for longest, no more than is needed', async () => {
    await fill('gpu/gpu.1/depot', { a: 9, b: 8 });
    await fill('gpu/gpu.2/depot', { a: 5, b: 4 });
    fullDisk(30);
    await caches.makeRoom(never);
    expect([left('gpu/gpu.1/depot'), left('gpu/gpu.2/depot')]).toEqual([[], ['a', 'b']]);
  });

  test('those of slots with an agent are left alone', async () => {
    await fill('gpu/gpu.1/depot', { a: 9, b: 8 });
    await fill('gpu/gpu.2/depot', { a: 5, b: 4 });
    idle = ({ agent }) => agent === 'gpu.2';
    fullDisk(1_000);
    await caches.makeRoom(never);
    expect([left('gpu/gpu.1/depot'), left('gpu/gpu.2/depot')]).toEqual([['a', 'b'], []]);
  });

  test('nothing is given up while there is room, or no cache', async () => {
    free = () => 0.01;
    await caches.makeRoom(never);
    await fill('gpu/gpu.1/depot', { a: 99 });
    free = () => 0.2;
    await caches.makeRoom(never);
    expect(left('gpu/gpu.1/depot')).toEqual(['a']);
  });
});
