/** Sandboxes for CI services that look from within whether their agents could work; see `Trial`. */
import type { Trial } from '../ci/trial.ts';
import { OnejobError } from '../errors.ts';
import type { Recipe, Runtime } from '../runtimes/runtime.ts';
import type { Asker } from './ask.ts';
import { type Pool, poolRecipe } from './pool.ts';

export interface TrialParts {
  readonly pools: () => readonly Pool[];
  /** Agents' names by slot. */
  readonly nameOf: (key: string) => string;
  /** The image of a pool that names none itself, as it is known now; null while it is not. */
  readonly imageOf: (pool: string) => string | null;
  readonly asker: Pick<Asker, 'look'>;
}

export function createTrial({ pools, nameOf, imageOf, asker }: TrialParts): Trial {
  return {
    like(name, change = (recipe) => recipe) {
      const pool = pools().find(({ config }) => config.name === name);
      if (pool === undefined) return null;
      const { runtime } = pool;
      const slot = `${name}/1`;
      const agentName = nameOf(slot);
      const base = poolRecipe(pool, agentName);
      const image = base.image ?? (runtime.capabilities.images ? imageOf(name) : null);
      const recipe = change({ ...base, image });
      if (runtime.capabilities.images && recipe.image === null) return null;
      return {
        recipe,
        hasImage: runtime.capabilities.images,
        kind: JSON.stringify([runtime.name, recipe]),
        async ask(script, signal) {
          await mustBeThere(runtime, recipe, signal);
          // It is there: a look fetches nothing newer.
          const own: Recipe = { ...withoutCaches(recipe, runtime), pull: 'never' };
          const spec = { agent: '', pool: name, slot, name: agentName, recipe: own, devices: [] };
          return asker.look({ runtime, spec, script }, signal);
        },
        door: (port, signal) => runtime.door(recipe.network, port, signal),
      };
    },
  };
}

async function mustBeThere(runtime: Runtime, recipe: Recipe, signal: AbortSignal): Promise<void> {
  if ((await runtime.fingerprint(recipe, signal)) !== null) return;
  throw new OnejobError('E_IMAGE_NOT_FOUND', `Image "${recipe.image}" is not here yet.`, {
    hint: `It is fetched for the first agent; ask again then, or type "docker pull ${recipe.image}" now.`,
  });
}

/** They are the jobs' own, and one may be at them right now. Where an image is, something empty that can be written to takes their place. */
function withoutCaches(recipe: Recipe, { capabilities }: Runtime): Recipe {
  const mounts = recipe.mounts.filter(({ cache }) => cache === null);
  if (!capabilities.images) return { ...recipe, mounts };
  const empty = recipe.mounts.flatMap(({ cache, container }) => (cache === null ? [] : [[container, 'exec,size=16m'] as const]));
  return { ...recipe, mounts, tmpfs: { ...recipe.tmpfs, ...Object.fromEntries(empty) } };
}
