/**
 * Which control groups of version 2 are used, in a tree of files that stands for the kernel's: it keeps what was written last, and
 * makes no files of its own.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { findCgroups, killFile, makeCgroups, supervisorGroup } from './cgroup.ts';

const recipe = { memory: 64 * 2 ** 20, cpus: 0.5, pids: 32 } as Parameters<typeof makeCgroups>[2];
const unit = 'user.slice/user@1000.service/app.slice/onejob.service';
/** Files of a group that the kernel would make. */
const files = ['cgroup.subtree_control', 'cgroup.kill', 'memory.max', 'memory.swap.max', 'cpu.max', 'pids.max'];

/** `closed`: only root may make groups at the mount point. */
function tree(mount: string, { closed = true, delegated = true } = {}) {
  const group = (path: string): void => {
    mkdirSync(join(mount, path), { recursive: true });
    if (delegated || !path.includes(unit)) for (const name of files) writeFileSync(join(mount, path, name), '');
  };
  for (const path of ['', `${unit}/daemon`, unit, ...['/onejob', '/onejob/me', '/onejob/me/a1'].map((path) => unit + path)])
    group(path);
  // Even root cannot make a group there.
  if (closed) writeFileSync(join(mount, 'onejob'), '');
  else for (const path of ['onejob', 'onejob/me', 'onejob/me/a1']) group(path);
  const read = (path: string) => readFileSync(join(mount, path), 'utf8');
  const look = (own: string) => ({ mounts: `proc /proc proc rw 0 0\ncgroup2 ${mount} cgroup2 rw 0 0\n`, own: `0::/${own}\n` });
  return { read, find: (own: string) => findCgroups('me', look(own)) };
}

test('a service of one’s own limits its agents in groups below its unit', () => {
  using here = scratch();
  const { find, read } = tree(here.path);
  const found = find(`${unit}/daemon`);
  const own = join(here.path, unit, 'onejob/me');
  expect(found).toEqual({ top: join(here.path, unit), unified: own, memory: own, cpu: own, pids: own, kills: true });
  // From the unit on down: what is above belongs to systemd, and the daemon's own group has processes.
  for (const path of ['', '/onejob', '/onejob/me']) expect(read(`${unit}${path}/cgroup.subtree_control`)).toBe('+pids');
  for (const path of ['', `${unit}/daemon/`, `${unit}/onejob/me/a1/`]) expect(read(`${path}cgroup.subtree_control`)).toBe('');

  const { paths, missing } = makeCgroups(found, 'a1', recipe);
  expect([paths, missing]).toEqual([[join(own, 'a1')], []]);
  const limits = ['memory.max', 'memory.swap.max', 'cpu.max', 'pids.max'].map((name) => read(`${unit}/onejob/me/a1/${name}`));
  expect(limits).toEqual([String(64 * 2 ** 20), '0', '50000 100000', '32']);
  expect(killFile(paths)).toBe(join(own, 'a1/cgroup.kill'));
  expect(supervisorGroup(found)).toBe(join(own, '.supervisors'));
});

test('root keeps its groups at the mount point, also in a unit that is delegated', () => {
  using here = scratch();
  const { find, read } = tree(here.path, { closed: false });
  expect(find(`${unit}/daemon`)).toMatchObject({ top: here.path, memory: join(here.path, 'onejob/me') });
  expect([read('cgroup.subtree_control'), read(`${unit}/cgroup.subtree_control`)]).toEqual(['+pids', '']);
});

test.each([
  ['a unit that has left nothing to it', unit],
  ['a session', 'user.slice/user-1000.slice/session-3.scope'],
  ['the root group', ''],
])('without rights in %s there are no groups', (_, own) => {
  using here = scratch();
  const { find } = tree(here.path);
  expect(find(own)).toMatchObject({ unified: null, memory: null, cpu: null, pids: null, kills: false });
});

test('a unit without controllers limits nothing, which is said, and ends whole groups all the same', () => {
  using here = scratch();
  const { find } = tree(here.path, { delegated: false });
  writeFileSync(join(here.path, unit, 'onejob/me/cgroup.kill'), '');
  const found = find(`${unit}/daemon`);
  expect(found).toMatchObject({ memory: null, cpu: null, pids: null, kills: true });
  const { paths, missing } = makeCgroups(found, 'a1', recipe);
  expect(paths).toEqual([join(here.path, unit, 'onejob/me/a1')]);
  expect(missing).toEqual([expect.stringContaining('memory limit'), expect.stringContaining('CPUs')]);
  expect(existsSync(join(here.path, unit, 'onejob/me/a1/memory.max'))).toBe(false);
});
