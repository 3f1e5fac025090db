import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { createLocks, type LockOptions, lockDirectory, locksIn } from './lock.ts';

const here = eachScratch();

/** As a user that is not root, who shares the folder with all others. */
const locks = (owner: string, bootId = 'boot-1', changes: Partial<LockOptions> = {}) =>
  createLocks({ dir: join(here.path, 'locks'), owner, stateDir: `/var/lib/${owner}`, bootId, root: false, ...changes });
const uuidsIn = (dir: string) => locksIn(dir).map(({ uuid }) => uuid);

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
  expect(
    locksIn(join(here.path, 'locks'))
      .map(({ uuid, holder }) => `${uuid} ${holder?.owner}`)
      .sort(),
  ).toEqual(['GPU-1 one', 'GPU-2 two']);
});

test('a lock of another boot does not count: its agents are gone', () => {
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

test('a lock of another boot that cannot be removed does not matter', () => {
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
  expect(
    uuidsIn(join(here.path, 'locks'))
      .filter((uuid) => uuid.startsWith('GPU'))
      .sort(),
  ).toEqual(['GPU-1', 'GPU-2']);
});

test('a lock is never there half: nothing but whole locks is left in the folder', () => {
  const [one, two] = [locks('one'), locks('two')];
  one.take('GPU-1');
  two.take('GPU-1');
  expect(readdirSync(join(here.path, 'locks'))).toEqual(['GPU-1@boot-1.lock']);
  expect(locksIn(join(here.path, 'locks'))).toMatchObject([{ uuid: 'GPU-1', holder: { owner: 'one' } }]);
});

test('a folder whose maker died before opening it to all is opened', () => {
  mkdirSync(join(here.path, 'locks'), { mode: 0o755 });
  locks('one').take('GPU-1');
  expect(statSync(join(here.path, 'locks')).mode & 0o7777).toBe(0o1777);
});

test('a manager that has to lock in another folder meets the others all the same', () => {
  const [first, second] = [join(here.path, 'run'), join(here.path, 'tmp')];
  const open = (owner: string, dir: string, other: string) => locks(owner, 'boot-1', { dir, others: [other] });
  const one = open('one', first, second);
  expect(one.take('GPU-1')).toBeNull();
  expect(open('two', second, first).take('GPU-1')).toMatch(/another onejob has it .*one/);
  expect(locksIn(second)).toHaveLength(0);
  expect(open('one', second, first).take('GPU-1')).toBeNull();
  open('one', second, first).keep(new Set());
  expect(open('two', second, first).take('GPU-1')).toBeNull();
  expect(open('three', first, second).take('GPU-1')).toMatch(/another onejob has it .*two/);
});

describe('a folder that anyone may write to', () => {
  const dir = () => join(here.path, 'locks');
  const fill = (put: (name: (n: string) => string) => void) => {
    mkdirSync(dir());
    put((n) => join(dir(), n));
  };
  const forged = JSON.stringify({ owner: 'x', stateDir: '/x', boot: 'boot-1', pid: 1 });

  test('large and sparse files, links, pipes and folders are not locks, and nothing waits for them', () => {
    fill((name) => {
      writeFileSync(name('GPU-1@boot-1.lock'), forged);
      truncateSync(name('GPU-1@boot-1.lock'), 2 ** 40);
      writeFileSync(join(here.path, 'elsewhere'), forged);
      symlinkSync(join(here.path, 'elsewhere'), name('GPU-2@boot-1.lock'));
      execFileSync('mkfifo', [name('GPU-3@boot-1.lock')]);
      mkdirSync(name('GPU-4@boot-1.lock'));
      writeFileSync(name('GPU-5@boot-1.lock'), forged);
    });
    expect(uuidsIn(dir())).toEqual(['GPU-5']);
    const root = locks('one', 'boot-1', { dir: join(here.path, 'root'), others: [dir()], root: true });
    expect(['GPU-1', 'GPU-2', 'GPU-3', 'GPU-4'].map((uuid) => root.take(uuid))).toEqual([null, null, null, null]);
    expect(root.take('GPU-5')).toContain('another onejob has it');
  });

  test('thousands of files hide no lock, whatever order they are in', () => {
    locks('one').take('GPU-1');
    for (let n = 0; n < 5_000; n++) writeFileSync(join(dir(), `GPU-z${n}@boot-1.lock`), '');
    expect(locks('two').take('GPU-1')).toContain('state in /var/lib/one');
    expect(locksIn(dir()).length).toBeLessThan(5_000);
  });

  test.runIf(process.getuid?.() === 0)("a lock of a job's user counts for nothing, one of another user for what it says", () => {
    const root = () =>
      locks('one', 'boot-1', { dir: join(here.path, 'root'), others: [dir()], root: true, isJob: (uid) => uid === 4_000 });
    fill((name) => writeFileSync(name('GPU-1@boot-1.lock'), forged));
    chownSync(join(dir(), 'GPU-1@boot-1.lock'), 3_000, 3_000);
    expect(root().take('GPU-1')).toContain('another onejob of user 3000 has it');
    chownSync(join(dir(), 'GPU-1@boot-1.lock'), 4_000, 4_000);
    expect(root().take('GPU-1')).toBeNull();
  });

  test.runIf(process.getuid?.() === 0)('a lock in our name that another user wrote is not ours', () => {
    fill((name) =>
      writeFileSync(name('GPU-1@boot-1.lock'), JSON.stringify({ owner: 'one', stateDir: '/x', boot: 'boot-1', pid: 1 })),
    );
    chownSync(join(dir(), 'GPU-1@boot-1.lock'), 3_000, 3_000);
    expect(locks('one').take('GPU-1')).toContain('another onejob of user 3000');
  });

  test('a folder that is a link is not followed', () => {
    mkdirSync(join(here.path, 'target'));
    symlinkSync(join(here.path, 'target'), dir());
    expect(locks('one').take('GPU-1')).toContain('is not a folder');
    expect(readdirSync(join(here.path, 'target'))).toEqual([]);
  });
});

describe("root's folder", () => {
  const root = (owner: string, changes: Partial<LockOptions> = {}) =>
    locks(owner, 'boot-1', { dir: join(here.path, 'root'), others: [join(here.path, 'locks')], root: true, ...changes });

  test('can be written by root alone, and be read by all', () => {
    mkdirSync(join(here.path, 'root'), { mode: 0o777 });
    chmodSync(join(here.path, 'root'), 0o1777);
    expect(root('one').take('GPU-1')).toBeNull();
    expect(statSync(join(here.path, 'root')).mode & 0o7777).toBe(0o755);
    expect(lstatSync(join(here.path, 'root', 'GPU-1@boot-1.lock')).mode & 0o777).toBe(0o644);
  });

  test.runIf(process.getuid?.() === 0)('is not used if another user created it', () => {
    mkdirSync(join(here.path, 'root'));
    chownSync(join(here.path, 'root'), 3_000, 3_000);
    expect(root('one').take('GPU-1')).toContain('belongs to user 3000');
  });

  test('S1: root and other users meet each other, in both directions', () => {
    const user = () => locks('user', 'boot-1', { others: [join(here.path, 'root')] });
    expect(root('one').take('GPU-1')).toBeNull();
    expect(user().take('GPU-1')).toContain('state in /var/lib/one');
    expect(user().take('GPU-2')).toBeNull();
    expect(root('one').take('GPU-2')).toContain('state in /var/lib/user');
  });

  test('a lock that root wrote into the shared folder before is its own, and moves', () => {
    locks('one').take('GPU-1');
    const now = root('one');
    expect(now.take('GPU-1')).toBeNull();
    expect(uuidsIn(join(here.path, 'root'))).toEqual(['GPU-1']);
    now.keep(new Set());
    expect([...locksIn(join(here.path, 'root')), ...locksIn(join(here.path, 'locks'))]).toEqual([]);
  });
});

test('the folder is the first that is there or can be made', () => {
  const [none, file, good] = [join(here.path, 'none', 'onejob'), join(here.path, 'file'), join(here.path, 'good')];
  writeFileSync(file, '');
  expect(lockDirectory([none, file, good])).toBe(good);
  expect(existsSync(good)).toBe(false);
  mkdirSync(join(here.path, 'none', 'onejob'), { recursive: true });
  expect(lockDirectory([none, file, good])).toBe(none);
});

test('the unfinished lock of a killed manager is removed by its next one, and by no other', () => {
  const dir = join(here.path, 'locks');
  mkdirSync(dir);
  for (const name of ['one.5eed.new', 'one-more.5eed.new', 'two.5eed.new', 'one.lock']) writeFileSync(join(dir, name), '{');
  locks('one');
  expect(readdirSync(dir).sort()).toEqual(['one-more.5eed.new', 'one.lock', 'two.5eed.new']);
});
