import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { compareVersions } from '../base/version.ts';
import { builtInTables, parseTables, readTables } from './tables.ts';

/** The message of a refusal, which says where and what. */
const refused = (value: unknown): string => {
  try {
    parseTables(value, 'a test');
  } catch (error) {
    expect(error).toMatchObject({ code: 'E_IMAGE_TABLES' });
    return String(error);
  }
  return 'was taken';
};
const row = (more: object) => ({ ...builtInTables, images: [{ ...builtInTables.images[0], ...more }] });

describe('tables that make no sense are refused with the place', () => {
  test.each<[string, unknown, RegExp]>([
    ['no object', 7, /a test.*\n.*top/],
    ['another format', { ...builtInTables, format: 2 }, /format: this onejob reads format 1/],
    ['a key that means nothing', { ...builtInTables, extra: 1 }, /extra/],
    [
      'a version in words',
      { ...builtInTables, branches: [{ driver: 580, cuda: 'thirteen', verified: true }] },
      /branches\.0\.cuda: expected a CUDA version/,
    ],
    ['a release of another CUDA', row({ tag: '13.0.1' }), /images\.0\.tag: is not a release of CUDA 11\.4/],
    ['a CUDA without its driver', row({ cuda: '12.7', tag: '12.7.0' }), /images\.0\.cuda: has no row in "toolkits"/],
    ['a source that is not there', row({ source: 'hearsay' }), /images\.0\.source/],
    [
      'brands that are not there',
      row({ amd64: { distributions: ['ubi8'], gate: { brands: 'few', branches: [] } } }),
      /gate\.brands/,
    ],
    ['nothing to fall back on', { ...builtInTables, preferred: ['plan9'] }, /preferred\.0/],
  ])('%s', (_, value, message) => {
    expect(refused(value)).toMatch(message);
  });

  test('and a long list of problems is cut', () => {
    expect(refused({ ...builtInTables, images: Array.from({ length: 30 }, () => ({})) })).toMatch(/and \d+ more$/);
  });
});

test('the built-in tables hold together', () => {
  for (const { any, own } of builtInTables.toolkits) expect(compareVersions(any, own)).toBeLessThanOrEqual(0);
  const branches = builtInTables.branches.map((each) => each.cuda);
  expect(branches).toEqual(branches.toSorted(compareVersions));
  const tags = builtInTables.images.map((each) => each.tag);
  expect(tags).toEqual(tags.toSorted(compareVersions));
  expect(new Set(tags).size).toBe(tags.length);
  for (const { first, last } of builtInTables.generations) if (last !== null) expect(compareVersions(first, last)).toBeLessThan(0);
  const computes = builtInTables.generations.flatMap((each) => each.compute);
  expect(new Set(computes).size).toBe(computes.length);
  for (const { amd64, arm64 } of builtInTables.images) {
    // Nothing is published for Arm that is not published for x86.
    for (const each of arm64?.distributions ?? []) expect(amd64?.distributions).toContain(each);
  }
});

test('every published distribution has its image without CUDA', () => {
  const published = new Set(builtInTables.images.flatMap((each) => each.amd64?.distributions ?? []));
  expect([...published].filter((each) => builtInTables.plain[each] === undefined)).toEqual([]);
});

describe('a file of the owner', () => {
  test('is taken when it is like ours', async () => {
    using dir = scratch();
    const path = join(dir.path, 'tables.json');
    writeFileSync(path, JSON.stringify({ ...builtInTables, date: '2027-01-31' }));
    expect((await readTables(path)).date).toBe('2027-01-31');
  });

  test.each([
    ['that is not there', null, /ENOENT/],
    ['that is not JSON', '{ "format": 1,', /JSON/],
    ['with something else in it', '[]', /are invalid/],
  ])('%s is refused by its name', async (_, content, why) => {
    using dir = scratch();
    const path = join(dir.path, 'tables.json');
    if (content !== null) writeFileSync(path, content);
    const failure = await readTables(path).catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'E_IMAGE_TABLES' });
    expect(String(failure)).toContain(path);
    expect(String(failure)).toMatch(why);
  });
});
