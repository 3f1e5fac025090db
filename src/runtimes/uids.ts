/**
 * Users of agents, under root. Each living agent of the host has its own user id, or a range of them if it has an engine
 * (`docker/own-ids.ts`); no account is created.
 *
 * Those of the process runtime are 2 100 000 000 to 2 100 065 535: above those of systemd, container tools and directory services
 * (systemd.io/UIDS-GIDS: unused from 1 879 048 192; SSSD ends at 2 000 200 000). A link named after an id, or the first of a range,
 * claims it, in one step, in a folder that all managers of the host share.
 */
import { randomInt } from 'node:crypto';
import { lstatSync } from 'node:fs';
import { mkdir, readlink, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, OnejobError } from '../base/errors.ts';
import { namesIn } from '../system/files.ts';

export const firstUid = 2_100_000_000;
const uidCount = 65_536;
/** Folder in which all managers of the host record the users of their agents. */
export const uidClaims = '/run/onejob-users';

/** Whether a user id belongs to an agent of any manager. */
export function isAgentUid(uid: number): boolean {
  return uid >= firstUid && uid < firstUid + uidCount;
}

const aUid = (): number => firstUid + randomInt(1, uidCount);

/** Claims an id for the agent with this folder: a random one, so that leftover files of an ended agent rarely match it. */
export async function claimUid(folder: string, any = aUid): Promise<number> {
  for (let tries = 0; tries < 1_000; tries++) {
    // On each try, because another manager's sweep removes the folder if it is empty.
    await mkdir(uidClaims, { recursive: true, mode: 0o755 });
    const uid = any();
    try {
      await symlink(folder, join(uidClaims, String(uid)));
      return uid;
    } catch (error) {
      if (!['EEXIST', 'ENOENT'].includes(codeOf(error))) throw error;
    }
  }
  throw new OnejobError('E_NO_USER', `Found no free user id for an agent: ${uidClaims} already contains nearly all ids.`, {
    hint: 'Remove the dangling links there.',
  });
}

/** Claims an id again that an agent has had, after a restart of the host. */
export async function keepUid(uid: number, folder: string): Promise<void> {
  await mkdir(uidClaims, { recursive: true, mode: 0o755 });
  await symlink(folder, join(uidClaims, String(uid))).catch((error: unknown) => {
    if (codeOf(error) !== 'EEXIST') throw error;
  });
}

/** The id of the agent whose folder is `folder`; null if it has none. */
export async function uidOf(folder: string): Promise<number | null> {
  for (const name of await namesIn(uidClaims)) {
    if ((await readlink(join(uidClaims, name)).catch(() => '')) === folder) return Number(name);
  }
  return null;
}

export async function freeUid(uid: number): Promise<void> {
  await rm(join(uidClaims, String(uid)), { force: true });
}

/** Releases what the agent with this folder has. */
export async function freeUidOf(folder: string): Promise<void> {
  const uid = await uidOf(folder);
  if (uid !== null) await freeUid(uid);
}

/** Releases ids of agents in `agents` whose folder is gone: a manager died in between. */
export async function freeLostUids(agents: string): Promise<void> {
  for (const name of await namesIn(uidClaims)) {
    const target = await readlink(join(uidClaims, name)).catch(() => '');
    if (target.startsWith(`${agents}/`) && lstatSync(target, { throwIfNoEntry: false }) === undefined)
      await rm(join(uidClaims, name), { force: true });
  }
}
