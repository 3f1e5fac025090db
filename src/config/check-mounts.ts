/** Checks of mounts: no path and no variable twice, and nothing that must stay outside of sandboxes (S8). Links are followed. */
import { join } from 'node:path';
import type { Mount } from '../ports/runtime.ts';
import { formatPath, type Path } from '../schema/problem.ts';
import { slotNames } from '../schema/template.ts';
import { isNamed, mountPathProblem, pathProblem } from '../schema/volumes.ts';
import type { Look } from '../system/file-server.ts';
import { realOf } from '../system/real-path.ts';
import type { Checking } from './checking.ts';
import type { Config, PoolConfig } from './config.ts';
import type { Environment } from './environment.ts';
import { contains, engineSockets, shows } from './host-places.ts';
import { peopleFolder, readGroup, sharedSocket } from './paths.ts';

/** What a path is for each agent of the pool. Unknown while their number is: it stays as it is written. */
export function pathsOf({ name, agents }: PoolConfig, path: string, nameOf: (slot: string) => string): string[] {
  if (!path.includes('{name}') || agents === 'per-device') return [path];
  return Array.from({ length: agents }, (_, at) => path.replaceAll('{name}', nameOf(`${name}/${at + 1}`)));
}

export function checkMounts(pool: PoolConfig, checking: Checking): void {
  const { written, config, inPool, sound } = checking;
  const whyNot = (host: string): string | null => {
    const places = [host, ...pathsOf(pool, host, slotNames(config)).flatMap((path) => config.places.get(path)?.real ?? [])];
    return places.map((place) => hostPathProblem({ host: place }, config)).find((why) => why !== null) ?? null;
  };
  for (const key of ['hooks', 'plugins'] as const) {
    const host = sound(pool, key) ? pool[key] : null;
    const why = host === null ? null : whyNot(host);
    if (why !== null) inPool(pool, [key], why);
    else if (host !== null) warnMissing(pool, [key], host, checking);
  }
  if (!sound(pool, 'volumes', 'caches')) return;
  const { volumes: list = [], cpu_env: cpuVariable } = written.pools?.get(pool.name) ?? written.defaults;
  const volumes = list.length;
  const paths = new Map<string, string>();
  const variables = new Map(Object.keys(pool.recipe.env).map((name) => [name, name === cpuVariable ? 'cpu_env' : `env.${name}`]));
  for (const [index, mount] of pool.recipe.mounts.entries()) {
    const path: Path = index < volumes ? ['volumes', index] : ['caches', index - volumes];
    const other = paths.get(mount.container);
    if (other !== undefined) inPool(pool, path, `uses the container path ${mount.container}, which ${other} already uses`);
    paths.set(mount.container, formatPath(path));
    const setBy = mount.variable === null ? undefined : variables.get(mount.variable);
    if (setBy !== undefined) inPool(pool, path, `sets the variable ${mount.variable}, which ${setBy} already sets`);
    if (mount.variable !== null) variables.set(mount.variable, formatPath(path));
    const why = isNamed(mount.cache) ? null : whyNot(mount.host);
    if (why !== null) inPool(pool, path, why);
    else if (!isNamed(mount.cache)) warnMissing(pool, path, mount.host, checking);
    if (why === null && /^\/(var\/)?run\/docker\.sock$/.test(mount.host)) {
      inPool(pool, path, 'gives every job of the pool all rights over this host', 'warning');
    }
  }
  for (const container of Object.keys(pool.recipe.tmpfs)) {
    const path = ['tmpfs', container];
    const why = pathProblem(container);
    if (why !== null) inPool(pool, path, why);
    const other = paths.get(container);
    if (other !== undefined) inPool(pool, path, `uses the container path ${container}, which ${other} already uses`);
  }
}

/**
 * What jobs can write to must not decide what another volume is: a job could put a link there, to any folder of the host, and the next
 * agent would have that. Over all pools of a host, since a job of one decides for the agents of another.
 */
export function checkNesting({ config, inPool, sound, root }: Checking): void {
  const open = writableOf(config, root);
  for (const pool of config.pools) {
    if (!sound(pool, 'volumes', 'caches')) continue;
    const folders = hostFoldersOf(pool).map(({ mount: { host }, path }) => ({ host, path }));
    for (const key of ['hooks', 'plugins'] as const) {
      const host = sound(pool, key) ? pool[key] : null;
      if (host !== null) folders.push({ host, path: [key] });
    }
    for (const { host, path } of folders) {
      const own = placesOf(pool, host, config);
      const above = open.find((one) => liesIn(own, one.places));
      if (above !== undefined) inPool(pool, path, inWritable(above, 'move it, or mount only that folder'));
    }
  }
}

interface Writable {
  readonly host: string;
  readonly places: readonly string[];
  /** Where it is written. */
  readonly key: string;
}

/** Folders of the host that jobs of some pool can write to. */
function writableOf(config: Pick<Config, 'pools' | 'host' | 'places'>, root: Path = ['pools']): readonly Writable[] {
  return config.pools.flatMap((pool) =>
    hostFoldersOf(pool).flatMap(({ mount: { host, readOnly }, path }) =>
      readOnly ? [] : [{ host, places: placesOf(pool, host, config), key: formatPath([...root, pool.name, ...path]) }],
    ),
  );
}

/** A pool's mounts of folders that onejob does not keep itself. */
function hostFoldersOf({ recipe }: Pick<PoolConfig, 'recipe'>): { readonly mount: Mount; readonly path: Path }[] {
  const volumes = recipe.mounts.filter(({ cache }) => cache === null).length;
  return recipe.mounts.flatMap((mount, index): { mount: Mount; path: Path }[] => {
    if (isNamed(mount.cache)) return [];
    return [{ mount, path: mount.cache === null ? ['volumes', index] : ['caches', index - volumes] }];
  });
}

/** The same, as written and with links resolved. */
function placesOf(pool: PoolConfig, host: string, config: Pick<Config, 'pools' | 'host' | 'places'>): readonly string[] {
  const written = pathsOf(pool, host, slotNames(config));
  return [...new Set(written.flatMap((path) => [path, config.places.get(path)?.real ?? realOf(path)]))];
}

function inWritable({ host, key }: Writable, advice: string): string {
  return `lies in ${host}, which jobs can write to (${key}): a job could replace it by a link to any folder of this host; ${advice}`;
}

/** Whether one of the paths is below one of the folders. */
function liesIn(paths: readonly string[], folders: readonly string[]): boolean {
  return paths.some((path) => folders.some((folder) => path !== folder && contains(folder, path)));
}

/** Without the path no agent of the pool can start, which otherwise only `up` would find out. */
function warnMissing(pool: PoolConfig, path: Path, host: string, { config, inPool }: Checking): void {
  const warn = (found: (look: Look) => boolean, what: string): void => {
    const place = pathsOf(pool, host, slotNames(config)).find((each) => {
      const look = config.places.get(each);
      return look !== undefined && found(look);
    });
    if (place !== undefined) inPool(pool, path, `is ${place}, ${what}`, 'warning');
  };
  // Nobody knows the number of slots yet, or what hosts of an engine have.
  if ((host.includes('{name}') && pool.agents === 'per-device') || pool.recipe.wants !== undefined) return;
  warn(({ exists }) => exists === false, 'which does not exist on this host; no agent can start until it exists');
  warn(({ real }) => real === null, 'on a file server that does not answer; no agent can start until it does');
}

/** The parts of a config with places that no job may see. */
export type Guarded = Pick<Config, 'stateDir' | 'socket' | 'secrets' | 'places'> & Partial<Pick<Config, 'people'>>;

/** Why no job may see this host path, in volumes of a pool or of a job; null when it may. */
export function hostPathProblem(mount: Pick<Mount, 'host'>, config: Guarded): string | null {
  /** Also where a link on a file server leads. */
  const waysOf = (path: string): readonly string[] => [path, config.places.get(path)?.real ?? path];
  const isShown = (path: string): boolean => waysOf(path).some((way) => shows(mount.host, way));
  for (const [key, secret] of config.secrets) {
    if (secret.kind === 'file' && isShown(secret.path)) {
      return `would show jobs the secret file of ${key}, ${secret.path}; move the secret, or choose a narrower folder`;
    }
  }
  if (isShown(config.stateDir) || waysOf(config.stateDir).some((way) => shows(way, mount.host))) {
    return `shows jobs the state of onejob, because "state_dir" is ${config.stateDir}; choose another folder`;
  }
  // Everyone who can open the socket may do everything that onejob may, and each person's what that person may.
  const people = config.people != null;
  const sockets = [config.socket, ...(readGroup() === null && !people ? [] : [sharedSocket(config.stateDir)])];
  const folders = people ? sockets.map(peopleFolder) : [];
  const inside = folders.find((folder) => isShown(folder) || shows(folder, mount.host));
  const socket = sockets.find(isShown) ?? inside;
  return socket === undefined ? null : `would let jobs talk to onejob, because its socket is ${socket}; choose another folder`;
}

/**
 * Why a job of the own queue may not bring a volume: as for a pool, and no Engine socket and no processes of this host. `env` says
 * where the Engine listens.
 */
export function mountProblemFor(
  config: Guarded & Pick<Config, 'pools' | 'host' | 'places'>,
  env?: Pick<Environment, 'docker' | 'runtimeDir'>,
): (mount: Mount) => string | null {
  const host = env?.docker.host ?? null;
  const sockets = [
    ...engineSockets,
    ...(host?.startsWith('unix://') ? [host.slice('unix://'.length)] : []),
    ...(env?.runtimeDir ? [join(env.runtimeDir, 'docker.sock'), join(env.runtimeDir, 'podman', 'podman.sock')] : []),
  ];
  const open = writableOf(config);
  return (mount) => {
    const why = mountPathProblem(mount);
    if (why !== null) return why;
    if (/^\/(proc|sys|dev)\//.test(mount.container)) return `the container path ${mount.container} belongs to the sandbox itself`;
    const shown = hostPathProblem(mount, config);
    if (shown !== null) return `it ${shown}`;
    const above = open.find(({ places }) => liesIn([mount.host, realOf(mount.host)], places));
    if (above !== undefined) return `it ${inWritable(above, 'name a folder elsewhere')}`;
    const real = realOf(mount.host);
    const socket = sockets.find((path) => contains(real, realOf(path)));
    if (socket !== undefined)
      return `it would give the job all rights over this host through ${socket}; only a pool may mount that`;
    return contains('/proc', real) ? 'it would show the job the processes of this host' : null;
  };
}
