/** Where the daemon is, for those who only want to speak to it. The config is loaded only where there is a file. */
import type { Environment } from '../config/environment.ts';
import { choosePaths, findConfig } from '../config/paths.ts';
import type { Place, PlaceFlags } from './context.ts';

/** Where a daemon of the whole host listens. */
const systemSocket = '/run/onejob/onejob.sock';

/** @throws OnejobError E_CONFIG when there is a config file that cannot be read at all. */
export async function findPlace(given: PlaceFlags, env: Environment, cwd: string): Promise<Place> {
  const flags = { config: given.config ?? undefined, stateDir: given.stateDir ?? undefined, socket: given.socket ?? undefined };
  const { stateDir, socket } =
    findConfig(flags, env, cwd) === null
      ? choosePaths(flags, env, cwd, { stateDir: null, socket: null })
      : await (await import('../config/load.ts')).loadPaths({ flags, env, cwd });
  const usual = stateDir.from.source === 'default' && socket.from.source === 'default';
  return { stateDir: stateDir.path, socket: socket.path, systemSocket: usual && env.uid !== 0 ? systemSocket : null };
}
