/**
 * The recipe class of untrusted jobs: the pool's recipe without what outlives a job, without what weakens the sandbox, and with
 * what the owner wants to be otherwise for them. Changes nothing; looks at the disk, to see where volumes lead.
 */
import { createHash } from 'node:crypto';
import { untrustedCachePath } from '../../config/caches.ts';
import type { PoolConfig } from '../../config/config.ts';
import { whyNoStranger } from '../../config/host-places.ts';
import { isNamed } from '../../config/volumes.ts';
import type { Mount, Recipe } from '../../runtimes/runtime.ts';
import { normalRepository } from './repository.ts';
import type { Ruling } from './ruling.ts';
import { sourceRepository } from './trust.ts';

/**
 * `recipe`: the pool's, expanded for the slot, its image chosen. `repository`: where the job is from (`sourceRepository`); null when
 * nobody knows, then it has no caches at all.
 */
export function untrustedRecipe(
  recipe: Recipe,
  pool: Pick<PoolConfig, 'name' | 'runtime' | 'trust'>,
  repository: string | null,
  stateDir: string,
): Recipe {
  const { trust, name } = pool;
  const own = trust.caches === 'private' ? repositoryKey(repository) : null;
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
  return JSON.stringify(untrustedRecipe(pool.recipe, pool, repositoryOf(ruling), stateDir)) !== JSON.stringify(pool.recipe);
}

/** Where an untrusted job is from; null while nothing is decided about it. */
export function repositoryOf(ruling: Ruling | undefined): string | null {
  return ruling === undefined ? null : sourceRepository(ruling.facts);
}

/** What stands for a repository in the names of folders: hex digits, the same for all addresses of it. */
export function repositoryKey(repository: string | null): string | null {
  const normal = repository === null ? null : normalRepository(repository);
  return normal === null ? null : createHash('sha256').update(normal).digest('hex').slice(0, 32);
}
