/**
 * Ending a sandbox's processes. Under bubblewrap the kernel ends the rest with the first. Without it a job can leave
 * processes anywhere, so everything that may be its is ended: its group, its descendants, what carries its mark, and,
 * where it has a user of its own, whatever runs as that user.
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
import type { Intent } from './folder.ts';
import { firstProcessOf, supervisorOf } from './folder.ts';

/** Asks the job itself to end: the process that the gate became, and no other. */
export function terminate(path: string, about: Intent): void {
  const first = firstProcessOf(path);
  if (first === null) return;
  const job = about.mode === 'plain' ? null : insideBubblewrap(path);
  // Bubblewrap passes no signal on. While its first child is not there yet, nothing has begun, and it may end itself.
  if (job !== null) killPid(job, 'TERM');
  else signalProcess(first, 'TERM');
}

/** The job's pid as the host sees it: process 2 of the sandbox, child of bubblewrap's reaper. */
function insideBubblewrap(path: string): number | null {
  const reaper = /"child-pid": (\d+)/.exec(readOr(join(path, 'status'), ''))?.[1];
  if (reaper === undefined) return null;
  const children = readOr(`/proc/${reaper}/task/${reaper}/children`, '').split(' ').filter(Boolean);
  const second = children.find((pid) => /^NSpid:\t.*\t2$/m.test(readOr(`/proc/${pid}/status`, '')));
  return second === undefined ? null : Number(second);
}

/**
 * Ends every process of the sandbox but its supervisor, which then records the end. Returns whether something that
 * should be dead was still seen.
 */
export function killTree(path: string, about: Intent): boolean {
  const first = firstProcessOf(path);
  let left = killCgroups(about.cgroups) > 0;
  const alive = first !== null && isAlive(first);
  // Nothing leaves a group that only root can write; without one everything has to be looked at.
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

/** Ends every process of the sandbox, also those that are started while it looks. Gives up after 2 s: the caller asks again. */
export async function killWhole(clock: Clock, path: string, about: Intent): Promise<void> {
  const until = clock.now() + 2_000;
  for (let pause = 1; killTree(path, about) && clock.now() < until; pause = Math.min(pause * 2, 50)) await sleep(clock, pause);
}

/** Whether the supervisor and both keepers of its log have ended by themselves. */
export function hasSettled(path: string): boolean {
  const supervisor = supervisorOf(path);
  const kept = ['stdout', 'stderr'].every((stream) => existsSync(join(path, 'log', `${stream}.end`)));
  return kept && supervisor !== null && !isAlive(supervisor);
}

/** Ends the supervisor and what keeps the log. Only when the sandbox is removed. */
export function killSupervisor(path: string, about: Intent): boolean {
  const supervisor = supervisorOf(path);
  const group = allPids().filter((pid) =>
    readOr(`/proc/${pid}/environ`, '').split('\0').includes(`${markVariable}=${about.agent}`),
  );
  for (const pid of group) killPid(pid, 'KILL');
  return group.length > 0 || (supervisor !== null && isAlive(supervisor));
}

function belongs(pid: number, about: Intent): boolean {
  if (about.uid !== null) return new RegExp(`^Uid:.*\\t${about.uid}\\b`, 'm').test(readOr(`/proc/${pid}/status`, ''));
  return readOr(`/proc/${pid}/environ`, '').split('\0').includes(`${markVariable}=${about.agent}`);
}

/** The supervisor and its own children: they carry the mark, hold the pipes, and must live to record the end. */
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
