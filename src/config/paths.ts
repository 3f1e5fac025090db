/** Where config, state and socket are, before anything else is known. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Environment } from './environment.ts';
import type { Place, Problem } from './problem.ts';

/** What was given on the command line; relative paths are meant from `cwd`. */
export interface Flags {
  readonly config?: string | undefined;
  readonly stateDir?: string | undefined;
  readonly socket?: string | undefined;
}

/** A value and where it came from. */
export interface Given {
  readonly path: string;
  readonly from: Place;
}

export interface Paths {
  /** null when there is no file. */
  readonly config: Given | null;
  readonly stateDir: Given;
  readonly socket: Given;
}

/** Folder of sockets that more than one user may open; root's. */
export const sharedFolder = '/run/onejob';

/** Socket of a daemon of root for all who may use it: the state directory itself lets nobody else in. `stateDir`: null for the usual one. */
export function sharedSocket(stateDir: string | null): string {
  const name = stateDir === null ? 'onejob' : createHash('sha256').update(stateDir).digest('hex').slice(0, 12);
  return join(sharedFolder, `${name}.sock`);
}

/** Longest socket path, in bytes: Node cuts what is over 107 without a word. */
const longestSocketPath = 100;

export function place(source: string): Place {
  return { source, line: null, column: null };
}

/** The config file: flag, environment, `/etc/onejob/config.yml`, then the user's own; null when none of them is there. */
export function findConfig(flags: Flags, env: Environment, cwd: string): Given | null {
  if (flags.config !== undefined) return { path: resolve(cwd, flags.config), from: place('--config') };
  if (env.config !== null) return { path: resolve(cwd, env.config), from: place('ONEJOB_CONFIG') };
  const path = ['/etc/onejob/config.yml', join(env.configHome, 'onejob', 'config.yml')].find((one) => existsSync(one));
  return path === undefined ? null : { path, from: place('default') };
}

/** State directory and socket: flags win over the environment, that over the file, that over what is usual. */
export function choosePaths(
  flags: Flags,
  env: Environment,
  cwd: string,
  file: { readonly stateDir: Given | null; readonly socket: Given | null },
): { stateDir: Given; socket: Given } {
  const given = (key: 'stateDir' | 'socket', flag: string, variable: string): Given | null => {
    const [typed, set] = [flags[key], env[key]];
    if (typed !== undefined) return { path: resolve(cwd, typed), from: place(flag) };
    if (set !== null) return { path: resolve(cwd, set), from: place(variable) };
    return file[key];
  };
  const state = given('stateDir', '--state-dir', 'ONEJOB_STATE_DIR');
  const isRoot = env.uid === 0;
  const stateDir = state ?? { path: isRoot ? '/var/lib/onejob' : join(env.stateHome, 'onejob'), from: place('default') };
  const socket = given('socket', '--socket', 'ONEJOB_SOCKET');
  if (socket !== null) return { stateDir, socket };
  // A state directory of one's own is an installation of one's own: it must not answer on the usual socket.
  if (state !== null) return { stateDir, socket: { path: join(state.path, 'onejob.sock'), from: state.from } };
  const folder = isRoot ? sharedFolder : env.runtimeDir === null ? stateDir.path : join(env.runtimeDir, 'onejob');
  return { stateDir, socket: { path: join(folder, 'onejob.sock'), from: place('default') } };
}

/** A socket path that Node or the kernel would cut. */
export function socketProblem(socket: Given): Problem | null {
  const bytes = Buffer.byteLength(socket.path);
  if (bytes <= longestSocketPath) return null;
  const message = `the socket path ${socket.path} has ${bytes} bytes, but at most ${longestSocketPath} are possible; give a shorter one with --socket`;
  return { ...socket.from, level: 'error', key: 'socket', message };
}

/** Whose members may use a daemon of root. */
export const groupName = 'onejob';

/** The group whose members share a daemon of root. */
export interface Group {
  readonly gid: number;
  readonly members: readonly string[];
}

/** The group `onejob`, from group(5): Node knows no group names. Null where there is none. Groups from elsewhere are not seen. */
export function readGroup(text: string = groupFile()): Group | null {
  const line = text.split('\n').find((each) => each.startsWith(`${groupName}:`));
  if (line === undefined) return null;
  const [, , id, members = ''] = line.split(':');
  const gid = Number(id);
  return Number.isInteger(gid) ? { gid, members: members.split(',').filter((name) => name !== '') } : null;
}

function groupFile(): string {
  try {
    return readFileSync('/etc/group', 'utf8');
  } catch {
    return '';
  }
}
