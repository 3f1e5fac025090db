/**
 * Users for agents, under root. Each living agent of the host has a user id that nothing else has; no account is made.
 *
 * The ids come from 2 100 000 000 to 2 100 065 535: above those that systemd, container tools and directory services
 * give out (systemd.io/UIDS-GIDS: unused from 1 879 048 192 on; SSSD ends at 2 000 200 000). An id is taken by a link
 * named after it, made in one step, in a folder that all managers of the host share.
 */
import { randomInt } from 'node:crypto';
import { lstatSync } from 'node:fs';
import { mkdir, readdir, readlink, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { OnejobError } from '../../errors.ts';

export const firstUid = 2_100_000_000;
export const uidCount = 65_536;

/** Whether a user is one that was made for an agent, by whichever manager. */
export function isAgentUid(uid: number): boolean {
  return uid >= firstUid && uid < firstUid + uidCount;
}

/** Takes an id for the agent whose folder is `folder`. Random, so that files of an ended agent rarely meet their number again. */
export async function claimUid(claims: string, folder: string): Promise<number> {
  for (let tries = 0; tries < 1_000; tries++) {
    // Again on each try: another manager's sweep removes it when it is empty.
    await mkdir(claims, { recursive: true, mode: 0o755 });
    const uid = firstUid + randomInt(1, uidCount);
    try {
      await symlink(folder, join(claims, String(uid)));
      return uid;
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code;
      if (code !== 'EEXIST' && code !== 'ENOENT') throw error;
    }
  }
  throw new OnejobError('E_NO_USER', `Found no free user id for an agent: ${claims} already contains nearly all ${uidCount} ids.`, {
    hint: `Remove the dangling links there.`,
  });
}

/** The id that was taken for the agent whose folder is `folder`; null when none is. */
export async function uidOf(claims: string, folder: string): Promise<number | null> {
  for (const name of await claimsIn(claims)) {
    if ((await readlink(join(claims, name)).catch(() => '')) === folder) return Number(name);
  }
  return null;
}

export async function freeUid(claims: string, uid: number): Promise<void> {
  await rm(join(claims, String(uid)), { force: true });
}

/** None where there is no such folder: any manager's sweep removes it when it is empty. */
async function claimsIn(claims: string): Promise<readonly string[]> {
  return readdir(claims).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
}

/** Gives back ids taken for agents in `agents` whose folder is gone: a manager died between the two. */
export async function freeLostUids(claims: string, agents: string): Promise<void> {
  for (const name of await claimsIn(claims)) {
    const target = await readlink(join(claims, name)).catch(() => '');
    if (target.startsWith(`${agents}/`) && lstatSync(target, { throwIfNoEntry: false }) === undefined)
      await rm(join(claims, name), { force: true });
  }
}
