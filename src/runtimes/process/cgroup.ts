/**
 * Control groups of an agent, in version 2, version 1, or both. They limit memory, CPUs and processes, and with `cgroup.kill`
 * (Linux 5.14) one write ends a whole tree. Without them jobs run all the same, and the caller reports limits not enforced.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { attempt } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { killPid, readOr } from '../../system/process-identity.ts';

/** The owner's folders, which contain those of its agents; null where none can be created. */
export interface Cgroups extends Readonly<Record<'unified' | 'memory' | 'cpu' | 'pids', string | null>> {
  /** The folder of cgroup v2 below which onejob may enable controllers: the mount point, or the folder of its unit; null: none. */
  readonly top: string | null;
  /** Whether the kernel can end a whole group at once. */
  readonly kills: boolean;
}

/**
 * The group of the daemon below that of its unit, in a service of one's own (`DelegateSubgroup=`, systemd 254). Only with it can the
 * unit's own group be empty of processes, as the kernel wants it where controllers are enabled, also when the daemon starts again.
 */
export const daemonGroup = 'daemon';

/** What the kernel says of this process: what is mounted, and its groups. */
interface Look {
  readonly mounts: string;
  readonly own: string;
}

/** Finds the usable hierarchies by creating the owner's folders and removing them again. */
export function findCgroups(
  owner: string,
  look: Look = { mounts: readOr('/proc/self/mounts', ''), own: readOr('/proc/self/cgroup', '') },
): Cgroups {
  const mounts = look.mounts.split('\n').map((line) => line.split(' '));
  const v1 = (controller: string): string | null =>
    mounts.find(([, , type, options]) => type === 'cgroup' && options?.split(',').includes(controller))?.[1] ?? null;
  const mount = mounts.find(([, , type]) => type === 'cgroup2')?.[1] ?? null;
  const make = (at: string | null) => makeGroup(at, 'onejob', owner);
  const atMount = make(mount);
  const top = atMount === null ? unitOf(mount, look.own) : mount;
  const unified = atMount ?? make(top);
  const controllers = unified === null || top === null ? [] : enable(top, unified);
  const groups = {
    top,
    unified,
    memory: controllers.includes('memory') ? unified : make(v1('memory')),
    cpu: controllers.includes('cpu') ? unified : make(v1('cpu')),
    pids: controllers.includes('pids') ? unified : make(v1('pids')),
    kills: unified !== null && existsSync(join(unified, 'cgroup.kill')),
  };
  removeCgroupRoots(groups);
  return groups;
}

/** The group of our unit, if systemd has left what is below it to us; null: it has not. */
function unitOf(mount: string | null, own: string): string | null {
  const path = /^0::(\/.*)$/m.exec(own)?.[1];
  return mount === null || path === undefined || basename(path) !== daemonGroup ? null : join(mount, dirname(path));
}

/** Group of the supervisors, so that the end of the manager's own group ends no job (S5); null if it cannot be created. */
export function supervisorGroup({ unified }: Cgroups): string | null {
  return makeGroup(unified, '.supervisors');
}

function enable(top: string, path: string): string[] {
  return ['memory', 'cpu', 'pids'].filter((controller) =>
    [top, dirname(path), path].every((at) =>
      succeeds(() => {
        const file = join(at, 'cgroup.subtree_control');
        if (!readFileSync(file, 'utf8').split(/\s/).includes(controller)) writeFileSync(file, `+${controller}`);
      }),
    ),
  );
}

function rootsOf({ unified, memory, cpu, pids }: Cgroups): readonly string[] {
  return [...new Set([unified, memory, cpu, pids])].filter((path) => path !== null);
}

/** Creates the agent's groups. Returns their folders, the one that can kill first, and a sentence per limit not enforced. */
export function makeCgroups(roots: Cgroups, agent: AgentId, { memory, cpus, pids }: Recipe) {
  const paths = new Set<string>();
  const missing: string[] = [];
  const make = (root: string | null): string | null => {
    const path = makeGroup(root, agent);
    if (path !== null) paths.add(path);
    return path;
  };
  const own = make(roots.unified);
  // A folder gets its controllers from the one above, which may be new: a sweep removes unused ones.
  if (own !== null && roots.top !== null && [roots.memory, roots.cpu, roots.pids].includes(roots.unified))
    enable(roots.top, dirname(own));
  if (memory !== null && !limit(make(roots.memory), (at) => limitMemory(at, memory)))
    missing.push(`The memory limit of ${memory} bytes is not enforced: there is no writable memory control group.`);
  if (cpus !== null && !limit(make(roots.cpu), (at) => limitCpus(at, cpus)))
    missing.push(`The limit of ${cpus} CPUs is not enforced: there is no writable CPU control group.`);
  // Without such a group another limit applies, or `doctor` has reported it.
  if (pids !== null && roots.pids !== null && !limit(make(roots.pids), (at) => writeFileSync(join(at, 'pids.max'), String(pids))))
    missing.push(`The limit of ${pids} processes is not enforced: its control group is not writable.`);
  return { paths: [...paths], missing };
}

function limit(path: string | null, write: (path: string) => void): boolean {
  return path !== null && succeeds(() => write(path));
}

function limitMemory(path: string, bytes: number): void {
  const [file, swapFile, swap] = existsSync(join(path, 'memory.max'))
    ? (['memory.max', 'memory.swap.max', 0] as const)
    : (['memory.limit_in_bytes', 'memory.memsw.limit_in_bytes', bytes] as const);
  writeFileSync(join(path, file), String(bytes));
  // Otherwise a job at its limit fills the host's swap instead of being ended.
  attempt(() => writeFileSync(join(path, swapFile), String(swap)));
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

/**
 * Whether the kernel has ended a process of these groups because the group reached its limit. When the host runs out of memory,
 * only `oom_kill` grows, not `oom` (kernel documentation, cgroup-v2, memory.events); the first version does not tell them apart.
 */
export function oomKilled(paths: readonly string[]): boolean {
  return paths.some((path) => {
    const events = readOr(join(path, 'memory.events'), '');
    if (events !== '') return /^oom_kill [1-9]/m.test(events) && !/^oom 0$/m.test(events);
    return /^oom_kill [1-9]/m.test(readOr(join(path, 'memory.oom_control'), ''));
  });
}

/** Bytes of memory that these groups had at most; null: the kernel does not count that. */
export function peakMemory(paths: readonly string[]): number | null {
  const files = paths.flatMap((path) => ['memory.peak', 'memory.max_usage_in_bytes'].map((name) => join(path, name)));
  const peaks = files.map((file) => Number(readOr(file, '0').trim())).filter((bytes) => bytes > 0);
  return peaks.length === 0 ? null : Math.max(...peaks);
}

/** The file that ends the whole group when 1 is written to it; null if the kernel has none. */
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

/** Removes the agent's groups. False while one still has a process. */
export function removeCgroups(paths: readonly string[]): boolean {
  return paths.map(removeGroup).every(Boolean);
}

/** Removes the owner's own groups if they are empty. False if one is not, for example because a process is still ending. */
export function removeCgroupRoots(roots: Cgroups): boolean {
  if (roots.unified !== null) removeGroup(join(roots.unified, '.supervisors'));
  let isGone = true;
  for (const path of rootsOf(roots)) {
    if (removeGroup(path)) removeGroup(dirname(path));
    else isGone = false;
  }
  return isGone;
}

/** All groups of agents that are left below the owner's folders. */
export function leftCgroups(roots: Cgroups): string[] {
  return rootsOf(roots).flatMap((root) => {
    if (!existsSync(root)) return [];
    return readdirSync(root, { withFileTypes: true }).flatMap((entry) =>
      entry.isDirectory() && !entry.name.startsWith('.') ? [join(root, entry.name)] : [],
    );
  });
}

/** Creates a group if it is missing; null if there is no `root`, or that fails. */
function makeGroup(root: string | null, ...names: readonly string[]): string | null {
  if (root === null) return null;
  const path = join(root, ...names);
  return succeeds(() => mkdirSync(path, { recursive: true })) ? path : null;
}

function removeGroup(path: string): boolean {
  return succeeds(() => rmdirSync(path)) || !existsSync(path);
}

function succeeds(action: () => unknown): boolean {
  return attempt(() => ({ done: action() })) !== null;
}
