import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { lookAt } from './file-server.ts';
import { readSmall } from './small-file.ts';

it('a program of its own says where paths on a file server lead', async () => {
  using dir = scratch();
  const at = (...parts: string[]) => join(dir.path, ...parts);
  mkdirSync(at('nfs/v 1 “ü”'), { recursive: true });
  symlinkSync('v 1 “ü”', at('nfs/current'));
  const mounts = `20 1 0:20 / / rw - ext4 /dev/sda rw\n21 20 0:21 / ${at('nfs')} rw - nfs4 server:/ rw\n`;
  const looks = async () => Object.fromEntries(await lookAt([at('nfs/current'), at('nfs/current/none/x')], undefined, mounts));
  // A busy machine may start the program too late for one answer.
  await vi.waitFor(
    async () =>
      expect(await looks()).toEqual({
        [at('nfs/current')]: { near: at('nfs/current'), real: at('nfs/v 1 “ü”'), exists: true },
        [at('nfs/current/none/x')]: { near: at('nfs/current/none/x'), real: at('nfs/v 1 “ü”/none/x'), exists: false },
      }),
    50_000,
  );
});

it('a program of its own reads small files there', async () => {
  using dir = scratch();
  const at = (name: string) => join(dir.path, 'nfs', name);
  mkdirSync(at('folder'), { recursive: true });
  writeFileSync(at('token'), 'a “ü”\n', { mode: 0o640 });
  const mounts = `20 1 0:20 / / rw - ext4 /dev/sda rw\n21 20 0:21 / ${dir.path}/nfs rw - nfs4 server:/ rw\n`;
  const says = async () =>
    await Promise.all(
      [at('token'), at('folder'), at('none')].map((path) =>
        readSmall(path, 64, mounts).catch(({ code, message }) => code ?? message),
      ),
    );
  await vi.waitFor(
    async () =>
      expect(await says()).toEqual([
        { isFile: true, mode: 0o640, size: 11, text: 'a “ü”\n' },
        expect.objectContaining({ isFile: false, text: '' }),
        'ENOENT',
      ]),
    50_000,
  );
  await vi.waitFor(
    async () => expect(await readSmall(at('token'), 4, mounts), 'too large').toMatchObject({ isFile: true, size: 11, text: '' }),
    50_000,
  );
});
