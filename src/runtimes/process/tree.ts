/**
 * Ends a sandbox's processes. With bubblewrap the kernel ends all with the first. Otherwise a job can leave processes anywhere,
 * so everything that may be its own is ended: its group, its descendants, processes with its mark, and if it has its own user,
 * everything that runs as that user.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type Clock, sleep } from '../../core/clock.ts';
import {
  allPids,
  isAlive,
  killPid,
  markVariable,
  type ProcessIdentity,
  readOr,
  signalProcess,
  withDescendants,
} from '../../system/process-identity.ts';
import { killCgroups, killFile } from './cgroup.ts';
import { firstProcessOf, type Intent, supervisorOf } from './folder.ts';

/** Asks the job itself to end: only the process that the gate became. */
export function terminate(path: string, about: Intent): void {
  const first = firstProcessOf(path);
  if (first === null) return;
  const job = about.mode === 'plain' ? null : insideBubblewrap(path);
  // Bubblewrap does not pass on signals. If it has no child yet, nothing has begun, and it may end itself.
  if (job !== null) killPid(job, 'TERM');
  else signalProcess(first, 'TERM');
}

/** The job's pid on the host: process 2 of the sandbox, child of bubblewrap's reaper. */
function insideBubblewrap(path: string): number | null {
  const reaper = /"child-pid": (\d+)/.exec(readOr(join(path, 'status'), ''))?.[1];
  if (reaper === undefined) return null;
  const children = readOr(`/proc/${reaper}/task/${reaper}/children`, '').split(' ').filter(Boolean);
  const second = children.find((pid) => /^NSpid:\t.*\t2$/m.test(readOr(`/proc/${pid}/status`, '')));
  return second === undefined ? null : Number(second);
}

/**
 * Ends every process of the sandbox but its supervisor, which then records the end. Returns whether a process that should be dead
 * was still seen.
 */
export function killTree(path: string, about: Intent): boolean {
  const first = firstProcessOf(path);
  let left = killCgroups(about.cgroups) > 0;
  const alive = first !== null && isAlive(first);
  // Nothing can leave a group that only root can write to. Without one every process has to be checked.
  if (about.mode === 'plain' && killFile(about.cgroups) === null) {
    const supervisor = supervisorOf(path);
    const marked = allPids().filter((pid) => belongs(pid, about));
    const all = withDescendants(alive ? [first.pid, ...marked] : marked);
    for (const pid of spared(path, supervisor)) all.delete(pid);
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
export function hasSettled(path: string): boolean {
  const supervisor = supervisorOf(path);
  const kept = ['stdout', 'stderr'].every((stream) => existsSync(join(path, 'log', `${stream}.end`)));
  return kept && supervisor !== null && !isAlive(supervisor);
}

/** Ends the supervisor and the writers of the log. Only for removing the sandbox. */
export function killSupervisor(path: string, about: Intent): boolean {
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
function spared(path: string, supervisor: ProcessIdentity | null): number[] {
  if (supervisor === null || !isAlive(supervisor)) return [];
  const first = firstProcessOf(path);
  return [...withDescendants([supervisor.pid])].filter((pid) => pid !== first?.pid && session(pid) === supervisor.pid);
}

/** Session of a process: field 6 of /proc/PID/stat. */
function session(pid: number): number {
  const line = readOr(`/proc/${pid}/stat`, '');
  return Number(line.slice(line.lastIndexOf(')') + 2).split(' ')[3]);
}
