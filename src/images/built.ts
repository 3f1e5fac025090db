/**
 * Which images this installation has built, by id. An image's labels and names say whatever its maker wrote, so they only find what
 * was built: a pulled image with the labels of a pool's recipe would otherwise get all jobs of that pool.
 *
 * An empty file for each id, in a folder that only this user can write: a daemon and a command may build at the same time.
 */
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { attempt } from '../base/errors.ts';

export class BuiltImages {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  has(id: string): boolean {
    return existsSync(this.#fileOf(id));
  }

  /** To be called before anything uses the image. A power cut that loses it costs one more build. */
  add(id: string): void {
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    const fd = openSync(this.#fileOf(id), 'w', 0o600);
    fsyncSync(fd);
    closeSync(fd);
  }

  /** Forgets all but these, which are what is left on the Engine. */
  keepOnly(ids: readonly string[]): void {
    const kept = new Set(ids.map((id) => this.#fileOf(id)));
    for (const name of attempt(() => readdirSync(this.#folder)) ?? []) {
      const path = join(this.#folder, name);
      if (!kept.has(path)) rmSync(path, { force: true });
    }
  }

  #fileOf(id: string): string {
    return join(this.#folder, id.replaceAll(/[^\w]/g, '-'));
  }
}
