/** Where the daemon is, for those who only want to speak to it. The config is loaded only where there is a file. */
import { join } from 'node:path';
import type { Environment } from '../config/environment.ts';
import { choosePaths, type Flags, findConfig, sharedSocket } from '../config/paths.ts';
import type { Place } from './session.ts';

/** @throws OnejobError E_CONFIG when there is a config file that cannot be read at all. */
export async function findPlace(flags: Flags, env: Environment, cwd: string): Promise<Place> {
  const { stateDir, socket } =
    findConfig(flags, env, cwd) === null
      ? choosePaths(flags, env, cwd, { stateDir: null, socket: null })
      : await (await import('../config/load.ts')).loadPaths({ flags, env, cwd });
  const isDerived = socket.from.source === 'default' || socket.path === join(stateDir.path, 'onejob.sock');
  const isShared = env.uid !== 0 && isDerived;
  return {
    stateDir: stateDir.path,
    socket: socket.path,
    isSocketNamed: flags.socket !== undefined || env.socket !== null,
    systemSocket: isShared ? sharedSocket(stateDir.from.source === 'default' ? null : stateDir.path) : null,
  };
}
