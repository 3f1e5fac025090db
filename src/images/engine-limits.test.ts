/** The runc of engines that limit single containers, as the Dockerfile writes it. */
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';

const dockerfile = readFileSync(join(import.meta.dirname, 'dockerfiles/engine.Dockerfile'), 'utf8');
const [, written = ''] = /^RUN : for an Engine that limits single containers; (.*?[^\\])$/ms.exec(dockerfile) ?? [];

/** As Docker writes it: what follows decides nothing. */
const config = (kinds: readonly string[]) =>
  JSON.stringify({
    process: { args: ['{"destination":"/proc"}'], env: ['NAMES="namespaces":[]'] },
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc', options: ['nosuid', 'noexec', 'nodev'] },
      { destination: '/dev/shm', type: 'tmpfs', source: 'shm', options: ['mode=1777'] },
      { destination: '/dev/mqueue', type: 'mqueue', source: 'mqueue', options: ['nosuid'] },
      { destination: '/proc/acpi', type: 'tmpfs', source: 'tmpfs' },
    ],
    linux: { namespaces: kinds.map((type) => ({ type })), readonlyPaths: ['/proc/bus', '/proc/sys'], maskedPaths: ['/proc/kcore'] },
  });

/** What becomes of it, and what the real runc is called with. */
function through(before: string): { after: Record<string, never>; called: string } {
  using folder = scratch();
  const here = written.replaceAll('/usr/local/lib/onejob', folder.path).replaceAll('/usr/sbin/runc', '/bin/echo');
  execFileSync('sh', ['-c', here]);
  const file = join(folder.path, 'config.json');
  writeFileSync(file, before);
  const words = ['--root', '/r', 'create', '--bundle', folder.path, 'id'];
  const { stdout, status, stderr } = spawnSync(join(folder.path, 'runc'), words, { encoding: 'utf8' });
  expect(status, stderr).toBe(0);
  return { after: JSON.parse(readFileSync(file, 'utf8')), called: stdout.replace(folder.path, 'BUNDLE') };
}

const own = ['mount', 'network', 'uts', 'pid', 'ipc', 'cgroup'];
const bound = (path: string) => ({
  destination: path,
  type: 'bind',
  source: path,
  options: ['rbind', 'nosuid', 'noexec', 'nodev'],
});

test('a container with namespaces of its own is made as its Engine says', () => {
  const before = config(own);
  expect(through(before)).toEqual({
    after: JSON.parse(before),
    called: '--root /r create --bundle BUNDLE id\n',
  });
});

test.each([
  ['processes', 'pid', ['/proc']],
  ['memory', 'ipc', ['/dev/shm', '/dev/mqueue']],
])('a container that shares %s with its engine has what shows them bound, which the kernel allows', (_, kind, paths) => {
  const before = config(own.filter((one) => one !== kind));
  const expected = JSON.parse(before);
  expected.mounts = expected.mounts.map((one: { destination: string }) =>
    paths.includes(one.destination) ? bound(one.destination) : one,
  );
  if (kind === 'pid') expected.linux.readonlyPaths = [];
  expect(through(before).after).toEqual(expected);
});

test('a bundle that cannot be read ends it with a word', () => {
  using folder = scratch();
  const here = written.replaceAll('/usr/local/lib/onejob', folder.path);
  execFileSync('sh', ['-c', here]);
  const { status, stderr } = spawnSync(join(folder.path, 'runc'), ['create', '--bundle', folder.path, 'id'], { encoding: 'utf8' });
  expect(status).not.toBe(0);
  expect(stderr).toBe('config.json: No such file or directory\n');
});
