import { chmodSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { BuiltImages } from './built.ts';

test('only what was built here counts as built, in another process too, until it is gone from the Engine', () => {
  using dir = scratch();
  const folder = join(dir.path, 'built-images');
  const [one, two] = [`sha256:${'1'.repeat(64)}`, `sha256:${'2'.repeat(64)}`];
  const built = new BuiltImages(folder);
  expect(built.has(one)).toBe(false);
  built.add(one);
  built.add(two);
  built.add(two);
  const other = new BuiltImages(folder);
  expect([other.has(one), other.has(two)]).toEqual([true, true]);
  other.keepOnly([two]);
  expect([built.has(one), built.has(two)]).toEqual([false, true]);
  expect(statSync(folder).mode & 0o777).toBe(0o700);
});

test('a name that tries to leave the folder stays in it', () => {
  using dir = scratch();
  const folder = join(dir.path, 'built-images');
  mkdirSync(folder);
  chmodSync(folder, 0o700);
  const built = new BuiltImages(folder);
  built.add('../escaped');
  expect(built.has('../escaped')).toBe(true);
  expect(() => statSync(join(dir.path, 'escaped'))).toThrow();
});
