/**
 * The recipe class of untrusted jobs: the pool's recipe without what outlives a job, without what weakens the sandbox, and with
 * what the owner wants to be otherwise for them. Changes nothing; looks at the disk, to see where volumes lead.
 */
import { createHash } from 'node:crypto';
import type { PoolConfig } from '../../config/config.ts';
import { whyNoStranger } from '../../config/host-places.ts';
import { isNamed, untrustedCachePath } from '../../config/volumes.ts';
import type { Mount, Recipe } from '../../runtimes/runtime.ts';
import { normalRepository } from './repository.ts';
import type { Ruling } from './ruling.ts';
import { sourceRepository } from './trust.ts';

/**
 * `recipe`: the pool's, expanded for the slot, its image chosen. `key`: what its caches are kept under (`cacheKeyOf`); null: it has
 * none at all.
 */
export function untrustedRecipe(
  recipe: Recipe,
  pool: Pick<PoolConfig, 'name' | 'runtime' | 'trust'>,
  key: string | null,
  stateDir: string,
): Recipe {
  const { trust, name } = pool;
  const own = trust.caches === 'private' ? key : null;
  const keep = (mount: Mount): Mount[] => {
    if (mount.cache === null) return whyNoStranger(mount.host) === null ? [{ ...mount, readOnly: true }] : [];
    return own === null || !isNamed(mount.cache)
      ? []
      : [{ ...mount, host: untrustedCachePath(stateDir, name, own, mount.cache.name) }];
  };
  return {
    ...recipe,
    image: pool.runtime === 'process' ? recipe.image : (trust.image ?? recipe.image),
    mounts: recipe.mounts.flatMap(keep),
    // A process has its host's, which config gives to untrusted jobs only where isolation is given up.
    network: pool.runtime === 'process' ? recipe.network : trust.network,
    capAdd: [],
    unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
  };
}

/** Whether a job that was ruled so needs another sandbox than the one that waits. */
export function wantsOther(pool: PoolConfig | undefined, ruling: Extract<Ruling, { kind: 'run' }>, stateDir: string): boolean {
  if (ruling.trusted) return false;
  if (pool === undefined) return true;
  // What lies at a template's path is known for a slot only.
  if (pool.recipe.mounts.some(({ host, cache }) => cache === null && host.includes('{name}'))) return true;
  return JSON.stringify(untrustedRecipe(pool.recipe, pool, cacheKeyOf(ruling), stateDir)) !== JSON.stringify(pool.recipe);
}

/**
 * What stands for the source of an untrusted job in the names of folders: hex digits, the same for all addresses of a repository;
 * null when nobody knows. A job of a fork may have triggered a build of any repository: such builds do not share its caches.
 */
export function cacheKeyOf({ facts }: Pick<Ruling, 'facts'>): string | null {
  const repository = sourceRepository(facts);
  const normal = repository === null ? null : normalRepository(repository);
  if (normal === null) return null;
  const source = facts.triggeredBy === null ? normal : `triggered ${normal}`;
  return createHash('sha256').update(source).digest('hex').slice(0, 32);
}
