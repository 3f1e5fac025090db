/** For tests of the process runtime: a recipe, and a look at what of an owner is left on the host. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Recipe } from '../../src/ports/runtime.ts';
import { bareRecipe } from './recipe.ts';

export const plainRecipe: Recipe = { ...bareRecipe, env: { LANG: 'C.UTF-8' }, pids: 4096, oomScoreAdj: 500 };

/** Everything the runtime could leave behind for this owner: folders, control groups, user claims, open folders. */
export function leftoversOf(dir: string, owner: string): string[] {
  const within = (path: string): string[] => (existsSync(path) ? readdirSync(path).map((name) => join(path, name)) : []);
  const groups = within('/sys/fs/cgroup').map((mount) => join(mount, 'onejob', owner));
  const others = [...groups, join('/sys/fs/cgroup/onejob', owner), `/var/lib/onejob-agents-${owner}`];
  return [...within(join(dir, 'agents')), ...within(join(dir, 'exits')), ...others.filter((path) => existsSync(path))];
}
