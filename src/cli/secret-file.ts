/** A file with a private key: readable for one user, whole or not at all. */
import { chownSync, closeSync, fsyncSync, linkSync, openSync, renameSync, rmSync, writeSync } from 'node:fs';
import { OnejobError } from '../errors.ts';

/**
 * @param over false: only where there is no file yet, also when one comes in between
 * @param like a file whose owner it keeps; it is readable for no more users than that one was, and for its group only if that was
 * @throws OnejobError E_SECRET_KEY
 */
export function writeFileOver(
  path: string,
  text: string,
  {
    over,
    like,
  }: { readonly over: boolean; readonly like: { readonly uid: number; readonly gid: number; readonly mode: number } | null },
): void {
  const unfinished = `${path}.${process.pid}.new`;
  try {
    const file = openSync(unfinished, 'wx', like === null ? 0o600 : like.mode & 0o640);
    try {
      if (like !== null) chownSync(unfinished, like.uid, like.gid);
      writeSync(file, text);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    if (over) renameSync(unfinished, path);
    // Unlike a rename, a link never takes the place of what is there.
    else linkSync(unfinished, path);
  } catch (error) {
    const why = error instanceof Error ? error.message.replace(/^(\w+): ([^,]+),.*$/s, '$2 ($1)') : String(error);
    throw new OnejobError('E_SECRET_KEY', `Cannot write ${path}: ${why}.`, {
      hint: 'Name a file in a folder that you may write to.',
    });
  } finally {
    rmSync(unfinished, { force: true });
  }
}
