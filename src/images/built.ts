/**
 * Which images this installation has built, by id. An image's labels and names say whatever its maker wrote, so they only find what
 * was built: a pulled image with the labels of a pool's recipe would otherwise get all jobs of that pool.
 *
 * An empty file for each id, in a folder that only this user can write: a daemon and a command may build at the same time.
 */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { attempt } from '../base/errors.ts';

export interface BuiltImages {
  has(id: string): boolean;
  /** To be called before anything uses the image. A power cut that loses it costs one more build. */
  add(id: string): void;
  /** Forgets all but these, which are what is left on the Engine. */
  keepOnly(ids: readonly string[]): void;
}

export function openBuiltImages(folder: string): BuiltImages {
  const fileOf = (id: string): string => join(folder, id.replaceAll(/[^\w]/g, '-'));
  return {
    has: (id) => existsSync(fileOf(id)),
    add(id) {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
      const fd = openSync(fileOf(id), 'w', 0o600);
      fsyncSync(fd);
      closeSync(fd);
    },
    keepOnly(ids) {
      const kept = new Set(ids.map(fileOf));
      for (const name of attempt(() => readdirSync(folder)) ?? []) {
        if (!kept.has(join(folder, name))) rmSync(join(folder, name), { force: true });
      }
    },
  };
}
