/** Whether sandboxes of a pool are made from images; for one that leaves the runtime open, whether they may be. */
import type { Recipe } from '../ports/runtime.ts';
import type { PoolConfig } from './config.ts';

export function hasImages({ runtime, recipe }: Pick<PoolConfig, 'runtime'> & { readonly recipe: Pick<Recipe, 'wants'> }): boolean {
  return recipe.wants?.images ?? runtime !== 'process';
}
