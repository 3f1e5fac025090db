/** Writes a file with a key or a token: readable for one user, and whole or not at all. */
import { closeSync, fchownSync, fsyncSync, linkSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { attempt, type ErrorCode, OnejobError } from '../errors.ts';

export interface Writing {
  /** false: fails if the file exists, also if it appears meanwhile. */
  readonly over: boolean;
  /** A file whose owner it gets, and whose group may read it only if the group could read that one. */
  readonly like?: { readonly uid: number; readonly gid: number; readonly mode: number } | null;
  /** Creates its folders. */
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
      // By its descriptor: others may be able to write to its folder.
      if (like !== null) fchownSync(file, like.uid, like.gid);
      // Unlike a single write, this continues until everything is written or the disk refuses.
      writeFileSync(file, text);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    if (over) renameSync(unfinished, path);
    // Unlike a rename, a link never replaces a file.
    else linkSync(unfinished, path);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.replace(/^(\w+): ([^,]+),.*$/s, '$2 ($1)') : String(cause);
    throw new OnejobError(refusal.code, `Cannot write ${path}: ${why}.`, { hint: refusal.hint, cause });
  } finally {
    // If its folder does not exist, neither does the file.
    attempt(() => rmSync(unfinished, { force: true }));
  }
}
