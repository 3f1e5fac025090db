/** Folders as a hostile job leaves them, and changes them while they are removed: all of it goes, and nothing of the host. */
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { exchange } from '../../test/support/exchanger.ts';
import { nest } from '../../test/support/nested.ts';
import { lacks } from '../../test/support/require.ts';
import { scratch } from '../../test/support/scratch.ts';
import { clearFolder, removeOwned, removeTree, whyStuck } from './foreign-tree.ts';

const place = eachScratch();
let folder: string;
let outside: string;
beforeEach(() => {
  folder = join(place.path, 'folder');
  outside = join(place.path, 'outside');
  for (const dir of [folder, outside]) mkdirSync(dir);
  writeFileSync(join(outside, 'precious'), 'do not touch');
});
afterEach(() => expect(readFileSync(join(outside, 'precious'), 'utf8')).toBe('do not touch'));
/** Its reasons for what is left; empty when all is gone. */
const clear = async () => whyStuck(await clearFolder(folder));

describe('is removed', () => {
  test('with links, sockets, pipes and closed folders, and never what links lead to', async () => {
    symlinkSync(outside, join(folder, 'folder'));
    symlinkSync(join(outside, 'precious'), join(folder, 'file'));
    linkSync(join(outside, 'precious'), join(folder, 'second name'));
    mkdirSync(join(folder, 'closed'));
    writeFileSync(join(folder, 'closed', 'x'), '');
    mkdirSync(join(folder, 'fixed'));
    writeFileSync(join(folder, 'fixed', 'y'), '');
    execFileSync('sh', ['-c', 'mkfifo pipe; chmod 0 closed; chmod 555 fixed'], { cwd: folder });
    const server = createServer().listen(join(folder, 's'));
    onTestFinished(() => void server.close());
    const { stuck, removed } = await clearFolder(folder);
    expect([stuck.size, removed, readdirSync(folder)]).toEqual([0, 9, []]);
    expect(lstatSync(join(outside, 'precious')).nlink).toBe(1);
  });

  test('the folder itself, a file, a link, and what does not exist', async () => {
    writeFileSync(join(folder, 'x'), '');
    writeFileSync(join(place.path, 'file'), '');
    symlinkSync(outside, join(place.path, 'link'));
    for (const name of ['folder', 'file', 'link', 'none', 'none/below'])
      expect(whyStuck(await removeTree(join(place.path, name)))).toBe('');
    expect(readdirSync(place.path)).toEqual(['outside']);
  });

  test('whatever its names are', async () => {
    const names = `printf x > "$(printf '\\377\\376bad')"; mkdir "$(printf 'two\\nlines \\200')"; touch "$(printf 'two\\nlines \\200/in')" -- -rf`;
    execFileSync('sh', ['-c', names], { cwd: folder });
    expect([await clear(), readdirSync(folder)]).toEqual(['', []]);
  });

  test('however deep it is nested', async () => {
    // Deeper than is gone down at once, three times, and far longer than a path may be.
    nest(folder, 350, 'd'.repeat(100));
    expect([whyStuck(await removeTree(folder)), existsSync(folder)]).toEqual(['', false]);
  });

  test.skipIf(lacks('root'))('while another user exchanges its folders for links', async () => {
    const victims = Array.from({ length: 50 }, (_, n) => join(outside, `of-root-${n}`));
    for (const victim of victims) writeFileSync(victim, '');
    for (const path of [folder, join(place.path, 'links')]) {
      mkdirSync(path, { recursive: true });
      chmodSync(path, 0o777);
    }
    chmodSync(place.path, 0o755);
    for (let n = 0; n < 100; n++) {
      mkdirSync(join(folder, `${n}`));
      writeFileSync(join(folder, `${n}`, 'f'), '');
      chownSync(join(folder, `${n}`), 65_534, 65_534);
      symlinkSync(outside, join(place.path, 'links', `${n}`));
    }
    await exchange(folder, join(place.path, 'links'), 100);
    // It may lose a race against each of them, but never follow one.
    for (let tries = 0; existsSync(folder) && tries < 20; tries++) await removeTree(folder);
    expect([existsSync(folder), victims.filter((victim) => !existsSync(victim))]).toEqual([false, []]);
  });

  test('while this process does the same', async () => {
    for (let n = 0; n < 300; n++) {
      mkdirSync(join(folder, `d${n}`));
      writeFileSync(join(folder, `d${n}`, 'x'), '');
    }
    let stop = false;
    const swapping = (async () => {
      for (let n = 0; !stop; n = (n + 1) % 300) {
        try {
          renameSync(join(folder, `d${n}`), join(place.path, 'aside'));
          symlinkSync(outside, join(folder, `d${n}`));
        } catch {
          // It is gone already.
        }
        rmSync(join(place.path, 'aside'), { recursive: true, force: true });
        await new Promise(setImmediate);
      }
    })();
    await clear();
    stop = true;
    await swapping;
    expect([await clear(), readdirSync(folder)]).toEqual(['', []]);
  });

  test.skipIf(lacks('root'))('but not what is mounted there, not even from the same disk', async () => {
    mkdirSync(join(folder, 'mounted'));
    writeFileSync(join(folder, 'other'), '');
    execFileSync('mount', ['--bind', outside, join(folder, 'mounted')]);
    try {
      expect([await clear(), readdirSync(folder)]).toEqual(['EBUSY', ['mounted']]);
      expect(whyStuck(await removeTree(join(folder, 'mounted')))).toBe('EBUSY');
    } finally {
      execFileSync('umount', [join(folder, 'mounted')]);
    }
  });

  test.skipIf(lacks('root') || !canChattr())('except for what cannot be removed, which is reported', async () => {
    for (const name of ['fixed', 'free']) writeFileSync(join(folder, name), '');
    execFileSync('chattr', ['+i', join(folder, 'fixed')]);
    try {
      const { stuck, removed } = await clearFolder(folder);
      expect([[...stuck.keys()], removed, readdirSync(folder)]).toEqual([['EPERM'], 1, ['fixed']]);
      expect(whyStuck(await removeTree(folder))).toBe('EPERM');
    } finally {
      execFileSync('chattr', ['-i', join(folder, 'fixed')]);
    }
  });

  test('until it is aborted', async () => {
    for (let n = 0; n < 50; n++) writeFileSync(join(folder, `f${n}`), '');
    const signal = AbortSignal.abort(new Error('enough'));
    await expect(clearFolder(folder, { signal })).rejects.toThrow('enough');
    await expect(removeTree(folder, { signal })).rejects.toThrow('enough');
    expect(existsSync(join(folder, 'f1'))).toBe(true);
  });
});

test.skipIf(lacks('root'))('of a shared folder only the files of one user are removed', async () => {
  for (const [name, uid] of [
    ['mine', 4_321],
    ['of another', 4_322],
    ['of root', 0],
  ] as const) {
    mkdirSync(join(folder, name));
    writeFileSync(join(folder, name, 'x'), '');
    chownSync(join(folder, name), uid, uid);
  }
  execFileSync('sh', ['-c', 'f=$(printf "\\377\\n"); touch "$f"; chown -h 4321 "$f"'], { cwd: folder });
  expect([whyStuck(await removeOwned(folder, 4_321)), readdirSync(folder).sort()]).toEqual(['', ['of another', 'of root']]);
});

function canChattr(): boolean {
  try {
    const probe = scratch();
    const file = join(probe.path, 'x');
    writeFileSync(file, '');
    execFileSync('sh', ['-c', `chattr +i ${file} && chattr -i ${file}`], { stdio: 'ignore' });
    probe[Symbol.dispose]();
    return true;
  } catch {
    return false;
  }
}
