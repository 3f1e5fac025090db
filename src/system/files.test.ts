/** What survives a power cut: each call that a disk sees, in its order. */
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { scratch } from '../../test/support/scratch.ts';
import { openAccess } from '../api/access.ts';
import { installationKey } from '../ci/filter/seal.ts';
import { writeFile as writeConfig } from '../cli/init/steps.ts';
import { writeWhole } from './files.ts';

const told: string[] = [];
const { fsyncSync, renameSync, linkSync } = fs;

beforeAll(() => {
  const named =
    (word: string, call: typeof renameSync) =>
    (from: fs.PathLike, to: fs.PathLike): void => {
      call(from, to);
      told.push(`${word} ${basename(String(to))}`);
    };
  Object.assign(fs, {
    fsyncSync(file: number): void {
      fsyncSync(file);
      const path = fs.readlinkSync(`/proc/self/fd/${file}`);
      told.push(`sync ${fs.fstatSync(file).isDirectory() ? 'folder of ' : ''}${basename(path).replace(/(\.\d+)?\.new$/, '')}`);
    },
    renameSync: named('rename', renameSync),
    linkSync: named('link', linkSync),
  });
  syncBuiltinESMExports();
});
afterAll(() => {
  Object.assign(fs, { fsyncSync, renameSync, linkSync });
  syncBuiltinESMExports();
});
beforeEach(() => void told.splice(0));

describe('what survives a power cut has its content on disk before its name, and then its name', () => {
  test.each<[string, 'rename' | 'link', (folder: string) => void, ...string[]]>([
    ['a file', 'rename', (folder) => writeWhole(join(folder, 'a'), 'text', { over: true, mode: 0o644 }), 'a'],
    ['one that replaces nothing', 'link', (folder) => writeWhole(join(folder, 'a'), 'text', { over: false, mode: 0o644 }), 'a'],
    ['a config of init', 'rename', (folder) => writeConfig(join(folder, 'config.yml'), 'pools: {}'), 'config.yml'],
    ['a key of the filter', 'link', (folder) => void installationKey(folder), 'key'],
    [
      'the tokens and the identity of the API',
      'link',
      (folder) => void openAccess({ dir: join(folder, '..'), clock: handClock() }),
      ...['read.token', 'operator.token', 'identity.key'],
    ],
  ])('%s', (_, names, write, ...files) => {
    using here = scratch();
    const folder = join(here.path, 'api');
    fs.mkdirSync(folder, { mode: 0o700 });
    write(folder);
    expect(told).toEqual(files.flatMap((name) => [`sync ${name}`, `${names} ${name}`, 'sync folder of api']));
  });
});

test('what a killed process with the same id has left is in no way, and no half of a file stays', () => {
  using here = scratch();
  const path = join(here.path, 'a');
  fs.writeFileSync(`${path}.${process.pid}.new`, 'half');
  writeWhole(path, 'whole', { over: true, mode: 0o600 });
  expect(fs.readFileSync(path, 'utf8')).toBe('whole');
  expect(() => writeWhole(path, 'other', { over: false, mode: 0o600 })).toThrow('EEXIST');
  expect(fs.readFileSync(path, 'utf8')).toBe('whole');
  expect(fs.readdirSync(here.path)).toEqual(['a']);
});
