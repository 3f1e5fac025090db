/** Writes a file with a key or a token: readable for one user, and whole or not at all. */
import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { type ErrorCode, OnejobError } from '../base/errors.ts';
import { writeWhole } from '../system/files.ts';

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
  try {
    if (folders) mkdirSync(dirname(path), { recursive: true, mode: 0o755 });
    writeWhole(path, text, { over, mode: like === null ? 0o600 : like.mode & 0o640, owner: like });
  } catch (cause) {
    const why = cause instanceof Error ? cause.message.replace(/^(\w+): ([^,]+),.*$/s, '$2 ($1)') : String(cause);
    throw new OnejobError(refusal.code, `Cannot write ${path}: ${why}.`, { hint: refusal.hint, cause });
  }
}
