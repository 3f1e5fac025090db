import { chmodSync, mkdirSync, realpathSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, it } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { type AskServer, isReachable, lookAt } from './file-server.ts';
import { isPrivateGroup } from './private-group.ts';
import { follow, realOf } from './real-path.ts';

const dir = eachScratch();
const at = (...parts: string[]) => join(dir.path, ...parts);
/** As if these folders were mounted from file servers. */
const mounted = (...folders: string[]) =>
  ['20 1 0:20 / / rw - ext4 /dev/sda rw', ...folders.map((path) => `21 20 0:21 / ${path} rw - nfs4 server:/ rw`)].join('\n');

beforeEach(() => {
  for (const name of ['disk/one', 'nfs/one']) mkdirSync(at(name), { recursive: true });
  writeFileSync(at('disk/file'), '');
  symlinkSync(at('nfs/one'), at('disk/to-nfs'));
  symlinkSync('../disk/./one/../to-nfs', at('disk/through'));
  symlinkSync('self', at('disk/self'));
  symlinkSync(at('disk/one'), at('nfs/to-disk'));
});

it.each(['disk/one', 'disk/file', 'disk/to-nfs', 'disk/through', 'nfs/to-disk', ''])(
  'follows links as the kernel does: %s',
  (name) => {
    expect(realOf(at(name))).toBe(realpathSync(at(name)));
  },
);

it('follows links of paths that do not exist, and not for ever', () => {
  expect(realOf(at('disk/to-nfs/not/there'))).toBe(at('nfs/one/not/there'));
  expect(realOf(at('disk/file/in-it'))).toBe(at('disk/file/in-it'));
  expect(realOf(at('disk/self/x'))).toBe(at('disk/self/x'));
  expect(follow(at('disk/self')).isOurs).toBe(false);
});

it('does not look at what lies on a file server', () => {
  // A look would show that it is not there, or where the link leads.
  rmSync(at('nfs/one'), { recursive: true });
  symlinkSync(at('disk/one'), at('nfs/one'));
  const onServer = { end: at('nfs/one/x'), server: at('nfs'), isOurs: false };
  for (const path of ['nfs/one/x', 'disk/to-nfs/x', 'disk/through/x'])
    expect(follow(at(path), mounted(at('nfs')))).toEqual(onServer);
  expect(follow('/etc/x', mounted('/'))).toEqual({ end: '/etc/x', server: '/', isOurs: false });
});

it('asks each file server once, and one that is away keeps no other from answering', async () => {
  const asked: (readonly string[])[] = [];
  const ask: AskServer = async (paths) => {
    asked.push(paths);
    return paths[0]?.startsWith(at('nfs')) ? paths.map(() => [at('disk/one'), true]) : null;
  };
  const paths = [at('nfs/to-disk'), at('disk/to-nfs'), at('disk/one'), at('dead/x'), at('disk/none')];
  expect(Object.fromEntries(await lookAt(paths, ask, mounted(at('nfs'), at('dead'))))).toEqual({
    [at('nfs/to-disk')]: { near: at('nfs/to-disk'), real: at('disk/one'), exists: true },
    [at('disk/to-nfs')]: { near: at('nfs/one'), real: at('disk/one'), exists: true },
    [at('disk/one')]: { near: at('disk/one'), real: at('disk/one'), exists: true },
    [at('dead/x')]: { near: at('dead/x'), real: null, exists: null },
    [at('disk/none')]: { near: at('disk/none'), real: at('disk/none'), exists: false },
  });
  expect(asked).toEqual([[at('nfs/to-disk'), at('nfs/one')], [at('dead/x')]]);
});

it('a path can be read if it lies on this host, or its file server answers', async () => {
  const mounts = mounted(at('nfs'));
  const never: AskServer = async () => null;
  expect(await isReachable(at('disk/one'), never, mounts)).toBe(true);
  expect(await isReachable(at('disk/to-nfs'), never, mounts)).toBe(false);
  expect(await isReachable(at('disk/to-nfs'), async (paths) => paths.map((path) => [path, false]), mounts)).toBe(true);
});

it('follows a link in a folder that a group of this user alone may write', () => {
  chmodSync(at('disk'), 0o775);
  const { gid } = statSync(at('disk'));
  expect(follow(at('disk/through')).isOurs).toBe(isPrivateGroup(gid));
  chmodSync(at('disk'), 0o777);
  expect(follow(at('disk/through')).isOurs).toBe(false);
});
