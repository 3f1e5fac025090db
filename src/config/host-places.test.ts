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
])('%s: %s', (path, why) => expect(whyNoStranger(path)).toMatch(new RegExp(`^(${why})`)));

it.each(['/srv/data', '/home/ci/data', '/root/data', '/etc/ssl', '/opt/.sshd', '/runner', '/procedures'])(
  '%s may be shown',
  (path) => expect(whyNoStranger(path)).toBeNull(),
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
  expect(whyNoStranger(at('near'))).toBe(`${at('near/a.sock')} is a socket of this host`);
  expect(whyNoStranger(at('near/a.sock'))).toContain('is a socket');
  expect(whyNoStranger(at('far'))).toContain('/far/off/b.sock is a socket');
  expect(whyNoStranger(at('to-near'))).toContain('is a socket');
  expect(whyNoStranger(at('to-proc'))).toBe('it lies in /proc');
  // A link within a mount leads nowhere but within its sandbox.
  for (const path of ['plain', 'links', 'plain/more/file', 'not/there']) expect(whyNoStranger(at(path))).toBeNull();
  for (const server of servers) server.close();
  await Promise.all(servers.map((server) => once(server, 'close')));
});
