/**
 * The daemon's unix socket: where it may be, whether somebody answers there, and how it comes into being.
 *
 * The socket appears under its name only once it can be connected to by those who may, and by nobody else: it is bound
 * beside it, given its mode and group, then renamed over. So a socket left behind by a killed daemon is replaced without
 * a moment in which there is none. Whoever listens must hold the lock of the state directory.
 */
import { chmodSync, chownSync, lstatSync, mkdirSync, realpathSync, renameSync, statSync, unlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname } from 'node:path';
import { readGroup, sharedFolder } from '../config/paths.ts';
import { OnejobError } from '../errors.ts';
import { socketDenied } from './socket-access.ts';

/** Node cuts longer paths off without a word at 107 bytes (sun_path); the rest is room for the name it is bound under. */
const maxSocketPath = 100;

/** @throws OnejobError E_SOCKET_PATH for a path no socket can have. */
export function checkSocketPath(path: string): void {
  const length = Buffer.byteLength(path);
  if (length <= maxSocketPath) return;
  throw new OnejobError(
    'E_SOCKET_PATH',
    `Cannot use the socket ${path}: its path has ${length} bytes, but a unix socket path can have at most ${maxSocketPath} here.`,
    { hint: 'Choose a shorter one with --socket PATH.' },
  );
}

/** `stale`: left behind, nobody listens. `denied`: we may not connect, so somebody may well be listening. */
export type SocketState = 'absent' | 'stale' | 'listening' | 'denied';

/** The last: its listener went before it took the connection. */
const nobody: ReadonlySet<string> = new Set(['ECONNREFUSED', 'ENOTSOCK', 'ECONNRESET']);

/** Looks whether somebody listens at `path`. Sends nothing. */
export function probeSocket(path: string): Promise<SocketState> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once('connect', () => {
      socket.destroy();
      resolve('listening');
    });
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT' || error.code === 'ENOTDIR') resolve('absent');
      else if (error.code !== undefined && nobody.has(error.code)) resolve('stale');
      else if (error.code === 'EACCES' || error.code === 'EPERM') resolve('denied');
      // A full backlog: somebody is there, and busy.
      else if (error.code === 'EAGAIN') resolve('listening');
      else reject(error);
    });
  });
}

/**
 * A job's environment may hold secrets, and anybody can listen where a daemon might: only what this user or root has put there is
 * spoken to. In a sticky folder nobody else can put another in its place; but where none is, everybody can put the first one, so a
 * socket that is not there must not be connected to afterwards.
 * @throws OnejobError E_SOCKET_FOREIGN; the system's error where there is no socket (ENOENT), or it cannot be looked at
 */
export function checkSocketOwner(path: string): void {
  const real = realpathSync(path);
  const me = process.geteuid?.() ?? 0;
  // A link is its owner's to turn to somewhere else.
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
  /** `group`: 0660 for the group `onejob`, where that exists; `owner`: 0600. */
  readonly access: 'group' | 'owner';
}

/**
 * Makes a listening socket appear at its path. `bind` is called with the path to listen at and returns once it does.
 * @throws OnejobError E_SOCKET_PATH, E_SOCKET_TAKEN when somebody listens there already, E_SOCKET_DENIED.
 */
export async function publishSocket(options: SocketOptions, bind: (path: string) => Promise<unknown>) {
  const { path, access } = options;
  checkSocketPath(path);
  mkdirSync(dirname(path), { recursive: true, mode: access === 'group' ? 0o755 : 0o700 });
  // Whatever the umask made of it, or of one that a daemon without the group has made.
  if (access === 'group' && dirname(path) === sharedFolder) chmodSync(sharedFolder, 0o755);
  const state = await probeSocket(path);
  if (state === 'denied') throw socketDenied(path);
  if (state === 'listening') {
    throw new OnejobError('E_SOCKET_TAKEN', `Cannot listen on ${path}: another daemon already does.`, {
      hint: 'Check it with "onejob status", stop it with "onejob down", or choose another place with --state-dir DIR.',
    });
  }
  // The kernel refuses connections to an ordinary file too: what is no socket was not left by a daemon.
  if (state === 'stale' && !statSync(path).isSocket()) {
    throw new OnejobError('E_SOCKET_TAKEN', `Cannot listen on ${path}: it exists and is not a socket.`, {
      hint: 'Move it away, or choose another place with --socket PATH.',
    });
  }
  const beside = `${path}.new`;
  unlinkIfThere(beside);
  await bind(beside);
  const gid = access === 'group' ? (readGroup()?.gid ?? null) : null;
  if (gid !== null) chownSync(beside, -1, gid);
  chmodSync(beside, access === 'group' && gid !== null ? 0o660 : 0o600);
  renameSync(beside, path);
  const { dev, ino } = statSync(path);
  return {
    /** Removes the socket, if it is still the one that was published. Idempotent. */
    unpublish(): void {
      const now = statSync(path, { throwIfNoEntry: false });
      if (now?.dev === dev && now.ino === ino) unlinkIfThere(path);
    },
  };
}

function unlinkIfThere(path: string): void {
  try {
    unlinkSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  }
}
