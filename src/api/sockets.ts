/**
 * The daemon's unix socket. It is bound under another name, gets its mode and group, and is then renamed: so it is never open to
 * others, and replaces the socket of a killed daemon without a gap. The caller must hold the lock of the state directory.
 */
import { chmodSync, chownSync, lstatSync, mkdirSync, realpathSync, renameSync, rmSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname } from 'node:path';
import { OnejobError } from '../base/errors.ts';
import { longestSocketPath, readGroup, sharedFolder } from '../config/paths.ts';
import { socketDenied } from './socket-access.ts';

/** @throws OnejobError E_SOCKET_PATH for a path that is too long for a socket */
export function checkSocketPath(path: string): void {
  const length = Buffer.byteLength(path);
  if (length <= longestSocketPath) return;
  const why = `its path has ${length} bytes, but a unix socket path can have at most ${longestSocketPath} here`;
  const hint = 'Choose a shorter one with --socket PATH.';
  throw new OnejobError('E_SOCKET_PATH', `Cannot use the socket ${path}: ${why}.`, { hint });
}

/** `stale`: nobody listens. `denied`: this user may not connect, so a daemon may be listening. */
export type SocketState = 'absent' | 'stale' | 'listening' | 'denied';

/** ECONNRESET: the listener ended before it accepted the connection. EAGAIN: a full backlog, so the listener is busy. */
const stateOf: Partial<Record<string, SocketState>> = {
  ENOENT: 'absent',
  ENOTDIR: 'absent',
  ECONNREFUSED: 'stale',
  ENOTSOCK: 'stale',
  ECONNRESET: 'stale',
  EACCES: 'denied',
  EPERM: 'denied',
  EAGAIN: 'listening',
};

/** Checks whether somebody listens at `path`. Sends nothing. @throws OnejobError E_SOCKET_PATH */
export function probeSocket(path: string): Promise<SocketState> {
  return new Promise((resolve, reject) => {
    checkSocketPath(path);
    const socket = connect(path);
    socket.once('connect', () => {
      socket.destroy();
      resolve('listening');
    });
    socket.once('error', (error: NodeJS.ErrnoException) => {
      const state = stateOf[error.code ?? ''];
      if (state === undefined) reject(error);
      else resolve(state);
    });
  });
}

/**
 * A job's environment may contain secrets, so the client trusts only sockets of this user or root. In a sticky folder nobody else
 * can replace one, but everybody can create the first: a socket that is missing now must not be connected to afterwards.
 * @throws OnejobError E_SOCKET_FOREIGN; the system's error where there is no socket (ENOENT), or it cannot be looked at
 */
export function checkSocketOwner(path: string): void {
  const real = realpathSync(path);
  const me = process.geteuid?.() ?? 0;
  // The owner of a link can change its target.
  const found = new Map([
    [path, lstatSync(path)],
    ...[real, dirname(real), dirname(path)].map((each) => [each, statSync(each)] as const),
  ]);
  for (const [each, stats] of found) {
    const { uid, mode } = stats;
    const isOpen = stats.isDirectory() && (mode & 0o002) !== 0 && (mode & 0o1000) === 0;
    if ((uid === me || uid === 0) && !isOpen) continue;
    const why = isOpen ? 'every user may write to' : `belongs to user ${uid} and not to you or root`;
    throw new OnejobError('E_SOCKET_FOREIGN', `Cannot trust the socket ${path}: ${isOpen ? `${why} ${each}` : `${each} ${why}`}.`, {
      hint: 'Nothing was sent. Use a state directory of your own with --state-dir DIR, or run the command as the user whose daemon it is.',
    });
  }
}

export interface SocketOptions {
  readonly path: string;
  /** `group`: 0660 for the group `onejob`, if it exists; `owner`: 0600; `root`: also 0600, in a folder with sockets of others. */
  readonly access: 'group' | 'owner' | 'root';
}

/**
 * Makes a listening socket appear at its path. `bind` is called with the path to listen at and returns once it does.
 * @throws OnejobError E_SOCKET_PATH, E_SOCKET_TAKEN when somebody listens there already, E_SOCKET_DENIED.
 */
export async function publishSocket(options: SocketOptions, bind: (path: string) => Promise<unknown>) {
  const { path, access } = options;
  checkSocketPath(path);
  mkdirSync(dirname(path), { recursive: true, mode: access === 'owner' ? 0o700 : 0o755 });
  // Despite the umask, or an earlier daemon without the group.
  if (access !== 'owner' && dirname(path) === sharedFolder) chmodSync(sharedFolder, 0o755);
  const state = await probeSocket(path);
  if (state === 'denied') throw socketDenied(path);
  if (state === 'listening') {
    throw new OnejobError('E_SOCKET_TAKEN', `Cannot listen on ${path}: another daemon already does.`, {
      hint: 'Check it with "onejob status", stop it with "onejob down", or choose another place with --state-dir DIR.',
    });
  }
  // The kernel also refuses connections to an ordinary file.
  if (state === 'stale' && !statSync(path).isSocket()) {
    throw new OnejobError('E_SOCKET_TAKEN', `Cannot listen on ${path}: it exists and is not a socket.`, {
      hint: 'Move it away, or choose another place with --socket PATH.',
    });
  }
  const temporary = `${path}.new`;
  rmSync(temporary, { force: true });
  await bind(temporary);
  const gid = access === 'group' ? (readGroup()?.gid ?? null) : null;
  if (gid !== null) chownSync(temporary, -1, gid);
  chmodSync(temporary, access === 'group' && gid !== null ? 0o660 : 0o600);
  renameSync(temporary, path);
  const { dev, ino } = statSync(path);
  return {
    /** Removes the socket, if it is still the one that was published. Idempotent. */
    unpublish(): void {
      const now = statSync(path, { throwIfNoEntry: false });
      if (now?.dev === dev && now.ino === ino) rmSync(path, { force: true });
    },
  };
}
