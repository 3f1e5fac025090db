import { chmodSync, mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { networkFileSystem, prepareDirectory } from './directory.ts';

const dir = eachScratch();
const mode = (path: string) => statSync(path).mode & 0o777;

describe('the state directory', () => {
  it('is made with its parents, for its owner only', () => {
    const path = join(dir.path, 'a', 'b');
    expect(prepareDirectory(path)).toBe(path);
    expect(mode(path)).toBe(0o700);
  });

  it('is closed to others if it is empty or onejob’s', () => {
    chmodSync(dir.path, 0o755);
    prepareDirectory(dir.path);
    expect(mode(dir.path)).toBe(0o700);
    writeFileSync(join(dir.path, 'onejob.db'), '');
    chmodSync(dir.path, 0o750);
    prepareDirectory(dir.path);
    expect(mode(dir.path)).toBe(0o700);
  });

  it('is refused, and left unchanged, if it holds other things', () => {
    chmodSync(dir.path, 0o755);
    writeFileSync(join(dir.path, 'thesis.tex'), '');
    expect(() => prepareDirectory(dir.path)).toThrow(/contains files that are not onejob's/);
    expect(mode(dir.path)).toBe(0o755);
    expect(readdirSync(dir.path)).toEqual(['thesis.tex']);
  });

  it('is refused if it is a file, or below one', () => {
    const file = join(dir.path, 'file');
    writeFileSync(file, '');
    expect(() => prepareDirectory(file)).toThrow(expect.objectContaining({ code: 'E_STATE_DIR' }));
    expect(() => prepareDirectory(join(file, 'x'))).toThrow(expect.objectContaining({ code: 'E_STATE_DIR' }));
  });

  it('is refused with what to type on a file system that is read-only', () => {
    chmodSync(dir.path, 0o755);
    const readOnly = () => {
      throw Object.assign(new Error("EROFS: read-only file system, chmod '/state'"), { code: 'EROFS' });
    };
    expect(() => prepareDirectory(dir.path, readOnly)).toThrow(
      expect.objectContaining({
        code: 'E_STATE_DIR',
        message: `Cannot use ${dir.path} as the state directory: its file system is read-only.`,
        hint: expect.stringContaining('--state-dir'),
      }),
    );
  });

  it('may be reached through a link', () => {
    mkdirSync(join(dir.path, 'real'));
    expect(prepareDirectory(join(dir.path, 'real', '..', 'real'))).toBe(join(dir.path, 'real'));
  });
});

describe('network file systems', () => {
  it.each([
    ['nfs', 0x6969],
    ['cifs', 0xff534d42],
    ['cifs', 0xff534d42 | 0],
    ['smb2', 0xfe534d42],
    ['9p', 0x01021997],
  ])('include %s (%d)', (name, magic) => {
    expect(networkFileSystem(magic, () => null)).toBe(name);
  });

  it('do not include ext4, xfs, btrfs, zfs, tmpfs and overlayfs', () => {
    for (const magic of [0xef53, 0x58465342, 0x9123683e, 0x2fc12fc1, 0x01021994, 0x794c7630]) {
      expect(networkFileSystem(magic, () => 'nfs4')).toBeNull();
    }
  });

  it('include FUSE depending on its type', () => {
    expect(networkFileSystem(0x65735546, () => 'fuse.sshfs')).toBe('fuse.sshfs');
    expect(networkFileSystem(0x65735546, () => 'virtiofs')).toBe('virtiofs');
    expect(networkFileSystem(0x65735546, () => 'fuse.fuse-overlayfs')).toBeNull();
    expect(networkFileSystem(0x65735546, () => 'fuseblk')).toBeNull();
  });
});
