/** Volumes and caches as people write them: `HOST:CONTAINER[:VARIABLE][:ro|rw]`, of a cache also `NAME:CONTAINER…`. */
import { join } from 'node:path';
import type { Mount } from '../runtimes/runtime.ts';
import type { Parsed } from './units.ts';

const variableName = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** Places that belong to the sandbox itself. */
const taken = new Set(['/', '/dev', '/proc', '/sys', '/workspace']);

/**
 * One volume, or one cache. Paths may hold spaces, but no colon, no `..` and no control characters; both must be absolute. A
 * volume is read-only and a cache writable unless the other is written. A cache may have a name in the place of the host path:
 * then `host` is that name, until it is known where onejob keeps its state.
 */
export function parseVolume(text: string, as: 'volume' | 'cache' = 'volume'): Parsed<Mount> {
  const form = `${as === 'cache' ? 'NAME:CONTAINER or ' : ''}HOST:CONTAINER[:VARIABLE][:ro|rw]`;
  const no = (why: string) => ({ ok: false, why: `${JSON.stringify(text)}: ${why}` }) as const;
  const [host = '', container, ...rest] = text.split(':');
  if (container === undefined) return no(`has no container path; write ${form}`);
  const last = rest.at(-1);
  const written = last === 'ro' || last === 'rw' ? last : null;
  if (written !== null) rest.pop();
  const [variable = null, ...extra] = rest;
  if (extra.length > 0) return no(`has too many parts; write ${form}`);
  if (variable !== null && !variableName.test(variable)) {
    return no(`${JSON.stringify(variable)} is neither "ro", "rw" nor the name of a variable`);
  }
  const name = as === 'cache' && cacheName.test(host) ? host : null;
  const readOnly = written === null ? as === 'volume' : written === 'ro';
  const mount: Mount = { host, container, readOnly, variable, cache: as === 'cache' ? { name } : null };
  const why = mountPathProblem(mount);
  if (why !== null && as === 'volume' && cacheName.test(host) && !pathProblem(container))
    return no(`${why}; list folders that onejob keeps under a name in "caches"`);
  return why === null ? { ok: true, value: tidyMount(mount) } : no(why);
}

/** Why a mount cannot be as it stands, whatever lies at its host path; null when it can. */
export function mountPathProblem({ host, container, variable, cache }: Mount): string | null {
  if (variable !== null && !variableName.test(variable)) return `${JSON.stringify(variable)} is not the name of a variable`;
  for (const [side, path] of [
    ['host', host],
    ['container', container],
  ] as const) {
    const why = side === 'host' && isNamed(cache) ? null : pathProblem(path);
    if (why !== null) return `the ${side} path ${why}`;
  }
  const target = tidy(container);
  if (taken.has(target)) return `the container path ${target} belongs to the sandbox itself; choose another`;
  return target === '/dev/shm' ? 'set the size of /dev/shm with shm_size' : null;
}

/** The same mount, its paths in the one way of writing them that can be compared. */
export function tidyMount(mount: Mount): Mount {
  return { ...mount, host: isNamed(mount.cache) ? mount.host : tidy(mount.host), container: tidy(mount.container) };
}

/** Whether onejob keeps the folder itself. */
export function isNamed(cache: Mount['cache']): cache is { readonly name: string } {
  return cache !== null && cache.name !== null;
}

/** How a mount is written; the inverse of `parseVolume`. */
export function formatVolume(mount: Mount): string {
  const variable = mount.variable === null ? '' : `:${mount.variable}`;
  return `${mount.cache?.name ?? mount.host}:${mount.container}${variable}:${mount.readOnly ? 'ro' : 'rw'}`;
}

/** Why this is no absolute path onejob accepts; null when it is one. */
export function pathProblem(path: string): string | null {
  if (path === '') return 'is empty';
  if (path.startsWith('~')) return `must be absolute; "~" is not expanded, write the whole path instead of ${JSON.stringify(path)}`;
  if (!path.startsWith('/')) return `must be absolute, found ${JSON.stringify(path)}`;
  if ([...path].some((char) => char < ' ' || char === '\u007f')) return 'contains a control character';
  if (path.split('/').includes('..')) return `must not contain "..", found ${JSON.stringify(path)}`;
  return null;
}

function tidy(path: string): string {
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  return `/${parts.join('/')}`;
}

/** A path is never one, for it begins with a slash. */
export const cacheName = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

/** What the folder of untrusted jobs is called, where those of the agents are called as these are. */
export const untrustedFolder = 'untrusted';

/**
 * All that onejob keeps of caches that have a name instead of a path: a folder for each slot, so that no two agents write to it at the
 * same time, and those of untrusted jobs apart from all others.
 */
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
