/** Where config, state and socket are. */
import { existsSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { attempt } from '../base/errors.ts';
import { inQuotes } from '../base/quoted.ts';
import { type Place, type Problem, place } from '../schema/problem.ts';
import type { Environment } from './environment.ts';

/** Options of the command line; relative paths are relative to `cwd`. */
export interface Flags {
  readonly config?: string | undefined;
  readonly stateDir?: string | undefined;
  readonly socket?: string | undefined;
}

/** A path, and what named it. */
export type Given = { readonly path: string; readonly from: Place };

export interface Paths {
  /** null without a file. */
  readonly config: Given | null;
  readonly stateDir: Given;
  readonly socket: Given;
}

/** Folder of root for sockets that other users may open. */
export const sharedFolder = '/run/onejob';

/** Socket of root's daemon for other users, who cannot enter its state directory. `stateDir`: null for the usual one. */
export function sharedSocket(stateDir: string | null): string {
  if (stateDir === null) return join(sharedFolder, 'onejob.sock');
  // Loading it takes 8 ms, which most commands need not spend.
  const { createHash } = process.getBuiltinModule('node:crypto');
  return join(sharedFolder, `${createHash('sha256').update(stateDir).digest('hex').slice(0, 12)}.sock`);
}

/** Folder with a socket for each user whom the config lets use the daemon of `socket` (`people`). */
export function peopleFolder(socket: string): string {
  return socket.replace(/(\.sock)?$/, '.people');
}

/** The socket of one of them: nobody but him and root can open it. */
export function personSocket(socket: string, uid: number): string {
  return join(peopleFolder(socket), `${uid}.sock`);
}

/** Bytes. Node silently cuts paths at 107 (sun_path); the rest is room for the name that a socket is bound under. */
export const longestSocketPath = 100;

/** The config file: flag, environment, `/etc/onejob/config.yml`, then the user's own; null if there is none. */
export function findConfig(flags: Flags, env: Environment, cwd: string): Given | null {
  if (flags.config !== undefined) return { path: resolve(cwd, flags.config), from: place('--config') };
  if (env.config !== null) return { path: resolve(cwd, env.config), from: place('ONEJOB_CONFIG') };
  const path = ['/etc/onejob/config.yml', join(env.configHome, 'onejob', 'config.yml')].find((one) => existsSync(one));
  return path === undefined ? null : { path, from: place('default') };
}

/** What checks this config: only the usual one is found without its name. */
export function checkCommand(found: Given | null): string {
  if (found === null || found.from.source === 'default') return 'onejob config check';
  return `onejob config check ${/^[\w./-]+$/.test(found.path) ? found.path : inQuotes(found.path)}`;
}

/** State directory and socket: flags override the environment, which overrides the file, which overrides the defaults. */
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
  // A separate state directory is a separate installation, which must not use the usual socket.
  if (state !== null) return { stateDir, socket: { path: join(state.path, 'onejob.sock'), from: state.from } };
  const folder = isRoot ? sharedFolder : env.runtimeDir === null ? stateDir.path : join(env.runtimeDir, 'onejob');
  return { stateDir, socket: { path: join(folder, 'onejob.sock'), from: place('default') } };
}

export function socketProblem(socket: Given): Problem | null {
  const bytes = Buffer.byteLength(socket.path);
  if (bytes <= longestSocketPath) return null;
  const message = `the socket path ${socket.path} has ${bytes} bytes, but at most ${longestSocketPath} are possible; give a shorter one with --socket`;
  return { ...socket.from, level: 'error', key: 'socket', message };
}

/** The group whose members may use root's daemon. */
export const groupName = 'onejob';

export type UserGroup = { readonly gid: number; readonly members: readonly string[] };

/** The group `onejob` from group(5), since Node has no API for it; null if it is not there. */
export function readGroup(text: string = attempt(() => readFileSync('/etc/group', 'utf8')) ?? ''): UserGroup | null {
  const line = text.split('\n').find((each) => each.startsWith(`${groupName}:`));
  if (line === undefined) return null;
  const [, , id, members = ''] = line.split(':');
  const gid = Number(id);
  return Number.isInteger(gid) ? { gid, members: members.split(',').filter((name) => name !== '') } : null;
}
