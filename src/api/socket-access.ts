/** Who may open a shared socket, and what others lack: the group `onejob`, membership, or access to the socket's folder. */
import { accessSync, constants, existsSync, statSync } from 'node:fs';
import { userInfo } from 'node:os';
import { dirname } from 'node:path';
import { attempt, OnejobError } from '../base/errors.ts';
import { type Finding, fine, warning } from '../base/finding.ts';
import { groupName, peopleFolder, readGroup, sharedFolder, type UserGroup } from '../config/paths.ts';
import type { People, PeopleConfig } from '../config/people.ts';

export interface AccessFacts {
  readonly group: UserGroup | null;
  readonly user: { readonly name: string; readonly gids: readonly number[] };
  /** The outermost folder of the path that the user may not enter; else null. */
  readonly blocked: { readonly path: string; readonly gid: number; readonly mode: number } | null;
  /** null if it cannot be checked. */
  readonly socket: { readonly uid: number; readonly gid: number; readonly mode: number } | null;
  /** Whether its config says who may use it. */
  readonly people?: boolean;
}

/** The daemon runs as root, and starts what they ask for. */
const power = "Members of the group can get root's rights on this host.";

const restart = 'restart the daemon ("onejob down --leave", then "onejob up": its jobs continue)';

/** What is missing, as a clause, and what to do about it, as a sentence. Pure. */
export function whyDenied({ group, user, blocked, socket, people = false }: AccessFacts): {
  readonly why: string;
  readonly hint: string;
} {
  if (socket !== null && socket.uid !== 0)
    return { why: `the daemon serves only user ${socket.uid}`, hint: 'Use a daemon of your own with --state-dir DIR.' };
  if (people)
    return {
      why: `${user.name} is in no group that may use it`,
      hint: 'Ask an operator of this host: "people" in the config names the groups. Who joined one a moment ago has access within a minute.',
    };
  const create = `sudo groupadd ${groupName}`;
  const join = `sudo usermod -aG ${groupName} ${user.name}`;
  if (group === null) {
    return {
      why: `it is for root only, because this host has no group "${groupName}"`,
      hint: `To share it type "${create}" and "${join}", ${restart}, and log in again. ${power}`,
    };
  }
  const isShared = blocked === null ? socket?.gid === group.gid : blocked.gid === group.gid && (blocked.mode & 0o010) !== 0;
  if (!isShared) {
    const what = blocked === null ? 'the group may not use its socket' : `you may not enter ${blocked.path}`;
    return {
      why: `${what} (mode ${((blocked ?? socket)?.mode ?? 0).toString(8).padStart(4, '0').slice(-4)})`,
      hint: `If the group "${groupName}" exists when root's daemon starts, the daemon listens in ${sharedFolder}: ${restart}.`,
    };
  }
  if (user.gids.includes(group.gid))
    return { why: 'permission denied', hint: 'Check the permissions of the socket and of its folders.' };
  return group.members.includes(user.name)
    ? { why: `you joined the group "${groupName}" after you logged in`, hint: `Log in again, or type "newgrp ${groupName}".` }
    : { why: `you are not in the group "${groupName}"`, hint: `Type "${join}", then log in again. ${power}` };
}

export function socketDenied(path: string): OnejobError {
  const { why, hint } = whyDenied({
    group: readGroup(),
    user: currentUser(),
    people: existsSync(peopleFolder(path)),
    ...lookAt(path),
  });
  return new OnejobError('E_SOCKET_DENIED', `Cannot connect to the daemon at ${path}: ${why}.`, { hint });
}

/** For `doctor`: who may use root's daemon at `path`, and what keeps members of the group from it. */
export function socketFinding(path: string, group: UserGroup | null = readGroup()): Finding {
  const subject = 'socket';
  if (group === null) {
    const message = `Only root may use this daemon: this host has no group "${groupName}".`;
    return { ...fine(subject, message), hint: `To share it type "sudo groupadd ${groupName}", then ${restart}. ${power}` };
  }
  const socket = tryStat(path);
  if (socket?.gid !== group.gid) {
    const message = `The group "${groupName}" may not use ${path}: the daemon started before that group existed.`;
    return warning(subject, message, `To share it, ${restart}.`);
  }
  for (let dir = dirname(path); dir !== dirname(dir); dir = dirname(dir)) {
    const { gid, mode } = statSync(dir);
    if ((mode & 0o001) !== 0 || (gid === group.gid && (mode & 0o010) !== 0)) continue;
    const message = `The group "${groupName}" may use ${path}, but may not enter ${dir} (mode ${(mode & 0o7777).toString(8).padStart(4, '0')}).`;
    return warning(subject, message, `Remove "socket" and --socket; the socket is then in ${sharedFolder}.`);
  }
  return fine(subject, `Root and the group "${groupName}" may use this daemon, at ${path}.`);
}

/** For `doctor`: who may use the daemon by the config. `people` null: nobody but its own user. */
export function peopleFindings(config: PeopleConfig | null, people: Pick<People, 'missing' | 'all'> | null): Finding[] {
  const subject = 'people';
  if (config === null) return [];
  if (people === null)
    return [warning(subject, 'Nobody else may use this daemon: only one that root starts with "onejob up" lets people in.', null)];
  const missing = people.missing.map((name) =>
    warning(
      subject,
      `This host has no group "${name}", which "people" in the config names.`,
      `Type "groupadd ${name}", or correct the config.`,
    ),
  );
  const count = people.all().length;
  return [...missing, fine(subject, `${count === 1 ? 'One user' : `${count} users`} of this host may use this daemon.`)];
}

function currentUser(): AccessFacts['user'] {
  const gids = process.getgroups?.() ?? [];
  const gid = process.getegid?.();
  // A uid may have no name, as in a container.
  const name = attempt(() => userInfo().username) ?? '"$USER"';
  return { name, gids: gid === undefined ? gids : [...gids, gid] };
}

function lookAt(path: string): Pick<AccessFacts, 'blocked' | 'socket'> {
  let blocked: AccessFacts['blocked'] = null;
  for (let dir = dirname(path); ; dir = dirname(dir)) {
    try {
      accessSync(dir, constants.X_OK);
    } catch {
      // Folders below one that cannot be entered cannot be checked, so the outermost remains.
      const found = tryStat(dir);
      if (found !== null) blocked = { path: dir, gid: found.gid, mode: found.mode & 0o7777 };
    }
    if (dir === dirname(dir)) break;
  }
  const socket = tryStat(path);
  return { blocked, socket: socket === null ? null : { uid: socket.uid, gid: socket.gid, mode: socket.mode & 0o7777 } };
}

function tryStat(path: string): { readonly uid: number; readonly gid: number; readonly mode: number } | null {
  return attempt(() => statSync(path));
}
