/** Translates what SQLite and the file system say into errors a person can act on. A database is never deleted or mended here. */
import { OnejobError } from '../errors.ts';

interface SystemError {
  readonly code: unknown;
  readonly errcode: unknown;
  readonly message: string;
}

function asSystemError(error: unknown): SystemError | null {
  if (!(error instanceof Error)) return null;
  const { code, errcode } = error as { code?: unknown; errcode?: unknown };
  return { code, errcode, message: error.message };
}

// Primary result codes, https://www.sqlite.org/rescode.html; the upper bits of an extended code say more.
const sqlite = { busy: 5, locked: 6, readonly: 8, ioerr: 10, corrupt: 11, full: 13, cantopen: 14, notadb: 26 };

/**
 * `error` as what was being done to `path` failed: E_STATE_FULL (may pass) when the disk is full, read-only or failing,
 * E_STATE_CORRUPT when the file is no sound database. Anything else comes back unchanged.
 */
export function storeFault(doing: string, path: string, error: unknown): unknown {
  if (error instanceof OnejobError) return error;
  const system = asSystemError(error);
  if (system === null) return error;
  const said = system.message;
  const primary = typeof system.errcode === 'number' ? system.errcode & 0xff : null;
  if (primary === sqlite.full || system.code === 'ENOSPC' || system.code === 'EDQUOT') {
    return new OnejobError('E_STATE_FULL', `Cannot ${doing} ${path}: no space left (${said}).`, {
      hint: `Free some space on the disk that holds ${path}; running jobs go on meanwhile.`,
      retry: true,
      cause: error,
    });
  }
  if (primary === sqlite.readonly || primary === sqlite.ioerr || system.code === 'EROFS' || system.code === 'EIO') {
    return new OnejobError('E_STATE_FULL', `Cannot ${doing} ${path}: the disk does not take it (${said}).`, {
      hint: `See whether the disk that holds ${path} is full, read-only or failing ("df", "dmesg").`,
      retry: true,
      cause: error,
    });
  }
  if (primary === sqlite.busy || primary === sqlite.locked) {
    return new OnejobError('E_STATE_BUSY', `Cannot ${doing} ${path}: another program holds it locked (${said}).`, {
      hint: `Close whatever else has ${path} open, such as a sqlite3 shell.`,
      retry: true,
      cause: error,
    });
  }
  if (primary === sqlite.corrupt || primary === sqlite.notadb) {
    return new OnejobError('E_STATE_CORRUPT', `Cannot ${doing} ${path}: it is no sound SQLite database (${said}).`, {
      hint: `Nothing was changed. Move ${path} aside, or look into it with "sqlite3 ${path} .recover".`,
      cause: error,
    });
  }
  if (primary === sqlite.cantopen || system.code === 'EACCES' || system.code === 'EPERM') {
    return new OnejobError('E_STATE_DIR', `Cannot ${doing} ${path}: ${said}.`, {
      hint: 'Run onejob as the user that owns the state directory, or give another one with --state-dir.',
      cause: error,
    });
  }
  return error;
}
