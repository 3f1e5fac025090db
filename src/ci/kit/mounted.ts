/** Agents' programs as sandboxes find them. */
import type { Mount, Recipe } from '../../runtimes/runtime.ts';

/** Where onejob mounts what it adds. No image and no host has this folder. */
export const ownFolder = '/onejob';

export const readOnlyMount = (host: string, container: string): Mount => ({
  ...{ host, container },
  ...{ readOnly: true, variable: null, cache: null },
});

/** Adds the program `name` of a folder of this host; null: the image brings its own. */
export function mounted(recipe: Recipe, folder: string | null, name: string): Recipe {
  if (folder === null) return recipe;
  return { ...recipe, mounts: [...recipe.mounts, readOnlyMount(`${folder}/${name}`, `${ownFolder}/${name}`)] };
}
