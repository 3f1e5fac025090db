/**
 * Where the volumes of sandboxes lead, right before each is made. A path of a pool's volume was checked when the config was read: who
 * may write to a folder above it could put a link in its place since, to any folder of the host.
 */
import { type Guarded, hostPathProblem, mountProblemFor } from '../../config/check-mounts.ts';
import type { Config } from '../../config/config.ts';
import type { Environment } from '../../config/environment.ts';
import { contains } from '../../config/host-places.ts';
import type { Mount } from '../../ports/runtime.ts';
import { mountChanged } from '../../runtimes/mounts.ts';
import { isNamed } from '../../schema/volumes.ts';
import { type Look, lookAt } from '../../system/file-server.ts';
import { follow } from '../../system/real-path.ts';

export interface MountPlaces {
  /** The place of each mount, without links. @throws OnejobError E_MOUNT_CHANGED */
  readonly of: (mounts: readonly Mount[]) => Promise<readonly string[]>;
}

/** `look`: default: at this host. */
export function createMountPlaces(
  config: Guarded & Pick<Config, 'pools' | 'host' | 'places'>,
  env?: Pick<Environment, 'docker' | 'runtimeDir'>,
  look: (paths: readonly string[]) => Promise<ReadonlyMap<string, Look>> = lookAt,
): MountPlaces {
  const problemOfJob = mountProblemFor(config, env);
  const templates = config.pools.flatMap(({ recipe }) =>
    recipe.mounts.flatMap(({ host }) => (host.includes('{name}') ? [host] : [])),
  );
  /** Paths that the config could not check: their agents were not known, or their server did not answer. */
  const later = new Map<string, Look>();

  const lookOnce = async (path: string): Promise<Look> =>
    (await look([path])).get(path) ?? { near: path, real: null, exists: null };
  const changed = (host: string, place: string, before: string, why: string): Error =>
    mountChanged(
      `Cannot mount ${host}: it leads to ${place} now, and led to ${before} when it was checked; ${why}.`,
      'Put it back. If it is right, restart the daemon: it checks all paths again.',
    );

  const whyOutside = async ({ within }: Mount, place: string | null): Promise<string | null> => {
    if (within === undefined) return null;
    if (place === null) return 'its file server has not said where it leads';
    const folders = await look(within);
    const isIn = within.some((folder) => contains(folders.get(folder)?.real ?? folder, place));
    return isIn ? null : `the group of its owner has only ${within.join(', ')}`;
  };

  /** `real`: what was checked. Where a file server decides about the rest of its way, that is checked now. */
  const ofJob = async (mount: Mount, real: string): Promise<string> => {
    const { near, real: now } = await lookOnce(real);
    const place = now ?? near;
    const why =
      near === real
        ? (problemOfJob({ ...mount, host: place }) ?? (await whyOutside(mount, now)))
        : 'somebody has changed that since';
    if (why !== null) throw changed(mount.host, place, real, why);
    return place;
  };

  const ofPool = async (host: string): Promise<string> => {
    const { end, isOurs } = follow(host);
    const seen = config.places.get(host) ?? later.get(host);
    if (seen?.near === end && seen.real !== null) return seen.real;
    const found = await lookOnce(host);
    const place = found.real ?? found.near;
    const isFirst = seen === undefined ? templates.some((template) => isOf(template, host)) : seen.near === end;
    const before = seen?.real ?? seen?.near ?? host;
    if (!isFirst && place === before) return place;
    const hidden = isFirst || seen !== undefined ? hostPathProblem({ host: place }, config) : null;
    const why = hidden ?? (isFirst || isOurs ? null : 'other users can change that');
    if (why !== null) throw changed(host, place, before, why);
    if (isFirst && found.real !== null) later.set(host, found);
    return place;
  };

  const placeOf = async (mount: Mount): Promise<string> => {
    // Only onejob makes caches with a name.
    if (isNamed(mount.cache)) return follow(mount.host).end;
    return mount.real === undefined ? ofPool(mount.host) : ofJob(mount, mount.real);
  };

  return { of: (mounts) => Promise.all(mounts.map(placeOf)) };
}

/** Whether a path comes from a template with `{name}`. */
function isOf(template: string, path: string): boolean {
  const [start = '', ...rest] = template.split('{name}');
  return path.startsWith(start) && path.endsWith(rest.at(-1) ?? '');
}
