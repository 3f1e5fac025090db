/** Volumes and caches as people write them: `HOST:CONTAINER[:VARIABLE][:ro|rw]`, for a cache also `NAME:CONTAINER…`. */
import { basename, dirname, join } from 'node:path';
import { fileNameOf } from '../base/file-name.ts';
import type { Parsed } from '../base/units.ts';
import type { Mount } from '../ports/runtime.ts';

const variableName = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** What Docker and Podman accept after the container path, in addition to `ro` and `rw`. */
const engineOptions = new Set(
  'z Z U cached consistent delegated copy nocopy shared rshared slave rslave private rprivate unbindable runbindable exec noexec suid nosuid dev nodev O idmap upperdir workdir'.split(
    ' ',
  ),
);
/** Places that belong to the sandbox itself. */
const taken = new Set(['/', '/dev', '/proc', '/sys', '/workspace']);

/**
 * Parses a volume or a cache. Paths must be absolute, and may contain spaces, but no colon, no `..` and no control characters. A
 * volume is read-only by default, and a cache writable. If a cache has a name instead of the host path, `host` is that name for
 * now.
 */
export function parseVolume(text: string, as: 'volume' | 'cache' = 'volume'): Parsed<Mount> {
  const form = `${as === 'cache' ? 'NAME:CONTAINER or ' : ''}HOST:CONTAINER[:VARIABLE][:ro|rw]`;
  const no = (why: string) => ({ ok: false, why: `${JSON.stringify(text)}: ${why}` }) as const;
  const [host = '', container, ...rest] = text.split(':');
  if (container === undefined) return no(`has no container path; write ${form}`);
  const last = rest.at(-1);
  const option = last?.split(',').find((word) => engineOptions.has(word));
  if (option !== undefined) {
    const variable = last === option && variableName.test(option) ? `; for a variable of that name, write ":${option}:ro"` : '';
    return no(`"${option}" is an option of Docker that onejob does not have; leave it out${variable}`);
  }
  const written = last === 'ro' || last === 'rw' ? last : null;
  if (written !== null) rest.pop();
  const [variable = null, ...extra] = rest;
  const mistyped = written === null && last !== undefined && rest.length <= 2 ? meantMode(last) : null;
  if (mistyped !== null) {
    const why = rest.length === 1 ? ` For a variable of that name, write ":${last}:${mistyped}"` : '';
    return no(`"${last}" looks like a mode; did you mean "${mistyped}"?${why}`);
  }
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

/** The mode that somebody mistyped; null for what can be the name of a variable, which is usually in capitals. */
function meantMode(word: string): 'ro' | 'rw' | null {
  if (!/^(RO|RW|WR)$/.test(word) && word === word.toUpperCase()) return null;
  const small = word.toLowerCase();
  if (/^(?=.*[rw])[rowx]{1,3}$/.test(small)) return small.includes('w') ? 'rw' : 'ro';
  if (/^read(_?only)?$/.test(small)) return 'ro';
  return /^(write|writable|read_?write)$/.test(small) ? 'rw' : null;
}

/** Why a mount is invalid, whatever is at its host path; null when it is valid. */
export function mountPathProblem({ host, container, variable, cache }: Mount): string | null {
  if (variable !== null && !variableName.test(variable)) return `${JSON.stringify(variable)} is not the name of a variable`;
  const hostProblem = isNamed(cache) ? null : pathProblem(host);
  if (hostProblem !== null) return `the host path ${hostProblem}`;
  const why = pathProblem(container);
  if (why !== null) return `the container path ${why}`;
  const target = tidy(container);
  if (taken.has(target)) return `the container path ${target} belongs to the sandbox itself; choose another`;
  return target === '/dev/shm' ? 'set the size of /dev/shm with shm_size' : null;
}

/** The same mount with normalised paths, which can be compared. */
export function tidyMount(mount: Mount): Mount {
  return { ...mount, host: isNamed(mount.cache) ? mount.host : tidy(mount.host), container: tidy(mount.container) };
}

/** Whether onejob keeps the folder of the cache. */
export function isNamed(cache: Mount['cache']): cache is { readonly name: string } {
  return cache !== null && cache.name !== null;
}

/** The inverse of `parseVolume`. */
export function formatVolume(mount: Mount): string {
  const variable = mount.variable === null ? '' : `:${mount.variable}`;
  return `${mount.cache?.name ?? mount.host}:${mount.container}${variable}:${mount.readOnly ? 'ro' : 'rw'}`;
}

/** Why onejob does not accept it as an absolute path; null when it does. */
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

/** Never matches a path, which begins with a slash. */
const cacheName = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;

/** The folder of untrusted jobs, next to those with names of agents. */
export const untrustedFolder = 'untrusted';

/** All named caches: a folder for each slot, so that no two agents write to one at once, and separate ones for untrusted jobs. */
export function cachesFolder(stateDir: string): string {
  return join(stateDir, 'caches');
}

/** The folder of a named cache. `agent`: the slot's name, or `{name}`. */
export function cachePath(stateDir: string, pool: string, agent: string, cache: string): string {
  return join(cachesFolder(stateDir), pool, agent, cache);
}

/** The same for the jobs of one project. `path`: of the slot's own cache. No agent has such a name. */
export function projectCachePath(path: string, project: string): string {
  return join(`${dirname(path)}@${fileNameOf(project)}`, basename(path));
}

/** The same for untrusted jobs of one repository. `repository`: hex digits that stand for it. */
export function untrustedCachePath(stateDir: string, pool: string, repository: string, cache: string): string {
  return join(cachesFolder(stateDir), pool, untrustedFolder, repository, cache);
}
