import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { unpackArtifacts } from './unpack.ts';

let dir: Scratch;
let top: string;
beforeEach(() => {
  dir = scratch();
  top = join(dir.path, 'here');
  mkdirSync(top);
  mkdirSync(join(dir.path, 'outside'));
});
afterEach(() => dir[Symbol.dispose]());

type Entry = Parameters<ReturnType<typeof pack>['entry']>[0] & { body?: string };

function tar(...entries: Entry[]): Readable {
  const packed = pack();
  for (const { body, ...header } of entries) {
    if (body === undefined) packed.entry(header);
    else packed.entry(header, body);
  }
  packed.finalize();
  return Readable.from(packed, { objectMode: false });
}
const all = () => true;
const unpack = (...entries: Entry[]) => unpackArtifacts(tar(...entries), top, all);
const read = (path: string) => readFileSync(join(top, path), 'utf8');

describe('artifacts', () => {
  it('are written below the folder, and reported', async () => {
    const { written, refused } = await unpack(
      { name: './dist/', type: 'directory' },
      { name: './dist/app', mode: 0o6755, body: 'app' },
      { name: 'dist/link', type: 'symlink', linkname: 'app' },
      { name: 'dist/up', type: 'symlink', linkname: '../dist/app' },
      { name: 'dist/same', type: 'link', linkname: './dist/app' },
      { name: 'a\nb', body: '' },
      { name: 'big', body: 'z'.repeat(300_000) },
    );
    expect(written).toEqual(['dist/app', 'dist/link', 'dist/up', 'dist/same', 'a\nb', 'big']);
    expect(refused).toEqual([]);
    expect([read('dist/app'), read('dist/link'), read('dist/up'), read('dist/same')]).toEqual(['app', 'app', 'app', 'app']);
    expect(lstatSync(join(top, 'dist/app')).mode & 0o7777).toBe(0o755);
    // A copy for each of a million names would fill the disk here.
    expect(lstatSync(join(top, 'dist/same')).ino).toBe(lstatSync(join(top, 'dist/app')).ino);
    expect(read('big')).toHaveLength(300_000);
  });

  it('replace files, and links instead of writing through them', async () => {
    const victim = join(dir.path, 'outside', 'victim');
    writeFileSync(victim, 'safe');
    writeFileSync(join(top, 'old'), 'a longer old text');
    symlinkSync(victim, join(top, 'linked'));
    await unpack({ name: 'old', body: 'new' }, { name: 'linked', body: 'new' });
    expect([read('old'), read('linked'), readFileSync(victim, 'utf8')]).toEqual(['new', 'new', 'safe']);
    expect(readdirSync(top).sort()).toEqual(['linked', 'old']);
  });

  it('have no more permissions than the umask allows', async () => {
    const before = process.umask(0o027);
    try {
      await unpack(
        { name: 'open', mode: 0o777, body: 'x' },
        { name: 'large', mode: 0o666, body: 'x'.repeat(300_000) },
        { name: 'again', type: 'link', linkname: 'open' },
      );
    } finally {
      process.umask(before);
    }
    const mode = (name: string) => lstatSync(join(top, name)).mode & 0o7777;
    expect([mode('open'), mode('large'), mode('again')]).toEqual([0o750, 0o640, 0o750]);
  });

  const hostile: [name: string, entries: Entry[]][] = [
    ['climb', [{ name: '../outside/x', body: 'x' }]],
    ['climb further down', [{ name: 'a/../../outside/x', body: 'x' }]],
    ['are absolute', [{ name: '/tmp/onejob-evil', body: 'x' }]],
    ['link absolutely', [{ name: 'l', type: 'symlink', linkname: '/etc' }]],
    ['link out', [{ name: 'a/l', type: 'symlink', linkname: '../../outside' }]],
    ['go through a link that was there', [{ name: 'exit/x', body: 'x' }]],
    ['make folders through a link', [{ name: 'exit/x', type: 'directory' }]],
    ['hard-link what did not come along', [{ name: 'h', type: 'link', linkname: '../outside/there' }]],
    ['hard-link what was here before', [{ name: 'h', type: 'link', linkname: 'mine' }]],
    ['hard-link through a link', [{ name: 'h', type: 'link', linkname: 'exit/there' }]],
    ['are devices', [{ name: 'd', type: 'character-device', devmajor: 1, devminor: 3 }]],
    ['are pipes', [{ name: 'p', type: 'fifo' }]],
    ['plant git hooks', [{ name: '.git/hooks/pre-commit', body: 'x' }]],
    ['plant git hooks below', [{ name: 'sub/.GIT/config', body: 'x' }]],
    ['stand where a folder is', [{ name: 'folder', body: 'x' }]],
    ['stand below a file', [{ name: 'mine/x', body: 'x' }]],
  ];
  it.each(hostile)('that %s are refused, and the rest is kept', async (_, entries) => {
    writeFileSync(join(dir.path, 'outside', 'there'), 'untouched');
    symlinkSync(join(dir.path, 'outside'), join(top, 'exit'));
    writeFileSync(join(top, 'mine'), 'mine');
    mkdirSync(join(top, 'folder'));
    const { written, refused } = await unpack(...entries, { name: 'fine', body: 'ok' });
    expect(written).toEqual(['fine']);
    expect(refused).toEqual([{ path: entries[0]?.name, why: expect.any(String) }]);
    expect(readdirSync(join(dir.path, 'outside'))).toEqual(['there']);
    expect(readFileSync(join(dir.path, 'outside', 'there'), 'utf8')).toBe('untouched');
    expect(read('mine')).toBe('mine');
    expect(readlinkSync(join(top, 'exit'))).toBe(join(dir.path, 'outside'));
    expect(existsSync('/tmp/onejob-evil')).toBe(false);
    expect(readdirSync(top).filter((name) => name.startsWith('.onejob'))).toEqual([]);
  });

  it('that nobody asked for are refused before anything of them is written, whatever their kind', async () => {
    const wanted = (path: string) => path === 'out.txt' || path.startsWith('dist/');
    writeFileSync(join(top, 'Makefile'), 'mine');
    const strange: Entry[] = [
      { name: '.envrc', body: 'x' },
      { name: 'Makefile', body: 'x' },
      { name: '.github/workflows/x.yml', body: 'x' },
      { name: './large', body: 'x'.repeat(300_000) },
      { name: 'folder/', type: 'directory' },
      { name: 'link', type: 'symlink', linkname: 'out.txt' },
      { name: 'again', type: 'link', linkname: 'out.txt' },
    ];
    const entries = tar({ name: 'out.txt', body: 'ok' }, ...strange, { name: './dist/app', body: 'app' });
    const { written, folders, refused } = await unpackArtifacts(entries, top, wanted);
    expect([written, folders]).toEqual([['out.txt', 'dist/app'], ['dist']]);
    expect(refused).toEqual(strange.map(({ name }) => ({ path: name, why: 'nobody asked for it' })));
    expect([readdirSync(top).sort(), read('Makefile')]).toEqual([['Makefile', 'dist', 'out.txt'], 'mine']);
  });

  it('that cannot be written are reported with the reason, and the rest is kept', async () => {
    const long = 'n'.repeat(300);
    const why = 'the name is too long for the file system';
    const { written, failed } = await unpack(
      { name: long, body: 'small' },
      { name: `${long}/x`, body: 'x' },
      { name: `${long}.large`, body: 'x'.repeat(3_000_000) },
      { name: 'fine', body: 'y'.repeat(300_000) },
    );
    expect(written).toEqual(['fine']);
    expect(failed).toEqual([long, `${long}/x`, `${long}.large`].map((path) => ({ path, why })));
    expect(read('fine')).toHaveLength(300_000);
  });

  it('whose names are not UTF-8 are refused, because two of them could become one', async () => {
    const name = Buffer.concat([Buffer.from('o/f-'), Buffer.from([0xe9])]);
    const whole = await buffer(tar({ name: 'o/f-xx', body: 'one' }, { name: 'fine', body: 'ok' }));
    const at = whole.indexOf('o/f-xx');
    whole.fill(0, at, at + 6);
    name.copy(whole, at);
    whole.fill(0x20, 148, 156);
    const sum = whole.subarray(0, 512).reduce((total, byte) => total + byte, 0);
    whole.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
    const { written, refused } = await unpackArtifacts(Readable.from([whole]), top, all);
    expect([written, refused]).toEqual([['fine'], [{ path: 'o/f-\ufffd', why: 'its name is not UTF-8' }]]);
    expect(readdirSync(top)).toEqual(['fine']);
  });

  it('bring empty folders', async () => {
    const { written, folders } = await unpack({ name: 'out/', type: 'directory' }, { name: 'out/empty/', type: 'directory' });
    expect([written, folders]).toEqual([[], ['out', 'out/empty']]);
    expect(readdirSync(join(top, 'out'))).toEqual(['empty']);
  });

  it('cannot climb by a chain of links', async () => {
    const { refused } = await unpack(
      { name: 'd/up', type: 'symlink', linkname: '..' },
      { name: 'out', type: 'symlink', linkname: 'd/up/../outside' },
      { name: 'd/up/x', body: 'x' },
    );
    expect(refused.map((one) => one.path)).toEqual(['out', 'd/up/x']);
    expect(readdirSync(join(dir.path, 'outside'))).toEqual([]);
  });

  it('of a cut-off stream are an error, without a half-written file', async () => {
    const whole = await buffer(tar({ name: 'a', body: 'ok' }, { name: 'b', body: 'x'.repeat(1_000_000) }));
    await expect(unpackArtifacts(Readable.from([whole.subarray(0, 500_000)]), top, all)).rejects.toThrow();
    expect(readdirSync(top)).toEqual(['a']);
    await expect(unpackArtifacts(Readable.from([Buffer.alloc(2048, 'no tar')]), top, all)).rejects.toThrow();
  });
});
