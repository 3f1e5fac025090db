/** Folders in each other, longer than any path may be. */
import { closeSync, mkdirSync, openSync, writeFileSync } from 'node:fs';

export function nest(top: string, depth: number, name = 'd'): void {
  let folder = openSync(top, 'r');
  for (let n = 0; n < depth; n++) {
    mkdirSync(`/proc/self/fd/${folder}/${name}`);
    const next = openSync(`/proc/self/fd/${folder}/${name}`, 'r');
    closeSync(folder);
    folder = next;
  }
  writeFileSync(`/proc/self/fd/${folder}/end`, 'x');
  closeSync(folder);
}
