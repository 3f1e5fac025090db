/**
 * The owner of a process that a GPU tool lists by its host pid: which user, since when, and whether it belongs to an agent of
 * ours. All from /proc, which may hide any of it: what cannot be read is null. It never reads a command's arguments, since they
 * may contain secrets.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { attempt } from '../base/errors.ts';
import { formatBytes, formatTime } from '../base/units.ts';
import type { AgentId } from '../core/slot.ts';
import { markVariable, parseStat } from '../system/process-identity.ts';
import type { Device, GpuProcess } from './inventory.ts';
import { mayBeOn } from './mig.ts';

export interface ProcessOwner {
  readonly pid: number;
  /** As in `ps`: `D` waits inside the kernel and cannot be killed, `Z` has ended. */
  readonly state: string;
  readonly uid: number | null;
  /** From /etc/passwd; null for users who are not in it. */
  readonly user: string | null;
  /** Name of its program, 15 characters at most. */
  readonly command: string | null;
  /** Wall clock, ms since the epoch. */
  readonly startedAt: number | null;
  /** Ids of the containers it is in, the outermost first. */
  readonly containers: readonly string[];
  /** Agents whose control group it is in. */
  readonly agents: readonly { readonly owner: string; readonly agent: AgentId }[];
  /** Agent that its environment names. A job can change that, so it proves nothing in a job's favour. */
  readonly mark: AgentId | null;
}

/** The owners of these pids, without processes that are gone or hidden. Never throws. */
export function ownersOf(pids: Iterable<number>, { proc = '/proc', passwd = '/etc/passwd' } = {}): Map<number, ProcessOwner> {
  const owners = new Map<number, ProcessOwner>();
  const wanted = new Set(pids);
  if (wanted.size === 0) return owners;
  const users = parsePasswd(read(passwd) ?? '');
  const bootedAt = /^btime (\d+)$/m.exec(read(join(proc, 'stat')) ?? '')?.[1];
  for (const pid of wanted) {
    if (!Number.isSafeInteger(pid) || pid <= 0) continue;
    const owner = readOwner(join(proc, String(pid)), pid, users, bootedAt === undefined ? null : Number(bootedAt) * 1000);
    if (owner !== null) owners.set(pid, owner);
  }
  return owners;
}

function readOwner(at: string, pid: number, users: ReadonlyMap<number, string>, bootedAt: number | null): ProcessOwner | null {
  const line = read(join(at, 'stat'));
  const stat = line === null ? null : parseStat(line);
  if (line === null || stat === null || stat.pid !== pid) return null;
  const uidText = /^Uid:\s+(\d+)/m.exec(read(join(at, 'status')) ?? '')?.[1];
  const uid = uidText === undefined ? null : Number(uidText);
  const mark = (read(join(at, 'environ')) ?? '').split('\0').find((one) => one.startsWith(`${markVariable}=`));
  const command = line.slice(line.indexOf('(') + 1, line.lastIndexOf(')'));
  return {
    pid,
    state: stat.state,
    uid,
    user: uid === null ? null : (users.get(uid) ?? null),
    command: command === '' ? null : printable(command),
    // The kernel counts these ticks at 100 Hz on every architecture that Node runs on (USER_HZ).
    startedAt: bootedAt === null ? null : bootedAt + Number(stat.start) * 10,
    ...parseCgroup(read(join(at, 'cgroup')) ?? ''),
    mark: mark?.slice(markVariable.length + 1) ?? null,
  };
}

/** Containers (64 hexadecimal digits) and our own groups (`/onejob/OWNER/AGENT`) in `/proc/PID/cgroup` of version 1 and 2. */
export function parseCgroup(text: string): Pick<ProcessOwner, 'containers' | 'agents'> {
  const containers = new Set<string>();
  const agents = new Map<string, { owner: string; agent: AgentId }>();
  for (const line of text.split('\n')) {
    const path = /^\d+:[^:]*:(.*)$/.exec(line)?.[1] ?? '';
    for (const [, id] of path.matchAll(/(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])/g)) if (id !== undefined) containers.add(id);
    for (const [, owner, agent] of path.matchAll(/\/onejob\/([^/]+)\/([^/.][^/]*)/g))
      if (owner !== undefined && agent !== undefined) agents.set(`${owner}/${agent}`, { owner, agent });
  }
  return { containers: [...containers], agents: [...agents.values()] };
}

/** User names by number, from the text of /etc/passwd. The first name of a number counts, as for `ls`. */
export function parsePasswd(text: string): Map<number, string> {
  const users = new Map<number, string>();
  for (const line of text.split('\n')) {
    const [, name, number] = /^([^:#\s]+):[^:]*:(\d+):/.exec(line) ?? [];
    const uid = Number(number);
    if (name !== undefined && !users.has(uid)) users.set(uid, printable(name));
  }
  return users;
}

/** Which of this host's processes are onejob's. */
export interface Ours {
  readonly owner: string;
  /** Running agents and the ids of their containers. */
  readonly alive: ReadonlySet<string>;
  /** Ended agents and the ids of their containers, at least the one whose devices are verified. */
  readonly ended: ReadonlySet<string>;
}

/** `ended`: it belongs to an ended agent of ours. `alive`: to a running one. `stranger`: to no agent. `unseen`: not in /proc. */
export type Whose = 'ended' | 'alive' | 'stranger' | 'unseen';

export function whose(process: ProcessOwner | undefined, ours: Ours): Whose {
  if (process === undefined) return 'unseen';
  const groups = process.agents.filter((one) => one.owner === ours.owner).map((one) => one.agent);
  const ids = [...process.containers, ...groups];
  if (ids.some((id) => ours.alive.has(id))) return 'alive';
  if (groups.length > 0 || ids.some((id) => ours.ended.has(id))) return 'ended';
  return process.mark !== null && ours.ended.has(process.mark) ? 'ended' : 'stranger';
}

/** One process on a device, for messages and as evidence: plain JSON. */
export type Holder = {
  readonly pid: number;
  readonly user: string | null;
  readonly command: string | null;
  readonly memoryMiB: number | null;
  /** Wall clock, ms since the epoch. */
  readonly since: number | null;
  readonly container: string | null;
  readonly state: string | null;
};

/** The tool reports the program's path, newer ones with its arguments; /proc the name it gave itself (`pt_main_thread`). */
export function holder(process: Pick<GpuProcess, 'pid' | 'name' | 'memoryMiB'>, owner: ProcessOwner | undefined): Holder {
  const program = process.name?.trim().split(/\s/)[0]?.split('/').at(-1) ?? '';
  return {
    pid: process.pid,
    user: owner === undefined || owner.uid === null ? null : (owner.user ?? `uid ${owner.uid}`),
    command: program === '' ? (owner?.command ?? null) : printable(program),
    memoryMiB: process.memoryMiB,
    since: owner?.startedAt ?? null,
    container: owner?.containers[0] ?? null,
    state: owner?.state ?? null,
  };
}

/** The processes on a device, by whom they belong to. */
export interface Holders {
  /** Those of an ended agent of ours, of any type. */
  readonly leftovers: Holder[];
  /** Listed by the driver but not in /proc: they are ending, or hidden from us. */
  readonly unseen: Holder[];
  /** Those of people, and of running agents that do not lease the device. */
  readonly others: Holder[];
  /** Those of running agents that share the device. */
  readonly sharers: Holder[];
  /** Displays. `memoryKnown`: whether the memory of all of them is known. */
  readonly residents: { readonly count: number; readonly memoryKnown: boolean };
}

/** null where the tool does not list processes. `shared`: as in `ProofInput`. */
export function sortHolders(
  device: Device,
  context: { readonly owners: ReadonlyMap<number, ProcessOwner>; readonly ours: Ours; readonly shared: boolean },
): Holders | null {
  const all = processesOn(device)?.map((process) => {
    const owner = context.owners.get(process.pid);
    return { process, group: groupOf(process, whose(owner, context.ours), context.shared), holder: holder(process, owner) };
  });
  if (all === undefined) return null;
  const of = (group: Group): Holder[] => all.flatMap((one) => (one.group === group ? one.holder : []));
  const residents = all.filter((one) => one.group === 'resident');
  return {
    leftovers: of('leftover'),
    unseen: of('unseen'),
    others: of('other'),
    sharers: of('sharer'),
    residents: { count: residents.length, memoryKnown: residents.every(({ process }) => process.memoryMiB !== null) },
  };
}

type Group = 'leftover' | 'unseen' | 'other' | 'sharer' | 'resident';

function groupOf(process: GpuProcess, owner: Whose, shared: boolean): Group {
  if (owner === 'ended') return 'leftover';
  if (owner === 'alive') return shared ? 'sharer' : 'other';
  if (isDisplay(process)) return 'resident';
  return owner === 'unseen' ? 'unseen' : 'other';
}

/** MiB in use apart from what residents use; null where it is unknown. */
export function ownMemory(device: Device): number | null {
  if (device.memoryUsedMiB === null) return null;
  const residents = (processesOn(device) ?? []).filter(isDisplay);
  return Math.max(0, device.memoryUsedMiB - residents.reduce((sum, one) => sum + (one.memoryMiB ?? 0), 0));
}

/** Processes on a device. The list of a MIG instance may contain those of other instances; those are left out. */
function processesOn({ kind, mig, processes }: Device): readonly GpuProcess[] | undefined {
  if (processes === null) return undefined;
  if (kind === 'gpu' || mig === null || !('gpuInstance' in mig) || mig.gpuInstance === null) return processes;
  const instance = { gpuInstance: mig.gpuInstance, computeInstance: mig.computeInstance };
  return processes.filter((one) => mayBeOn(one, instance));
}

/** Whether it draws on a screen, so that it belongs to the host's desktop. */
function isDisplay(process: GpuProcess): boolean {
  return process.type === 'G' || process.type === 'C+G';
}

/** `alice: python, 9.2 GiB, since 14:02`. `wall` is now; another day's time has its date. In the host's time zone. */
export function describeHolder({ pid, command, user, container, memoryMiB, since }: Holder, wall: number): string {
  const name = command ?? `process ${pid}`;
  const parts = [user === null ? name : `${user}: ${name}`];
  if (container !== null) parts.push(`container ${container.slice(0, 12)}`);
  if (memoryMiB !== null) parts.push(formatBytes(memoryMiB * 2 ** 20));
  if (since !== null) parts.push(`since ${formatTime(since, wall)}`);
  return parts.join(', ');
}

/** Anyone who runs a program chooses its name. */
function printable(name: string): string {
  return name.replace(/\p{C}/gu, '?').slice(0, 64);
}

function read(path: string): string | null {
  return attempt(() => readFileSync(path, 'utf8'));
}
