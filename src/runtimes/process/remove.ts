/**
 * Ends a sandbox's processes, and removes a sandbox completely, as well as the unfinished work of dead managers.
 *
 * With bubblewrap the kernel ends all processes with the first. Otherwise a job can leave processes anywhere, so everything that
 * may be its own is ended: its group, its descendants, processes with its mark, and those of its own user, if it has one.
 */
import { existsSync, lstatSync } from 'node:fs';
import { readdir, rename, rm, rmdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { type Removed, removeOwned, removeTree, whyStuck } from '../../system/foreign-tree.ts';
import {
  allPids,
  childrenOf,
  isAlive,
  killPid,
  markVariable,
  readOr,
  signalProcess,
  withDescendants,
} from '../../system/process-identity.ts';
import { run } from '../../system/run.ts';
import { unfinished } from '../first-look.ts';
import { freeLostUids, freeUid, isAgentUid, uidClaims, uidOf } from '../uids.ts';
import { killCgroups, killFile, leftCgroups, removeCgroupRoots, removeCgroups } from './cgroup.ts';
import { carriersOf, doomed, firstProcessOf, type Intent, readIntent, supervisorOf } from './folder.ts';
import type { ProcessHost } from './host.ts';
import { searchPath } from './programs.ts';

/** ms that killed processes may take to end. */
const killTimeout = 5_000;
/** ms that a supervisor may take to end after its job. */
const settleTime = 100;

/** Ends and removes an agent's sandbox, if there is one. @throws OnejobError E_SANDBOX_STUCK, E_SANDBOX_UNREAD, E_REMOVE */
export async function removeSandbox(host: ProcessHost, agent: AgentId): Promise<void> {
  const folder = join(host.at.agents, agent);
  const read = readIntent(host.at, agent);
  const about = read === 'damaged' ? await guess(host, agent) : read;
  if (about !== null) {
    await killAll(host.clock, folder, about);
    await removeGroups(host.clock, about.cgroups);
    if (about.files !== folder) await remove(about.files);
    if (about.uid !== null) await removeStrays(about);
    // Nobody sees a half-removed sandbox from here on. After a crash the name of the folder says what is to be done.
    await rename(folder, join(host.at.agents, doomed + agent));
  }
  await remove(join(host.at.agents, doomed + agent));
  await rm(join(host.at.exits, agent), { force: true });
  if (about !== null && about.uid !== null) await freeUid(about.uid);
}

/** Ends what an ended job has left, and keeps its groups, which say how it ended. @throws OnejobError E_SANDBOX_STUCK */
export async function endLeftovers({ clock, at }: ProcessHost, about: Intent): Promise<void> {
  await killAll(clock, join(at.agents, about.agent), about);
}

/** Ends everything that runs in a sandbox, and keeps its files. @throws OnejobError E_SANDBOX_STUCK */
export async function emptySandbox({ clock, at }: ProcessHost, about: Intent): Promise<void> {
  await killAll(clock, join(at.agents, about.agent), about);
  await removeGroups(clock, about.cgroups);
}

/**
 * What a damaged sandbox was made from, as far as the host shows it: its user, its groups, and its processes by the mark in their
 * environment. It counts as plain, so that all of these are looked for.
 */
async function guess(host: ProcessHost, agent: AgentId): Promise<Intent> {
  const folder = join(host.at.agents, agent);
  const open = join(host.openDir, agent);
  const about = { owner: host.owner, agent, pool: '', slot: '', fingerprint: '', mode: 'plain', boot: host.boot } as const;
  const uid = host.root ? await uidOf(folder) : null;
  const cgroups = leftCgroups(host.cgroups).filter((path) => basename(path) === agent);
  return { ...about, uid, cgroups, files: lstatSync(open, { throwIfNoEntry: false }) === undefined ? folder : open };
}

async function killAll(clock: Clock, folder: string, about: Intent): Promise<void> {
  const begun = clock.now();
  for (let pause = 1; ; pause = Math.min(pause * 2, 50)) {
    const left = killTree(folder, about);
    // Not before the job: it could end because its network has.
    if (!left && !killNetwork(folder) && hasSettled(folder)) return;
    const waited = clock.now() - begun;
    // A supervisor whose job is dead ends within milliseconds, unless something holds its pipes.
    if (waited > settleTime && !killSupervisor(folder, about) && !left) return;
    if (waited > killTimeout) {
      const message = `Cannot remove agent ${about.agent}: its processes were killed, but still exist.`;
      const hint = 'A process that waits for a disk or device ends when the disk or device responds.';
      throw new OnejobError('E_SANDBOX_STUCK', message, { retry: true, hint });
    }
    // No event reports the end of a process that is not our child.
    await sleep(clock, pause);
  }
}

async function removeGroups(clock: Clock, paths: readonly string[]): Promise<void> {
  // A group stays busy for a moment after its last process has ended.
  for (let tries = 0; tries < 50 && !removeCgroups(paths); tries++) {
    killCgroups(paths);
    await sleep(clock, 5);
  }
}

/** Removes a folder that a job could write to. @throws OnejobError E_REMOVE */
async function remove(path: string): Promise<void> {
  mustBeGone(path, await removeTree(path));
}

/** A job without bubblewrap can write to shared folders. Files of its own user belong to it. */
async function removeStrays({ uid, mode }: Intent): Promise<void> {
  if (mode !== 'plain' || uid === null || !isAgentUid(uid)) return;
  for (const shared of ['/tmp', '/var/tmp', '/dev/shm', '/dev/mqueue', '/run/lock'])
    if (existsSync(shared)) mustBeGone(`the files of user ${uid} in ${shared}`, await removeOwned(shared, uid));
  if (await removeIpc(uid)) return;
  const message = `Cannot remove the System V IPC objects of user ${uid}.`;
  throw new OnejobError('E_REMOVE', message, {
    hint: 'Type "ipcs" to see them, and remove them with "ipcrm" as root.',
    retry: true,
  });
}

function mustBeGone(what: string, removed: Removed): void {
  if (removed.stuck.size === 0) return;
  throw new OnejobError('E_REMOVE', `Cannot remove ${what}: ${whyStuck(removed)}.`, { retry: true });
}

/**
 * What a power cut has left of removals: it is a matter of no slot any more. Only before the first sandbox is made. Resolves while
 * files of ended jobs, of which there may be many, are still being removed.
 */
export async function finishRemovals({ at }: Pick<ProcessHost, 'at'>): Promise<void> {
  const names = await readdir(at.agents);
  for (const name of await readdir(at.exits)) if (!names.includes(name)) await rm(join(at.exits, name), { force: true });
  // What cannot be removed now is left to a sweep.
  for (const name of names) if (name.startsWith(doomed)) void remove(join(at.agents, name)).catch(() => {});
}

/** Removes everything that no living sandbox needs. `busy`: agents that are being created or removed now. */
export async function sweepLeftovers(host: ProcessHost, busy: ReadonlySet<AgentId>): Promise<void> {
  const names = await readdir(host.at.agents);
  const living = new Set(names.filter((name) => !name.startsWith('.')));
  for (const name of names.filter((name) => name.startsWith('.'))) {
    const agent = name.replace(unfinished, '').replace(doomed, '');
    if (!busy.has(agent)) await remove(join(host.at.agents, name));
  }
  const isLeft = (path: string): boolean => !living.has(basename(path)) && !busy.has(basename(path));
  for (const name of await readdir(host.at.exits)) if (isLeft(name)) await rm(join(host.at.exits, name), { force: true });
  for (const path of leftCgroups(host.cgroups).filter(isLeft)) await removeGroups(host.clock, [path]);
  if (host.root) await freeLostUids(host.at.agents);
  for (const name of await readdir(host.openDir).catch(() => [])) if (isLeft(name)) await remove(join(host.openDir, name));
  if (busy.size === 0) await tidyShared(host);
}

/** Removes what agents share, if no agent is left. */
export async function tidyShared(host: ProcessHost): Promise<void> {
  const isEmpty = async (): Promise<boolean> => (await readdir(host.at.agents)).length === 0;
  if (!(await isEmpty())) return;
  // A supervisor ends a moment after it has recorded the end of its job. Until then its group cannot be removed.
  for (let tries = 50; !removeCgroupRoots(host.cgroups) && tries > 0; tries--) {
    await sleep(host.clock, 20);
    if (!(await isEmpty())) return;
  }
  for (const shared of [host.openDir, uidClaims]) await rmdir(shared).catch(() => {});
}

/** Asks the job itself to end: only the process that the gate became. */
export function terminate(path: string, about: Intent): void {
  const first = firstProcessOf(path);
  if (first === null) return;
  const job = about.mode === 'plain' ? null : insideBubblewrap(path);
  // Bubblewrap does not pass on signals. If it has no child yet, nothing has begun, and it may end itself.
  if (job !== null) killPid(job, 'TERM');
  else signalProcess(first, 'TERM');
}

/**
 * The job's pid on the host: process 2 of the sandbox, child of bubblewrap's reaper. It exists once all is mounted. `status`: the
 * file in which bubblewrap reports.
 */
export function insideBubblewrap(path: string, status = 'status'): number | null {
  const reaper = /"child-pid": (\d+)/.exec(readOr(join(path, status), ''))?.[1];
  if (reaper === undefined) return null;
  return childrenOf(Number(reaper)).find((pid) => /^NSpid:\t.*\t2$/m.test(readOr(`/proc/${pid}/status`, ''))) ?? null;
}

/** Ends every process of the sandbox but its supervisor, which records the end. Returns whether any was still seen. */
function killTree(path: string, about: Intent): boolean {
  const first = firstProcessOf(path);
  let left = killCgroups(about.cgroups) > 0;
  const alive = first !== null && isAlive(first);
  // Nothing can leave a group that only root can write to; what runs as our own user can. Then every process has to be checked.
  if (about.mode === 'plain' && (about.uid === null || killFile(about.cgroups) === null)) {
    const marked = allPids().filter((pid) => belongs(pid, about));
    const all = withDescendants(alive ? [first.pid, ...marked] : marked);
    for (const pid of spared(path)) all.delete(pid);
    for (const pid of all) killPid(pid, 'KILL');
    left ||= all.size > 0;
  }
  if (alive) signalProcess(first, 'KILL');
  return left || alive;
}

/** Ends every process of the sandbox, including those started meanwhile. Gives up after 2 s; the caller tries again. */
export async function killWhole(clock: Clock, path: string, about: Intent): Promise<void> {
  const until = clock.now() + 2_000;
  for (let pause = 1; killTree(path, about) && clock.now() < until; pause = Math.min(pause * 2, 50)) await sleep(clock, pause);
}

/** Whether the supervisor and both writers of its log have ended. */
function hasSettled(path: string): boolean {
  const supervisor = supervisorOf(path);
  const kept = ['stdout', 'stderr'].every((stream) => existsSync(join(path, 'log', `${stream}.end`)));
  return kept && supervisor !== null && !isAlive(supervisor);
}

/** Ends what carries the network of the sandbox. Most of it ends by itself, right after the supervisor. */
function killNetwork(path: string): boolean {
  const left = carriersOf(path).filter(isAlive);
  for (const carrier of left) signalProcess(carrier, 'KILL');
  return left.length > 0;
}

/** Ends the supervisor and the writers of the log. Only for removing the sandbox. */
function killSupervisor(path: string, about: Intent): boolean {
  const supervisor = supervisorOf(path);
  const group = allPids().filter((pid) => isMarked(pid, about));
  for (const pid of group) killPid(pid, 'KILL');
  return group.length > 0 || (supervisor !== null && isAlive(supervisor));
}

function belongs(pid: number, about: Intent): boolean {
  if (about.uid !== null) return new RegExp(`^Uid:.*\\t${about.uid}\\b`, 'm').test(readOr(`/proc/${pid}/status`, ''));
  return isMarked(pid, about);
}

function isMarked(pid: number, { agent }: Intent): boolean {
  return readOr(`/proc/${pid}/environ`, '').split('\0').includes(`${markVariable}=${agent}`);
}

/** The supervisor and its own children. They have the mark and hold the pipes, and must live to record the end. */
function spared(path: string): number[] {
  const supervisor = supervisorOf(path);
  if (supervisor === null || !isAlive(supervisor)) return [];
  const first = firstProcessOf(path);
  return [...withDescendants([supervisor.pid])].filter((pid) => pid !== first?.pid && session(pid) === supervisor.pid);
}

/** Session of a process: field 6 of /proc/PID/stat. */
function session(pid: number): number {
  const line = readOr(`/proc/${pid}/stat`, '');
  return Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[3]);
}

/** Options of `ipcrm` in one call: at the kernel's default limits all ids of a user do not fit into the arguments of one. */
const mostOptions = 1_000;
/** In `perms` of shared memory that is removed as soon as no process has it attached (SHM_DEST). */
const destroyed = 0o1000;

/**
 * Removes what a user has made of System V: shared memory, semaphores and message queues; false if something is left that the kernel
 * does not free by itself. No process and no control group has them, and they outlive both. Its creator may always remove it and
 * cannot deny having made it; its owner is what a job says, even another job's user.
 * `read`: a file of /proc/sysvipc; `remove`: runs `ipcrm` as this user.
 */
export async function removeIpc(
  uid: number,
  read = (kind: string): string => readOr(`/proc/sysvipc/${kind}`, ''),
  remove = async (options: readonly string[]): Promise<unknown> =>
    run('ipcrm', options, { uid, gid: uid, env: { PATH: searchPath } }),
): Promise<boolean> {
  const left = ipcOf(uid, read);
  for (let at = 0; at < left.length; at += mostOptions) await remove(left.slice(at, at + mostOptions));
  return left.length === 0 || ipcOf(uid, read).length === 0;
}

/** Options of `ipcrm`. */
function ipcOf(uid: number, read: (kind: string) => string): string[] {
  return [
    ['shm', '-m'],
    ['sem', '-s'],
    ['msg', '-q'],
  ].flatMap(([kind = '', option = '']) => {
    const [head = [], ...rows] = read(kind)
      .split('\n')
      .map((line) => line.trim().split(/ +/));
    const [made, perms] = [head.indexOf('cuid'), head.indexOf('perms')];
    const isDoomed = (row: readonly string[]): boolean => (Number.parseInt(row[perms] ?? '', 8) & destroyed) !== 0;
    return rows.flatMap((row) => {
      const isLeft = row[made] === String(uid) && !(kind === 'shm' && isDoomed(row));
      return isLeft ? [option, row[1] ?? ''] : [];
    });
  });
}
