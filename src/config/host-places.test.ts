import { once } from 'node:events';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { whyNoStranger } from './host-places.ts';

it.each([
  ['/var/run/docker.sock', 'it gives access to /run/docker.sock|it gives access to /var/run/docker.sock'],
  ['/', 'it gives access to'],
  ['/run/user/1000/docker.sock', 'it lies in /run'],
  ['/proc/1', 'it lies in /proc'],
  ['/var/lib/docker/volumes', 'it lies in /var/lib/docker'],
  ['/var/lib', 'it holds /var/lib/docker'],
  ['/root', 'it is a home'],
  ['/home/ci', 'it is a home'],
  ['/srv/ci/.ssh/id_ed25519', 'programs keep keys there'],
  ['/home/ci/.docker', 'programs keep keys there'],
])('%s: %s', (path, why) => expect(whyNoStranger(path, new Map())).toMatch(new RegExp(`^(${why})`)));

it.each(['/srv/data', '/home/ci/data', '/root/data', '/etc/ssl', '/opt/.sshd', '/runner', '/procedures'])(
  '%s may be shown',
  (path) => expect(whyNoStranger(path, new Map())).toBeNull(),
);

it('finds sockets where they lie, and where links lead', async () => {
  using dir = scratch();
  const at = (path: string) => join(dir.path, path);
  for (const path of ['near', 'far/off', 'plain/more', 'links']) mkdirSync(at(path), { recursive: true });
  writeFileSync(at('plain/more/file'), '');
  symlinkSync('/proc', at('links/proc'));
  symlinkSync(at('near'), at('to-near'));
  symlinkSync('/proc', at('to-proc'));
  const servers = ['near/a.sock', 'far/off/b.sock'].map((path) => createServer().listen(at(path)));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  expect(whyNoStranger(at('near'), new Map())).toBe(`${at('near/a.sock')} is a socket of this host`);
  expect(whyNoStranger(at('near/a.sock'), new Map())).toContain('is a socket');
  expect(whyNoStranger(at('far'), new Map())).toContain('/far/off/b.sock is a socket');
  expect(whyNoStranger(at('to-near'), new Map())).toContain('is a socket');
  expect(whyNoStranger(at('to-proc'), new Map())).toBe('it lies in /proc');
  // A link within a mount leads nowhere but within its sandbox.
  for (const path of ['plain', 'links', 'plain/more/file', 'not/there']) expect(whyNoStranger(at(path), new Map())).toBeNull();
  for (const server of servers) server.close();
  await Promise.all(servers.map((server) => once(server, 'close')));
});

const mounted = (path: string) => `20 1 0:20 / / rw - ext4 /dev/sda rw\n21 20 0:21 / ${path} rw - nfs4 server:/ rw`;

it('does not look into a file server that is mounted below it', async () => {
  using dir = scratch();
  const at = (path: string) => join(dir.path, path);
  mkdirSync(at('mnt/nfs'), { recursive: true });
  const server = createServer().listen(at('mnt/nfs/a.sock'));
  await once(server, 'listening');
  expect(whyNoStranger(at('mnt'), new Map())).toContain('is a socket');
  expect(whyNoStranger(at('mnt'), new Map(), mounted(at('mnt/nfs')))).toBeNull();
  server.close();
  await once(server, 'close');
});

it('judges where the link of a file server leads, which is what a sandbox gets', async () => {
  using dir = scratch();
  const at = (path: string) => join(dir.path, path);
  mkdirSync(at('app'));
  const server = createServer().listen(at('app/a.sock'));
  await once(server, 'listening');
  const whyNot = (real: string | null) =>
    whyNoStranger('/nfs/data', new Map([['/nfs/data', { near: '/nfs/data', real, exists: null }]]), mounted('/nfs'));
  expect(whyNot('/root')).toBe('it is a home directory');
  expect(whyNoStranger('/nfs/data', null, mounted('/nfs')), 'of what onejob adds itself').toBeNull();
  expect(whyNot('/run/docker.sock')).toContain('it gives access to');
  expect(whyNot(at('app'))).toContain('is a socket');
  expect(whyNot('/nfs/v1')).toBeNull();
  const unknown = 'its file server has not said where it leads';
  expect([whyNot(null), whyNoStranger('/nfs/data', new Map(), mounted('/nfs'))]).toEqual([unknown, unknown]);
  server.close();
  await once(server, 'close');
});
