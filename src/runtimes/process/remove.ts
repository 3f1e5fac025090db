/** Removes a sandbox completely, and the unfinished work of dead managers. */
import { lstatSync } from 'node:fs';
import { readdir, rename, rm, rmdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import { run } from '../../system/run.ts';
import { path as searchPath } from './bubblewrap.ts';
import { killCgroups, leftCgroups, removeCgroupRoots, removeCgroups } from './cgroup.ts';
import { doomed, type Intent, readIntent, unfinished } from './folder.ts';
import type { Host } from './host.ts';
import { hasSettled, killSupervisor, killTree } from './tree.ts';
import { freeLostUids, freeUid, isAgentUid, uidOf } from './uids.ts';

/** ms that killed processes may take to end. */
const killTimeout = 5_000;
/** ms that a supervisor may take to end after its job. */
const settleTime = 100;

/** Ends and removes an agent's sandbox, if there is one. @throws OnejobError E_SANDBOX_STUCK, E_SANDBOX_UNREAD, E_REMOVE */
export async function removeSandbox(host: Host, agent: AgentId): Promise<void> {
  const folder = join(host.at.agents, agent);
  const read = readIntent(host.at, agent);
  const about = read === 'damaged' ? await guess(host, agent) : read;
  if (about !== null) {
    await killAll(host.clock, folder, about);
    await removeGroups(host.clock, about.cgroups);
    if (about.files !== folder) await removeTree(about.files);
    if (about.uid !== null) await removeStrays(about);
    // Nobody sees a half-removed sandbox from here on. After a crash the name of the folder says what is to be done.
    await rename(folder, join(host.at.agents, doomed + agent));
  }
  await removeTree(join(host.at.agents, doomed + agent));
  await rm(join(host.at.exits, agent), { force: true });
  if (about !== null && about.uid !== null) await freeUid(host.uidClaims, about.uid);
}

/**
 * What a damaged sandbox was made from, as far as the host shows it: its user, its groups, and its processes by the mark in their
 * environment. It counts as plain, so that all of these are looked for.
 */
async function guess(host: Host, agent: AgentId): Promise<Intent> {
  const folder = join(host.at.agents, agent);
  const open = join(host.openDir, agent);
  const about = { owner: host.owner, agent, pool: '', slot: '', fingerprint: '', mode: 'plain' } as const;
  const uid = host.root ? await uidOf(host.uidClaims, folder) : null;
  const cgroups = leftCgroups(host.cgroups).filter((path) => basename(path) === agent);
  return { ...about, uid, cgroups, files: lstatSync(open, { throwIfNoEntry: false }) === undefined ? folder : open };
}

async function killAll(clock: Clock, folder: string, about: Intent): Promise<void> {
  const begun = clock.now();
  for (let pause = 1; ; pause = Math.min(pause * 2, 50)) {
    const left = killTree(folder, about);
    if (!left && hasSettled(folder)) return;
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

/** Removes a folder that a job could write to: any mode, any file names, any number of files. */
async function removeTree(path: string): Promise<void> {
  if (lstatSync(path, { throwIfNoEntry: false }) === undefined) return;
  if (await isSmall(path)) {
    try {
      return await rm(path, { recursive: true, force: true });
    } catch {
      // The programs below may succeed.
    }
  }
  const env = { env: { PATH: searchPath, LC_ALL: 'C' } };
  if ((await run('rm', ['-rf', '--', path], env)).code === 0) return;
  // A folder that its owner may not enter; possible only if we are not root.
  await run('chmod', ['-R', 'u+rwX', '--', path], env);
  const { code, error, stderr } = await run('rm', ['-rf', '--', path], env);
  if (code === 0) return;
  throw new OnejobError('E_REMOVE', `Cannot remove ${path}: ${stderr.split('\n')[0]}.`, { retry: true, cause: error });
}

/** Whether the job left no files, so that a separate process is not worth its start. */
async function isSmall(path: string): Promise<boolean> {
  const left = await Promise.all(['work', 'home', 'tmp'].map((name) => readdir(join(path, name)).catch(() => [])));
  return left.flat().length === 0;
}

/** A job without bubblewrap can write to shared folders. Files of its own user belong to it. */
async function removeStrays(about: Intent): Promise<void> {
  const { uid, mode } = about;
  if (mode !== 'plain' || uid === null || !isAgentUid(uid)) return;
  for (const shared of ['/tmp', '/var/tmp', '/dev/shm']) {
    for (const name of await readdir(shared).catch(() => [])) {
      const path = join(shared, name);
      if (lstatSync(path, { throwIfNoEntry: false })?.uid === uid) await removeTree(path);
    }
  }
}

/** Removes everything that no living sandbox needs. `busy`: agents that are being created or removed now. */
export async function sweepLeftovers(host: Host, busy: ReadonlySet<AgentId>): Promise<void> {
  const names = await readdir(host.at.agents);
  const living = new Set(names.filter((name) => !name.startsWith('.')));
  for (const name of names.filter((name) => name.startsWith('.'))) {
    const agent = name.replace(unfinished, '').replace(doomed, '');
    if (!busy.has(agent)) await removeTree(join(host.at.agents, name));
  }
  const isLeft = (path: string): boolean => !living.has(basename(path)) && !busy.has(basename(path));
  for (const path of (await readdir(host.at.exits)).map((name) => join(host.at.exits, name)))
    if (isLeft(path)) await rm(path, { force: true });
  for (const path of leftCgroups(host.cgroups).filter(isLeft)) await removeGroups(host.clock, [path]);
  if (host.root) await freeLostUids(host.uidClaims, host.at.agents);
  for (const name of await readdir(host.openDir).catch(() => [])) if (isLeft(name)) await removeTree(join(host.openDir, name));
  if (busy.size === 0) await tidyShared(host);
}

/** Removes what agents share, if no agent is left. */
export async function tidyShared(host: Host): Promise<void> {
  const isEmpty = async (): Promise<boolean> => (await readdir(host.at.agents)).length === 0;
  if (!(await isEmpty())) return;
  // A supervisor ends a moment after it has recorded the end of its job. Until then its group cannot be removed.
  for (let tries = 50; !removeCgroupRoots(host.cgroups) && tries > 0; tries--) {
    await sleep(host.clock, 20);
    if (!(await isEmpty())) return;
  }
  for (const shared of [host.openDir, host.uidClaims]) await rmdir(shared).catch(() => {});
}
