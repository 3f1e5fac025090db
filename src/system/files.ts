/** Files that may not exist, and files and names that must outlive a power cut. */
import { closeSync, fchownSync, fsyncSync, linkSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { type FileHandle, mkdir, open, readdir } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { attempt, codeOf } from '../base/errors.ts';

/** Opens a file to read it; null if it does not exist. */
export async function openExisting(path: string): Promise<FileHandle | null> {
  try {
    return await open(path, 'r');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return null;
    throw error;
  }
}

/** The names in a folder; empty if it does not exist. */
export async function namesIn(folder: string): Promise<string[]> {
  return readdir(folder).catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return [];
    throw error;
  });
}

/**
 * Makes the names in a folder survive a power cut: a file that was synced and renamed may otherwise be gone. A folder that this user
 * may not read, or whose file system cannot sync one, is left to the order in which that writes. @throws Error of the file system
 */
export function syncFolder(folder: string): void {
  let file: number | null = null;
  try {
    file = openSync(folder, 'r');
    fsyncSync(file);
  } catch (error) {
    if (!unsyncable.includes(codeOf(error))) throw error;
  } finally {
    if (file !== null) closeSync(file);
  }
}

/** The same without waiting for a slow file system. */
export async function syncFolderLater(folder: string): Promise<void> {
  try {
    await using file = await open(folder, 'r');
    await file.sync();
  } catch (error) {
    if (!unsyncable.includes(codeOf(error))) throw error;
  }
}

const unsyncable: readonly string[] = ['EACCES', 'EINVAL', 'ENOTSUP'];

/** Makes a folder whose name survives a power cut, and so those above it that are missing. */
export function makeFolder(path: string, mode = 0o700): void {
  for (const folder of parentsOf(path, mkdirSync(path, { recursive: true, mode }))) syncFolder(folder);
}

/** The same without waiting for a slow file system. */
export async function makeFolderLater(path: string, mode = 0o700): Promise<void> {
  for (const folder of parentsOf(path, await mkdir(path, { recursive: true, mode }))) await syncFolderLater(folder);
}

/** Folders in which a name is new. `first`: the first folder that was made, or none was. */
function parentsOf(path: string, first: string | undefined): string[] {
  if (first === undefined) return [];
  const [parents, top] = [[] as string[], dirname(resolve(first))];
  for (let folder = dirname(resolve(path)); folder.length >= top.length; folder = dirname(folder)) {
    parents.push(folder);
    if (folder === dirname(folder)) break;
  }
  return parents;
}

export interface WholeFile {
  /** false: one that exists stays, also if it appears meanwhile, and this fails with EEXIST. */
  readonly over: boolean;
  readonly mode: number;
  readonly owner?: { readonly uid: number; readonly gid: number } | null;
  /** Only this process writes the file, so that it may remove what a killed one has left of it. */
  readonly alone?: boolean;
}

/**
 * Writes a file that is whole or not there, whenever the process is killed or the power is cut. Once this returns, the file survives
 * both. @throws Error of the file system
 */
export function writeWhole(
  path: string,
  content: string | Uint8Array,
  { over, mode, owner = null, alone = false }: WholeFile,
): void {
  const unfinished = alone ? `${path}.new` : `${path}.${process.pid}.new`;
  try {
    // One that was killed may have had this id, too: in containers few processes have one.
    rmSync(unfinished, { force: true });
    const file = openSync(unfinished, 'wx', mode);
    try {
      // By its descriptor: others may be able to write to its folder.
      if (owner !== null) fchownSync(file, owner.uid, owner.gid);
      // Unlike a single write, this continues until everything is written or the disk refuses.
      writeFileSync(file, content);
      // Before it has its name: after a power cut a name may have a file without its content.
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    if (over) renameSync(unfinished, path);
    // Unlike a rename, a link never replaces a file.
    else linkSync(unfinished, path);
    syncFolder(dirname(path));
  } finally {
    // If its folder does not exist, neither does the file.
    attempt(() => rmSync(unfinished, { force: true }));
  }
}
