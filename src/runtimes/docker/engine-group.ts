/**
 * The control group (version 2) of the container of an agent's engine. Its owner may divide it among the containers of the job, so that
 * the limits of single ones hold, as systemd delegates a group to a user (kernel documentation, cgroup-v2, "Delegation"). The limits of
 * the group itself stay root's.
 */
import { existsSync } from 'node:fs';
import { chown, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** Groups that a job may make: each takes memory of the kernel. */
const most = 2_000;
/** What the owner of a group needs, and nothing that limits it. */
const owned = ['.', 'cgroup.procs', 'cgroup.threads', 'cgroup.subtree_control'];

/**
 * The group of a container that runs; null on a host with version 1, and where the group cannot be seen. `pid`: of its first process,
 * which the job may have moved into a group below.
 */
export async function groupOf(id: string, pid: number, root = '/'): Promise<string | null> {
  const said = await readFile(join(root, `proc/${pid}/cgroup`), 'utf8').catch(() => '');
  // Another line is a hierarchy of version 1, which has the controllers then.
  const names = /^0::\/(.*)\n$/.exec(said)?.[1]?.split('/') ?? [];
  const at = names.findIndex((name) => name.includes(id));
  return at === -1 ? null : join(root, 'sys/fs/cgroup', ...names.slice(0, at + 1));
}

/** Why the limits of single containers of a job cannot hold on this host, as the end of a sentence; null if they can. */
export function limitsObstacle(root = '/', user = process.getuid?.()): string | null {
  if (!existsSync(join(root, 'sys/fs/cgroup/cgroup.controllers'))) return 'this host has version 1 of control groups';
  return user === 0 ? null : 'onejob is not root';
}

/** @throws Error if this user may not do it */
export async function delegate(group: string, owner: number): Promise<void> {
  await writeFile(join(group, 'cgroup.max.descendants'), `${most}`);
  for (const name of owned) await chown(join(group, name), owner, owner);
}

/**
 * Whether the group's own memory limit has ended something, and not that of a group below (kernel documentation, cgroup-v2,
 * memory.events.local, since Linux 5.2). null if that cannot be read.
 */
export async function hasReachedLimit(group: string): Promise<boolean | null> {
  const said = await readFile(join(group, 'memory.events.local'), 'utf8').catch(() => null);
  return said === null ? null : /^oom [1-9]/m.test(said);
}
