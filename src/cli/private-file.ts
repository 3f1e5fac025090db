/** A file with a key or a token: readable for one user, whole or not at all. */
import { chownSync, closeSync, fsyncSync, linkSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { type ErrorCode, OnejobError } from '../errors.ts';

export interface Writing {
  /** false: only where there is no file yet, also when one comes in between. */
  readonly over: boolean;
  /** A file whose owner it keeps; it is readable for no more users than that one was, and for its group only if that was. */
  readonly like?: { readonly uid: number; readonly gid: number; readonly mode: number } | null;
  /** Makes the folders that it is to be in. */
  readonly folders?: boolean;
  readonly refusal: { readonly code: ErrorCode; readonly hint: string };
}

/** @throws OnejobError with the code and hint of `refusal` */
export function writePrivate(path: string, text: string, { over, like = null, folders = false, refusal }: Writing): void {
  const unfinished = `${path}.${process.pid}.new`;
  try {
    if (folders) mkdirSync(dirname(path), { recursive: true, mode: 0o755 });
    const file = openSync(unfinished, 'wx', like === null ? 0o600 : like.mode & 0o640);
    try {
      if (like !== null) chownSync(unfinished, like.uid, like.gid);
      // Unlike one write, it goes on until all is there or the disk refuses.
      writeFileSync(file, text);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    if (over) renameSync(unfinished, path);
    // Unlike a rename, a link never takes the place of what is there.
    else linkSync(unfinished, path);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.replace(/^(\w+): ([^,]+),.*$/s, '$2 ($1)') : String(cause);
    throw new OnejobError(refusal.code, `Cannot write ${path}: ${why}.`, { hint: refusal.hint, cause });
  } finally {
    removeIfThere(unfinished);
  }
}

function removeIfThere(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // Where its folder is none, it is not there either.
  }
}
