/** Translates errors of SQLite and the file system into errors that a person can act on. It never deletes or repairs a database. */
import { type ErrorCode, OnejobError } from '../base/errors.ts';
import { lacksInodes } from '../system/disk-room.ts';
import { migrations } from './migrations.ts';

// Primary result codes, https://www.sqlite.org/rescode.html; the upper bits of an extended code hold details.
const sqlite = { busy: 5, locked: 6, readonly: 8, ioerr: 10, corrupt: 11, full: 13, cantopen: 14, notadb: 26 };

/**
 * Translates `error`, which occurred while `doing` something to `path`: E_STATE_FULL (may pass) if the disk is full, read-only or
 * failing, E_STATE_CORRUPT if the file is not a valid database. Other errors are returned unchanged.
 */
export function storeFault(doing: string, path: string, error: unknown): unknown {
  if (error instanceof OnejobError || !(error instanceof Error)) return error;
  const { code, errcode, message: said } = error as Error & { code?: unknown; errcode?: unknown };
  const primary = typeof errcode === 'number' ? errcode & 0xff : null;
  const fault = (as: ErrorCode, why: string, hint: string, retry = true) =>
    new OnejobError(as, `Cannot ${doing} ${path}: ${why}.`, { hint, retry, cause: error });
  if (code !== 'EDQUOT' && (primary === sqlite.full || code === 'ENOSPC') && lacksInodes(path)) {
    const hint = `Delete files on the disk that holds ${path}: each takes an inode, however small it is ("df -i"). Running jobs continue meanwhile.`;
    return fault('E_STATE_FULL', `no inodes left (${said})`, hint);
  }
  if (primary === sqlite.full || code === 'ENOSPC' || code === 'EDQUOT') {
    const hint = `Free some space on the disk that holds ${path}; running jobs continue meanwhile.`;
    return fault('E_STATE_FULL', `no space left (${said})`, hint);
  }
  if (primary === sqlite.readonly || primary === sqlite.ioerr || code === 'EROFS' || code === 'EIO') {
    const hint = `Check whether the disk that holds ${path} is full, read-only or failing ("df", "dmesg").`;
    return fault('E_STATE_FULL', `the disk rejected the write (${said})`, hint);
  }
  if (primary === sqlite.busy || primary === sqlite.locked) {
    const hint = `Close other programs that have ${path} open, such as a sqlite3 shell.`;
    return fault('E_STATE_BUSY', `another program holds it locked (${said})`, hint);
  }
  if (primary === sqlite.corrupt || primary === sqlite.notadb) {
    const hint = `Nothing was changed. Move ${path} aside, or try to recover it with "sqlite3 ${path} .recover".`;
    return fault('E_STATE_CORRUPT', `it is not a valid SQLite database (${said})`, hint, false);
  }
  if (primary === sqlite.cantopen || code === 'EACCES' || code === 'EPERM') {
    const hint = 'Run onejob as the user that owns the state directory, or give another one with --state-dir.';
    return fault('E_STATE_DIR', said, hint, false);
  }
  return error;
}

/** What `work` returns. @throws as `storeFault` translates it */
export function translated<T>(doing: string, path: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw storeFault(doing, path, error);
  }
}

export function wrongVersion(doing: 'open' | 'read', path: string, version: number): OnejobError {
  const versions = `state version ${version}; this onejob supports ${migrations.length}`;
  const message = (who: string) => `Cannot ${doing} ${path}: ${who} onejob wrote it (${versions}).`;
  if (version > migrations.length) {
    const hint = 'Install the newer onejob again, or give another --state-dir.';
    return new OnejobError('E_STATE_NEWER', message('a newer'), { hint });
  }
  const hint = 'Start a daemon of this version once with "onejob up": it brings the state up to date.';
  return new OnejobError('E_STATE_OLDER', message('an older'), { hint });
}
