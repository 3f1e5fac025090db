/** Files that may not exist. */
import { type FileHandle, open } from 'node:fs/promises';
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
