import { chmodSync, chownSync, lchownSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { createClient } from './client.ts';
import { checkSocketOwner, probeSocket } from './sockets.ts';

test('a socket that is not there is not connected to: somebody else could put one there meanwhile', async () => {
  using dir = scratch();
  chmodSync(dir.path, 0o1777);
  const path = join(dir.path, 'd.sock');
  expect(() => checkSocketOwner(path)).toThrow(expect.objectContaining({ code: 'ENOENT' }));
  const client = createClient({ socket: path, version: '1' });
  await expect(client.hold(new AbortController().signal)).rejects.toMatchObject({
    code: 'E_DAEMON_ABSENT',
    cause: { syscall: expect.stringMatching(/stat|realpath/) },
  });
  client.close();
});

test('in a sticky folder of everybody only a socket of this user or root is spoken to, and by no link of somebody else', async () => {
  using dir = scratch();
  const [path, link] = [join(dir.path, 'd.sock'), join(dir.path, 'link')];
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(path, resolve));
  try {
    chmodSync(dir.path, 0o1777);
    symlinkSync(path, link);
    for (const one of [path, link]) expect(() => checkSocketOwner(one)).not.toThrow();
    lchownSync(link, 65_534, 65_534);
    expect(() => checkSocketOwner(link)).toThrow(expect.objectContaining({ code: 'E_SOCKET_FOREIGN' }));
    chownSync(path, 65_534, 65_534);
    expect(() => checkSocketOwner(path)).toThrow(expect.objectContaining({ code: 'E_SOCKET_FOREIGN' }));
  } finally {
    await new Promise((resolve) => server.close(resolve));
  }
});

test('a path that is too long for a socket is the fault of who wrote it', async () => {
  await expect(probeSocket(`/tmp/${'a'.repeat(120)}`)).rejects.toMatchObject({ code: 'E_SOCKET_PATH' });
});
