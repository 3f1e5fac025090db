/**
 * Programs of this host that agents need on their node, such as the agent of a CI service. Each has a folder that its version and
 * checksum name, so it is brought once and never changes.
 *
 * ```
 * FOLDER/OWNER/programs/KEY/NAME             on a shared file system
 * NODE_FOLDER/onejob-OWNER-programs/KEY/NAME on each node, where nothing is shared
 * ```
 */
import { constants } from 'node:fs';
import { copyFile, mkdtemp, readdir, rename, stat, utimes } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { quoted } from '../../base/quoted.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { removeTree } from '../../system/foreign-tree.ts';
import { programFiles } from '../programs.ts';

export interface Program {
  /** Path here. */
  readonly file: string;
  /** Where the sandbox sees it. */
  readonly container: string;
  /** The path below a folder for programs: `KEY/NAME`. */
  readonly path: string;
}

/** Days after its last use when a program is removed. */
const kept = 7;

/** @throws OnejobError E_MOUNT_MISSING if one is not there yet */
export async function programsOf(recipe: Pick<Recipe, 'mounts'>): Promise<Program[]> {
  const found = await programFiles(recipe);
  return found.map((one) => ({ ...one, path: join(basename(dirname(one.file)), basename(one.file)) }));
}

/** Copies what is missing into a folder that the nodes see, and removes what nobody has used for long. */
export async function bringPrograms(folder: string, programs: readonly Program[], wall: number): Promise<void> {
  for (const { file, path } of programs) {
    const target = join(folder, path);
    const now = new Date(wall);
    const isThere = await utimes(dirname(target), now, now).then(
      () => stat(target).then(() => true),
      () => false,
    );
    if (isThere) continue;
    const draft = await mkdtemp(join(folder, `.new-${basename(dirname(target))}-`));
    await copyFile(file, join(draft, basename(target)), constants.COPYFILE_FICLONE);
    // Several agents may bring the same.
    await utimes(draft, now, now);
    await rename(draft, dirname(target)).catch(() => removeTree(draft));
    for (const name of await readdir(folder)) {
      const about = await stat(join(folder, name)).catch(() => null);
      if (about !== null && wall - about.mtimeMs > kept * 86_400_000) await removeTree(join(folder, name));
    }
  }
}

/**
 * Lines for a node that make its folder for programs, which must be this user's, and remove what nobody has used for long. The folder is
 * in one that others can write to.
 */
export function openPrograms(folder: string): string[] {
  const own = quoted(folder);
  return [
    `mkdir -m 700 ${own} 2>/dev/null; [ -O ${own} ] && [ ! -L ${own} ] || exit 94`,
    `find ${own} -mindepth 1 -maxdepth 1 -mtime +${kept} -exec rm -rf {} + 2>/dev/null`,
  ];
}

/** A script that keeps its standard input as the program, unless it is there. */
export function takeProgram(folder: string, { path }: Pick<Program, 'path'>): string {
  const target = join(folder, path);
  const [at, draft] = [quoted(dirname(target)), quoted(join(folder, `.new-${basename(dirname(target))}`))];
  return [
    ...openPrograms(folder),
    `if [ -x ${quoted(target)} ]; then touch ${at}; exit 0; fi`,
    `d=$(mktemp -d ${draft}.XXXXXX) && cat >"$d"/${quoted(basename(target))} && chmod 555 "$d"/${quoted(basename(target))} || exit 1`,
    // It may be another agent's by now.
    `mv -T "$d" ${at} 2>/dev/null || rm -rf "$d"; [ -x ${quoted(target)} ]`,
  ].join('\n');
}
