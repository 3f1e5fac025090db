/** Whose the Engine is that jobs may use, and who may have it. Jobs have all rights of its user, and must get no more by what they change. */
import { lstatSync, readlinkSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { attempt } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import { engineSocketIn } from '../../config/host-places.ts';
import type { GithubServiceConfig } from './config.ts';

type Service = Pick<GithubServiceConfig, 'name' | 'forks' | 'public'>;

/** Uid whose rights the Engine has; null: the socket is not there. `here`: whether it is on this host. */
export function engineOwner(socket: string, here = true): number | null {
  if (engineSocketIn(socket) !== null) return 0;
  return here ? attempt(() => statSync(socket).uid) : null;
}

/**
 * Uid that sandboxes with the Engine need; 0: any. A user who can replace the socket by a link to anything must not get it into a
 * sandbox of root. null: cannot be known. `here` as `engineOwner`.
 */
export function userFor(socket: string, here = true): number | null {
  if (!here) return engineOwner(socket, here);
  return whoControls(socket) || engineOwner(socket);
}

/** Uid of who decides what is at a path: the owner of its first part that is not root's. null: a part is missing before that. */
export function whoControls(path: string): number | null {
  return attempt(() => firstOwner('/', path.split('/'), 40));
}

function firstOwner(at: string, [part, ...rest]: readonly string[], links: number): number {
  if (part === undefined) return 0;
  const next = part === '..' ? dirname(at) : join(at, part);
  const found = lstatSync(next);
  if (found.uid !== 0) return found.uid;
  if (!found.isSymbolicLink()) return firstOwner(next, rest, links);
  if (links === 0) throw new Error('too many links');
  const target = readlinkSync(next);
  return firstOwner(target.startsWith('/') ? '/' : at, [...target.split('/'), ...rest], links - 1);
}

/** Why strangers' jobs keep the service from having an Engine, as the rest of a sentence; null when it may. `owner` as `engineOwner`. */
export function whyNoStrangers(service: Service, socket: string, owner: number | null): string | null {
  const open = (['forks', 'public'] as const).find((key) => service[key] === 'run');
  if (open === undefined || (owner !== null && owner !== 0)) return null;
  const both = `is set together with "${open}: run"`;
  if (owner === 0) return `${both}: jobs of strangers would be root on this host; remove one of the two`;
  return `${both}, but ${socket} is not there, and jobs of strangers would be root if it becomes root's; start that Engine, or remove one of the two`;
}

/** Why a pool with this `user` may not have the Engine, as the rest of a sentence; null when it may. `owner` as `userFor`. */
export function whyNotAs({ recipe: { user } }: Pick<PoolConfig, 'recipe'>, { name }: Service, owner: number | null): string | null {
  // Of a daemon's own user: the sandboxes may be that Engine's, too, where 0 is this user.
  if (owner === null || owner === 0 || owner === process.getuid?.()) return null;
  if (user !== null && Number(user.split(':')[0]) === owner) return null;
  const how = 'jobs could leave programs in "folder" that run with the rights of another user, such as root';
  return `is ${user ?? 'that of the image'}, but service ${name} gives jobs the Engine of user ${owner}: ${how}; write user: "${owner}:${owner}"`;
}
