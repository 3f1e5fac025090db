/** What sandboxes are made from where only their engine knows their image: all that the recipe says. */
import { createHash } from 'node:crypto';
import type { Recipe } from '../ports/runtime.ts';

export function recipeFingerprint(recipe: Recipe): string {
  return createHash('sha256').update(JSON.stringify(recipe)).digest('hex').slice(0, 16);
}
