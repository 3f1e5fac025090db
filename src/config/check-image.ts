/** What a recipe for an image needs of this host: a mistake keeps its pool from starting and no other, so it is a warning. */
import { accessSync, constants, statSync } from 'node:fs';
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';

export function checkImage(pool: PoolConfig, { sound, inPool }: Checking): void {
  const { base = null, dockerfile: path = null } = pool.imageRecipe ?? {};
  // With a base as well it is said that one of the two must go.
  if (path === null || base !== null || !sound(pool, 'image')) return;
  const why = unreadable(path);
  if (why !== null) inPool(pool, ['image', 'dockerfile'], `${path} ${why}: the image could not be built`, 'warning');
}

function unreadable(path: string): string | null {
  try {
    if (!statSync(path).isFile()) return 'is not a file';
    accessSync(path, constants.R_OK);
    return null;
  } catch (error) {
    const isMissing = error instanceof Error && 'code' in error && error.code === 'ENOENT';
    return isMissing ? 'does not exist' : 'cannot be read by this user';
  }
}
