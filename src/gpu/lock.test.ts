import { chmodSync, existsSync, mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createLocks, lockDirectory, locksIn } from './lock.ts';

let here: Scratch;
beforeEach(() => {
  here = scratch();
});
afterEach(() => here[Symbol.dispose]());

const locks = (owner: string, bootId = 'boot-1') =>
  createLocks({ dir: join(here.path, 'locks'), owner, stateDir: `/var/lib/${owner}`, bootId });

test('S1: a device that one manager has is refused to every other of the host, with who has it', () => {
  const [one, two] = [locks('one'), locks('two')];
  expect(one.take('GPU-1')).toBeNull();
  expect(one.take('GPU-1')).toBeNull();
  expect(two.take('GPU-1')).toMatch(/another onejob has it \(pid \d+, state in \/var\/lib\/one;/);
  expect(two.take('GPU-2')).toBeNull();
});

test('a lock outlives its manager, and is its own again when that comes back', () => {
  locks('one').take('GPU-1');
  expect(locks('two').take('GPU-1')).toMatch(/another onejob/);
  const again = locks('one');
  expect(again.take('GPU-1')).toBeNull();
  again.keep(new Set());
  expect(locks('two').take('GPU-1')).toBeNull();
});

test('gives up what it does not keep, and nothing of others', () => {
  const [one, two] = [locks('one'), locks('two')];
  for (const uuid of ['GPU-1', 'MIG-GPU-1/2/0']) one.take(uuid);
  two.take('GPU-2');
  one.keep(new Set(['GPU-1']));
  expect([...locksIn(join(here.path, 'locks'))].map(([uuid, holder]) => `${uuid} ${holder?.owner}`).sort()).toEqual([
    'GPU-1 one',
    'GPU-2 two',
  ]);
});

test('a lock of another boot is nobody’s: its agents are gone', () => {
  locks('one', 'boot-0').take('GPU-1');
  expect(locks('two').take('GPU-1')).toBeNull();
  expect(locks('one').take('GPU-1')).toMatch(/another onejob/);
});

test('a lock that cannot be understood is kept to, and named', () => {
  const one = locks('one');
  one.take('GPU-2');
  const path = join(here.path, 'locks', 'GPU-1.lock');
  writeFileSync(path, 'half');
  expect(one.take('GPU-1')).toContain(path);
  expect(existsSync(path)).toBe(true);
});

test('everybody may add a lock, and only its owner take it away', () => {
  locks('one').take('GPU-1');
  expect(statSync(join(here.path, 'locks')).mode & 0o7777).toBe(0o1777);
  expect(readdirSync(join(here.path, 'locks'))).toEqual(['GPU-1@boot-1.lock']);
  chmodSync(join(here.path, 'locks'), 0o755);
});

test('a lock of its own from another boot is not its own any more', () => {
  locks('one', 'boot-0').take('GPU-1');
  const again = locks('one');
  expect(locks('two').take('GPU-1')).toBeNull();
  expect(again.take('GPU-1')).toMatch(/another onejob has it .*two/);
});

test('two that meet the lock of another boot: one has it, and what the slower does afterwards takes nothing away', () => {
  locks('dead', 'boot-0').take('GPU-1');
  const [one, two] = [locks('one'), locks('two')];
  expect(one.take('GPU-1')).toBeNull();
  expect(two.take('GPU-1')).toMatch(/another onejob/);
  two.keep(new Set());
  expect(locks('three').take('GPU-1')).toMatch(/state in \/var\/lib\/one;/);
});

test('the lock of another boot that may not be removed is in nobody’s way', () => {
  mkdirSync(join(here.path, 'locks', 'GPU-1@boot-0.lock'), { recursive: true });
  const one = locks('one');
  expect(one.take('GPU-1')).toBeNull();
  expect(() => one.keep(new Set())).not.toThrow();
});

test('a folder that cannot be used is a reason, not a throw', () => {
  writeFileSync(join(here.path, 'locks'), 'a file');
  const one = locks('one');
  expect(one.take('GPU-1')).toMatch(/cannot be written/);
  expect(() => one.keep(new Set())).not.toThrow();
});

test('files of others are passed over, whatever they are called', () => {
  locks('one').take('GPU-1');
  for (const name of ['%.lock', '%zz@boot-1.lock', 'readme', '.lock']) writeFileSync(join(here.path, 'locks', name), 'x');
  expect(locks('two').take('GPU-2')).toBeNull();
  expect([...locksIn(join(here.path, 'locks')).keys()].filter((uuid) => uuid.startsWith('GPU')).sort()).toEqual(['GPU-1', 'GPU-2']);
});

test('a lock is never there half: nothing but whole locks is left in the folder', () => {
  const [one, two] = [locks('one'), locks('two')];
  one.take('GPU-1');
  two.take('GPU-1');
  expect(readdirSync(join(here.path, 'locks'))).toEqual(['GPU-1@boot-1.lock']);
  expect(locksIn(join(here.path, 'locks')).get('GPU-1')?.owner).toBe('one');
});

test('a folder whose maker died before opening it to all is opened', () => {
  mkdirSync(join(here.path, 'locks'), { mode: 0o755 });
  locks('one').take('GPU-1');
  expect(statSync(join(here.path, 'locks')).mode & 0o7777).toBe(0o1777);
});

test('a manager that has to lock in another folder meets the others all the same', () => {
  const [first, second] = [join(here.path, 'run'), join(here.path, 'tmp')];
  const open = (owner: string, dir: string, beside: string) =>
    createLocks({ dir, beside: [beside], owner, stateDir: `/var/lib/${owner}`, bootId: 'boot-1' });
  const one = open('one', first, second);
  expect(one.take('GPU-1')).toBeNull();
  expect(open('two', second, first).take('GPU-1')).toMatch(/another onejob has it .*one/);
  expect(locksIn(second).size).toBe(0);
  expect(open('one', second, first).take('GPU-1')).toBeNull();
  open('one', second, first).keep(new Set());
  expect(open('two', second, first).take('GPU-1')).toBeNull();
  expect(open('three', first, second).take('GPU-1')).toMatch(/another onejob has it .*two/);
});

test('the folder is the first that is there or can be made', () => {
  const [none, file, good] = [join(here.path, 'none', 'onejob'), join(here.path, 'file'), join(here.path, 'good')];
  writeFileSync(file, '');
  expect(lockDirectory([none, file, good])).toBe(good);
  expect(existsSync(good)).toBe(false);
  mkdirSync(join(here.path, 'none', 'onejob'), { recursive: true });
  expect(lockDirectory([none, file, good])).toBe(none);
});
