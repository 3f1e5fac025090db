/**
 * Control groups for one agent, on whatever the host has: version 2, version 1, or both side by side. Gives the limits
 * on memory, CPUs and processes and, where the kernel has `cgroup.kill` (5.14), a way to end a whole tree with one write.
 * Without any of it jobs run all the same, and the caller says what is not enforced.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { AgentId } from '../../core/slot.ts';
import { killPid, readOr } from '../../system/process-identity.ts';
import type { Recipe } from '../runtime.ts';

/** The owner's folders in the hierarchies, below which its agents get theirs; null where nothing can be made. */
export interface Cgroups {
  /** Mount point of version 2; null when there is none. */
  readonly mount: string | null;
  readonly unified: string | null;
  readonly memory: string | null;
  readonly cpu: string | null;
  readonly pids: string | null;
  /** Whether the kernel ends a whole group at once. */
  readonly kills: boolean;
}

/** Finds what can be used, by making the owner's folders and removing them again. */
export function findCgroups(owner: string): Cgroups {
  const mounts = readOr('/proc/self/mounts', '')
    .split('\n')
    .map((line) => line.split(' '));
  const v1 = (controller: string): string | null =>
    mounts.find(([, , type, options]) => type === 'cgroup' && options?.split(',').includes(controller))?.[1] ?? null;
  const mount = mounts.find(([, , type]) => type === 'cgroup2')?.[1] ?? null;
  const make = (at: string | null): string | null => {
    if (at === null) return null;
    const path = join(at, 'onejob', owner);
    return attempt(() => mkdirSync(path, { recursive: true })) ? path : null;
  };
  const unified = make(mount);
  const controllers = unified === null || mount === null ? [] : enable(mount, unified);
  const found: Cgroups = {
    mount,
    unified,
    memory: controllers.includes('memory') ? unified : make(v1('memory')),
    cpu: controllers.includes('cpu') ? unified : make(v1('cpu')),
    pids: controllers.includes('pids') ? unified : make(v1('pids')),
    kills: unified !== null && existsSync(join(unified, 'cgroup.kill')),
  };
  removeCgroupRoots(found);
  return found;
}

/**
 * Where supervisors go, so that whatever ends the manager's own group (a service manager, say) ends no job (S5). Made
 * when missing; null where that is not possible.
 */
export function supervisorGroup(roots: Cgroups): string | null {
  if (roots.unified === null) return null;
  const path = join(roots.unified, '.supervisors');
  return attempt(() => mkdirSync(path, { recursive: true })) ? path : null;
}

function enable(mount: string, path: string): string[] {
  return ['memory', 'cpu', 'pids'].filter((controller) =>
    [mount, dirname(path), path].every((at) =>
      attempt(() => {
        const file = join(at, 'cgroup.subtree_control');
        if (!readFileSync(file, 'utf8').split(/\s/).includes(controller)) writeFileSync(file, `+${controller}`);
      }),
    ),
  );
}

/** Folders in which agents have their groups. */
function rootsOf({ unified, memory, cpu, pids }: Cgroups): readonly string[] {
  return [...new Set([unified, memory, cpu, pids])].filter((path) => path !== null);
}

/** Makes the agent's groups. Returns their folders, the one that can kill first, and a sentence per limit not enforced. */
export function makeCgroups(
  roots: Cgroups,
  agent: AgentId,
  { memory, cpus, pids }: Pick<Recipe, 'memory' | 'cpus' | 'pids'>,
): { paths: string[]; missing: string[] } {
  const paths = new Set<string>();
  const missing: string[] = [];
  const make = (root: string | null): string | null => {
    if (root === null) return null;
    const path = join(root, agent);
    if (!attempt(() => mkdirSync(path, { recursive: true }))) return null;
    paths.add(path);
    return path;
  };
  const own = make(roots.unified);
  // Controllers are given to a folder by the one above, and those above may be new: a sweep removes them when unused.
  if (own !== null && roots.mount !== null && [roots.memory, roots.cpu, roots.pids].includes(roots.unified))
    enable(roots.mount, dirname(own));
  if (memory !== null && !limit(make(roots.memory), (at) => limitMemory(at, memory)))
    missing.push(`The memory limit of ${memory} bytes is not enforced: there is no writable memory control group.`);
  if (cpus !== null && !limit(make(roots.cpu), (at) => limitCpus(at, cpus)))
    missing.push(`The limit of ${cpus} CPUs is not enforced: there is no writable CPU control group.`);
  // Where there is no such group, another limit holds or `doctor` has said so.
  if (pids !== null && roots.pids !== null && !limit(make(roots.pids), (at) => writeFileSync(join(at, 'pids.max'), String(pids))))
    missing.push(`The limit of ${pids} processes is not enforced: its control group is not writable.`);
  return { paths: [...paths], missing };
}

function limit(path: string | null, write: (path: string) => void): boolean {
  return path !== null && attempt(() => write(path));
}

function limitMemory(path: string, bytes: number): void {
  if (existsSync(join(path, 'memory.max'))) {
    writeFileSync(join(path, 'memory.max'), String(bytes));
    // Without this a job at its limit fills the host's swap instead of being ended.
    attempt(() => writeFileSync(join(path, 'memory.swap.max'), '0'));
    return;
  }
  writeFileSync(join(path, 'memory.limit_in_bytes'), String(bytes));
  attempt(() => writeFileSync(join(path, 'memory.memsw.limit_in_bytes'), String(bytes)));
}

function limitCpus(path: string, cpus: number): void {
  const period = 100_000;
  const quota = Math.max(1_000, Math.round(cpus * period));
  if (existsSync(join(path, 'cpu.max'))) {
    writeFileSync(join(path, 'cpu.max'), `${quota} ${period}`);
    return;
  }
  writeFileSync(join(path, 'cpu.cfs_period_us'), String(period));
  writeFileSync(join(path, 'cpu.cfs_quota_us'), String(quota));
}

/** Whether the kernel has ended a process of these groups for lack of memory. */
export function oomKilled(paths: readonly string[]): boolean {
  return paths.some((path) => {
    const text = readOr(join(path, 'memory.events'), '') + readOr(join(path, 'memory.oom_control'), '');
    return /^oom_kill [1-9]/m.test(text);
  });
}

/** The file that ends everything in the agent's group when 1 is written to it; null where the kernel has none. */
export function killFile(paths: readonly string[]): string | null {
  return paths.map((path) => join(path, 'cgroup.kill')).find((path) => existsSync(path)) ?? null;
}

/** Ends everything in the groups. Returns how many processes are still in them. */
export function killCgroups(paths: readonly string[]): number {
  const file = killFile(paths);
  if (file !== null) attempt(() => writeFileSync(file, '1'));
  const left = paths.flatMap((path) => readOr(join(path, 'cgroup.procs'), '').split('\n').filter(Boolean).map(Number));
  if (file === null) for (const pid of left) killPid(pid, 'KILL');
  return left.length;
}

/** Removes the agent's groups; false while something is still in one. */
export function removeCgroups(paths: readonly string[]): boolean {
  return paths.map(removeGroup).every(Boolean);
}

/** Removes the owner's own groups where nothing is in them. False when something still is, such as a process on its way out. */
export function removeCgroupRoots(roots: Cgroups): boolean {
  if (roots.unified !== null) removeGroup(join(roots.unified, '.supervisors'));
  let isGone = true;
  for (const path of rootsOf(roots)) {
    if (removeGroup(path)) removeGroup(dirname(path));
    else isGone = false;
  }
  return isGone;
}

/** Every agent's group that is left below the owner's folders. */
export function leftCgroups(roots: Cgroups): string[] {
  return rootsOf(roots).flatMap((root) => {
    if (!existsSync(root)) return [];
    return readdirSync(root, { withFileTypes: true }).flatMap((entry) =>
      entry.isDirectory() && !entry.name.startsWith('.') ? [join(root, entry.name)] : [],
    );
  });
}

function removeGroup(path: string): boolean {
  return attempt(() => rmdirSync(path)) || !existsSync(path);
}

function attempt(action: () => void): boolean {
  try {
    action();
    return true;
  } catch {
    return false;
  }
}
