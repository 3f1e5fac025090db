/** Files that may not exist, and names that must outlive a power cut. */
import { closeSync, fsyncSync, openSync } from 'node:fs';
import { type FileHandle, open, readdir } from 'node:fs/promises';
import { codeOf } from '../errors.ts';

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

/** Makes the names in a folder survive a power cut: a file that was synced and renamed may otherwise be gone. */
export function syncFolder(folder: string): void {
  const file = openSync(folder, 'r');
  try {
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}
