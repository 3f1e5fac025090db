import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type Memory, memoryFile, planOf, readMemory, rememberedOf, writeMemory } from './memory.ts';
import type { Entry } from './pack.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const now = 1_000_000;
function entry(path: string, stamp = 'as before', changed = 0): Entry {
  return { path, isFolder: false, size: 1, tarSize: 1024, stamp, changed };
}
/** Three files of one tar. */
const memory: Memory = {
  sent: [['tar', 4096]],
  rows: [
    ['a', 'as before', 0, 0, 1024],
    ['b', 'as before', 0, 1024, 2048],
    ['c', 'as before', 0, 2048, 3072],
  ],
};
const missing = (entries: Entry[], from = memory) => planOf(entries, from).missing.map(({ path }) => path);

it('what has the same inode, mode, size and times is not sent again', () => {
  expect(missing([entry('a'), entry('b'), entry('c')])).toEqual([]);
  expect(missing([entry('a'), entry('b', 'changed'), entry('c'), entry('d')])).toEqual(['b', 'd']);
});

it('parts that follow each other are one, and the end mark comes last', () => {
  const { known } = planOf([entry('a'), entry('b'), entry('c')], memory);
  const listed = (entries: Entry[]) => ({ top: '/', bytes: 0, at: now, entries });
  expect(rememberedOf(listed([entry('a'), entry('b'), entry('c')]), memory.sent, known)?.ranges).toEqual([
    [0, 0, 3072],
    [0, 3072, 4096],
  ]);
  expect(rememberedOf(listed([entry('a'), entry('c')]), memory.sent, known)?.ranges).toEqual([
    [0, 0, 1024],
    [0, 2048, 3072],
    [0, 3072, 4096],
  ]);
  const many = Array.from({ length: 20_001 }, (_, n) => entry(`${n}`));
  expect(rememberedOf(listed(many), memory.sent, new Map(many.map(({ path }, n) => [path, [0, 2 * n, 2 * n + 1]])))).toBeNull();
});

it('what changed right before it was read is read again, because a later change may have the same time', () => {
  const entries = [
    entry('a', 'as before', now - 60_000),
    entry('b', 'as before', now - 1_000),
    entry('c', 'as before', now + 60_000),
  ];
  const after = rememberedOf({ top: '/', bytes: 0, at: now, entries }, memory.sent, planOf(entries, memory).known);
  expect(missing(entries, after?.memory)).toEqual(['a', 'b', 'c']);
  expect(after?.memory.rows.map(([, stamp]) => stamp)).toEqual(['as before', '', '']);
});

it('a tar of which less than half is used is given up', () => {
  expect(missing([entry('a'), entry('b')])).toEqual([]);
  expect(missing([entry('a')])).toEqual(['a']);
});

it('at most eight tars are used, the largest of many', () => {
  const many: Memory = {
    sent: Array.from({ length: 20 }, (_, n) => [`${n}`, n + 1] as const),
    rows: Array.from({ length: 20 }, (_, n) => [`f${n}`, 'as before', n, 0, n + 1] as const),
  };
  const plan = planOf(
    many.rows.map(([path]) => entry(path)),
    many,
  );
  expect(plan.sent.map(([name]) => name)).toEqual(['19', '18', '17', '16', '15', '14', '13']);
  expect(plan.known.get('f18')).toEqual([1, 0, 19]);
  expect(plan.missing).toHaveLength(13);
});

it('is only for its user, and one for each folder and daemon', () => {
  const file = memoryFile(dir.path, '/run/a.sock', '/here');
  writeMemory(file, memory, Date.now());
  expect(readMemory(file)).toEqual(memory);
  expect([statSync(file).mode & 0o777, statSync(join(file, '..')).mode & 0o777]).toEqual([0o600, 0o700]);
  expect(readMemory(memoryFile(dir.path, '/run/b.sock', '/here'))).toEqual({ sent: [], rows: [] });
  expect(readMemory(memoryFile(dir.path, '/run/a.sock', '/there'))).toEqual({ sent: [], rows: [] });
});

it.each([
  ['cut short', (file: string) => truncateSync(file, 100)],
  ['longer', (file: string) => appendFileSync(file, ' ')],
  ['empty', (file: string) => writeFileSync(file, '')],
  ['different', (file: string) => writeFileSync(file, readFileSync(file, 'utf8').replace('1024', '2048'))],
])('one that is %s counts as missing', (_, damage) => {
  const file = memoryFile(dir.path, 'd', '/here');
  writeMemory(file, memory, Date.now());
  damage(file);
  expect(readMemory(file)).toEqual({ sent: [], rows: [] });
});

it('a cache folder that cannot be written does no harm', () => {
  writeFileSync(join(dir.path, 'onejob'), 'a file');
  writeMemory(memoryFile(dir.path, 'd', '/here'), memory, 0);
});

it('a folder that is a link to another, as of somebody whose home root writes to, loses no file of others', () => {
  mkdirSync(join(dir.path, 'onejob'));
  mkdirSync(join(dir.path, 'etc'));
  symlinkSync(join(dir.path, 'etc'), join(dir.path, 'onejob', 'sent'));
  const [theirs, old] = ['passwd', 'a'.repeat(64)].map((name) => join(dir.path, 'etc', name));
  for (const path of [theirs, old]) {
    writeFileSync(path ?? '', '');
    utimesSync(path ?? '', 1, 1);
  }
  writeMemory(memoryFile(dir.path, 'daemon', '/top'), { sent: [], rows: [] }, Date.now());
  expect([theirs, old].map((path) => existsSync(path ?? ''))).toEqual([true, false]);
});
