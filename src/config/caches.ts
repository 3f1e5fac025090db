/**
 * Where onejob keeps the folders of caches that have a name instead of a path: one for each slot, so that no two agents
 * write to it at the same time, and those of untrusted jobs apart from all others.
 */
import { join } from 'node:path';

/** A path is never one, for it begins with a slash. */
export const cacheName = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

/** What the folder of untrusted jobs is called, where those of the agents are called as these are. */
export const untrustedFolder = 'untrusted';

/** All that onejob keeps of caches. */
export function cachesFolder(stateDir: string): string {
  return join(stateDir, 'caches');
}

/** The folder of a named cache. `agent`: the slot's name, or the template `{name}` for it. */
export function cachePath(stateDir: string, pool: string, agent: string, cache: string): string {
  return join(cachesFolder(stateDir), pool, agent, cache);
}

/** The folder of the same cache for untrusted jobs of one repository. `repository`: hex digits that stand for it. */
export function untrustedCachePath(stateDir: string, pool: string, repository: string, cache: string): string {
  return join(cachesFolder(stateDir), pool, untrustedFolder, repository, cache);
}
