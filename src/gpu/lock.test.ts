import { chmodSync, existsSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { createLocks, locksIn } from './lock.ts';

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
  expect(readdirSync(join(here.path, 'locks'))).toEqual(['GPU-1.lock']);
  chmodSync(join(here.path, 'locks'), 0o755);
});
