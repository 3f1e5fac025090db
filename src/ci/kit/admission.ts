/**
 * Decides about a job, from what the service says of it, before any of it runs; and makes the recipe of untrusted jobs: the pool's
 * without what outlives a job or weakens the sandbox. Reads the disk only to see where volumes lead.
 */
import { hash } from 'node:crypto';
import type { Config, PoolConfig, TrustConfig } from '../../config/config.ts';
import { whyNoStranger } from '../../config/host-places.ts';
import { hasImages } from '../../config/types.ts';
import type { Mount, Recipe } from '../../ports/runtime.ts';
import { isNamed, projectCachePath, untrustedCachePath } from '../../schema/volumes.ts';
import { type JobSecrets, openJobSecrets, type PinStore } from '../../secrets/job-secrets.ts';
import type { SecretKeys } from '../../secrets/keys.ts';
import { formatOf, secretsIn } from '../../secrets/open.ts';
import { looksSealed } from '../../secrets/sealed-format.ts';
import { ownFolder } from './mounted.ts';
import { normalRepository } from './repository.ts';
import { decideTrust, type Origin, sourceRepository, type TrustFacts } from './trust.ts';

/** `F`: what the service says of the job. */
export type Admission<F extends TrustFacts = TrustFacts> =
  | {
      readonly kind: 'run';
      readonly trusted: boolean;
      /** Why it is untrusted, as lines for its log; null: it is trusted. */
      readonly why: string | null;
      readonly facts: F;
      readonly secrets: JobSecrets['opened'];
    }
  /** `reason`: lines for the job's log. */
  | { readonly kind: 'refused'; readonly facts: F; readonly reason: string };

export interface AdmissionParts {
  readonly trust: TrustConfig;
  /** Whether trusted jobs of the pool have an engine of their own. Default false. */
  readonly containers?: boolean;
  /** Read for each job that has secrets; null: config has no key. @throws OnejobError E_SECRET, E_SECRET_KEY */
  readonly keys: () => Promise<SecretKeys | null>;
  readonly pins: PinStore;
}

/** `env`: the job's, as the service gave it. @throws OnejobError when the key is unreadable, which is not the job's fault */
export async function admitJob<F extends TrustFacts>(
  facts: F,
  env: Readonly<Record<string, string>>,
  { trust, containers = false, keys, pins }: AdmissionParts,
): Promise<Admission<F>> {
  const verdict = decideTrust(facts, trust);
  if (verdict.kind === 'refused') return { kind: 'refused', facts, reason: verdict.why };
  if (verdict.kind === 'untrusted') {
    const why = containers && trust.containers === 'refuse' ? `${verdict.why}\n${noEngine}` : verdict.why;
    return { kind: 'run', trusted: false, why, facts, secrets: [] };
  }
  const written = secretsIn(env);
  // An unreadable key must not stop jobs without secrets.
  const opener = written.length === 0 ? null : await keys();
  if (opener === null) {
    // A variable of that name with a plain value is the pipeline's own business.
    const encrypted = written.filter(({ text }) => looksSealed(text) || formatOf(text) !== null);
    if (encrypted.length > 0)
      return { kind: 'refused', facts, reason: encrypted.map(({ variable }) => withoutKey(variable)).join('\n') };
    return { kind: 'run', trusted: true, why: null, facts, secrets: [] };
  }
  const { organisation, pipeline } = facts;
  const { opened, refused } = await openJobSecrets({ env, organisation, pipeline, keys: opener, pins });
  if (refused.length > 0) return { kind: 'refused', facts, reason: refused.map(({ why }) => why).join('\n') };
  return { kind: 'run', trusted: true, why: null, facts, secrets: opened };
}

const noEngine = 'It has no engine for containers (rule "trust.containers: refuse").';

function withoutKey(variable: string): string {
  return `${variable} is encrypted, but the config of the host has no "secrets.key" to decrypt it.`;
}

/** Whether such a job of the pool has an engine for containers of its own. */
export function hasEngine(
  pool: Pick<PoolConfig, 'recipe' | 'trust'> | undefined,
  { trusted }: { readonly trusted: boolean },
): boolean {
  return pool?.recipe.containers !== undefined && (trusted || pool.trust.containers === 'allow');
}

/** What a job with this admission has in the place of the pool's recipe, which is expanded for the slot; null: that one. */
export function recipeOf(
  recipe: Recipe,
  pool: PoolConfig,
  admission: Extract<Admission, { kind: 'run' }>,
  stateDir: string,
  places: Config['places'],
): Recipe | null {
  if (!admission.trusted) return untrustedRecipe(recipe, pool, cacheKeyOf(admission), stateDir, places, projectOf(admission));
  return hasProjectCaches(pool) ? { ...recipe, mounts: ofProject(recipe.mounts, pool, projectOf(admission)) } : null;
}

const hasProjectCaches = ({ cacheFor, recipe }: Pick<PoolConfig, 'cacheFor' | 'recipe'>): boolean =>
  cacheFor === 'project' && recipe.mounts.some(({ cache }) => isNamed(cache));

/** Named caches as the trusted jobs of a project have them. A job of an unknown project has none. */
function ofProject(mounts: readonly Mount[], { cacheFor }: Pick<PoolConfig, 'cacheFor'>, project: string | null): Mount[] {
  return mounts.flatMap((mount) => {
    if (cacheFor === 'slot' || !isNamed(mount.cache)) return [mount];
    return project === null ? [] : [{ ...mount, host: projectCachePath(mount.host, project) }];
  });
}

/** The project of a job, of which a pull request of a fork is one, too: nothing that its author can choose. null: unknown. */
export function projectOf({ facts }: { readonly facts: TrustFacts }): string | null {
  if (facts.pipeline !== null) return facts.organisation === null ? facts.pipeline : `${facts.organisation}/${facts.pipeline}`;
  return facts.repository === null ? null : normalRepository(facts.repository);
}

/** `recipe`: the pool's, expanded for the slot, with its image. `key`: of its caches (`cacheKeyOf`); null: it has none. */
export function untrustedRecipe(
  recipe: Recipe,
  pool: Pick<PoolConfig, 'name' | 'runtime' | 'trust' | 'cacheFor'>,
  key: string | null,
  stateDir: string,
  places: Config['places'],
  project: string | null = null,
): Recipe {
  const { trust, name } = pool;
  const own = trust.caches === 'private' ? key : null;
  const keep = (mount: Mount): Mount[] => {
    // What onejob adds itself: hooks and the agent's program must not be left out because a server is slow.
    const known = mount.container.startsWith(`${ownFolder}/`) ? null : places;
    if (mount.cache === null) return whyNoStranger(mount.host, known) === null ? [{ ...mount, readOnly: true }] : [];
    if (trust.caches === 'read' && isNamed(mount.cache)) return ofProject([{ ...mount, readOnly: true }], pool, project);
    return own === null || !isNamed(mount.cache)
      ? []
      : [{ ...mount, host: untrustedCachePath(stateDir, name, own, mount.cache.name) }];
  };
  const isImage = hasImages({ runtime: pool.runtime, recipe });
  const { containers, ...plain } = recipe;
  return {
    ...plain,
    ...(containers !== undefined &&
      hasEngine({ recipe, trust }, { trusted: false }) && { containers: { ...containers, untrusted: true } }),
    image: !isImage ? recipe.image : (trust.image ?? recipe.image),
    mounts: recipe.mounts.flatMap(keep),
    // A process has its host's network, which config allows untrusted jobs only without isolation.
    network: !isImage ? recipe.network : trust.network,
    ...(trust.oci_runtime !== null && { ociRuntime: trust.oci_runtime }),
    capAdd: [],
    unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
  };
}

/** Whether a job with this admission needs another sandbox than the standby. */
export function wantsOther(
  pool: PoolConfig | undefined,
  admission: Extract<Admission, { kind: 'run' }>,
  stateDir: string,
  places: Config['places'],
) {
  if (admission.trusted) return pool !== undefined && hasProjectCaches(pool);
  if (pool === undefined) return true;
  // A template's path is known only for a slot.
  if (pool.recipe.mounts.some(({ host, cache }) => cache === null && host.includes('{name}'))) return true;
  return JSON.stringify(recipeOf(pool.recipe, pool, admission, stateDir, places)) !== JSON.stringify(pool.recipe);
}

/** Whether the sandbox of a job with this admission has another image than its pool's. */
export function hasOwnImage(pool: PoolConfig | undefined, { trusted }: Extract<Admission, { kind: 'run' }>): boolean {
  const image = pool?.trust.image ?? null;
  return !trusted && image !== null && image !== pool?.recipe.image;
}

/**
 * The source of an untrusted job in names of folders: hex digits, the same for all addresses of a repository; null: unknown. A
 * fork's job may have triggered a build of any repository, so triggered builds do not share its caches.
 */
export function cacheKeyOf({ facts }: { readonly facts: Origin }): string | null {
  const repository = sourceRepository(facts);
  const normal = repository === null ? null : normalRepository(repository);
  if (normal === null) return null;
  return hash('sha256', facts.triggeredBy === null ? normal : `triggered ${normal}`).slice(0, 32);
}
