/** What every command gets: the process as an interface, so that tests can drive commands, its streams, and where the daemon is. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Variables } from '../base/variables.ts';
import { type Environment, readEnvironment } from '../config/environment.ts';
import { choosePaths, type Flags, findConfig, sharedSocket } from '../config/paths.ts';
import { isGiven } from '../system/unfaithful.ts';
import type { CliContext, HostActions } from './context.ts';
import type { Output } from './output.ts';
import type { Remote } from './remote.ts';

/** The context of a real command line: this process. `variables`: the environment as it is. */
export function processContext(variables: Variables, host: HostActions): CliContext {
  const [script = ''] = process.argv.slice(1, 2);
  const args = process.argv.slice(2);
  const environment = readEnvironment(variables);
  // `nohup` and a shell's "&" mean all of the program.
  for (const name of environment.ignored) process.on(name, () => {});
  const isIgnored = (name: (typeof environment.ignored)[number]) => environment.ignored.includes(name);
  // Every user of the host can read the arguments of a process, and one of these may be a token.
  if (args[0] === 'azure' || args[0] === 'manager') process.title = 'onejob azure';
  return {
    args,
    isGiven,
    variables,
    environment,
    cwd: process.cwd(),
    stdin: () => process.stdin,
    stdout: process.stdout,
    stderr: process.stderr,
    self: [process.execPath, ...process.execArgv, script],
    process: {
      onSignal(handler) {
        const meant = (['SIGINT', 'SIGTERM'] as const).filter((name) => !isIgnored(name));
        for (const name of meant) process.on(name, handler);
        return () => meant.forEach((name) => void process.off(name, handler));
      },
      onHangup(handler, means = 'end') {
        if (means === 'end' && isIgnored('SIGHUP')) return () => {};
        process.on('SIGHUP', handler);
        return () => void process.off('SIGHUP', handler);
      },
      exit: (code) => process.exit(code),
    },
    host,
  };
}

/** Flags that every command takes. */
export interface GlobalFlags extends Flags {
  readonly json?: boolean;
  /** The host whose daemon is meant: `ssh://…`, a name of the hosts file, or `local`; null: this one. Undefined: not said. */
  readonly host?: string | null | undefined;
}

export interface Session {
  readonly context: CliContext;
  readonly output: Output;
  readonly version: string;
  readonly flags: Flags;
  /** The host whose daemon the command is for; null: this one. */
  readonly remote: Remote | null;
  /** Found once, at first need. @throws OnejobError E_USAGE for another host: nothing of it is here */
  place(): Promise<DaemonPlace>;
}

/** What decides which config a daemon would read. */
export function configSource({ context, flags }: Session): { flags: Flags; env: Environment; cwd: string } {
  return { flags, env: context.environment, cwd: context.cwd };
}

/** Where a daemon is, or would be. */
export interface DaemonPlace {
  readonly stateDir: string;
  /** Own socket of `stateDir`. */
  readonly socket: string;
  /** Whether the command line or the environment names `socket`: then no other socket is tried. */
  readonly isSocketNamed: boolean;
  /** Socket of the system's daemon, tried after `socket`; null for root, and if a socket is named. */
  readonly systemSocket: string | null;
}

/**
 * Where the daemon is, for its clients. Loads the config only if there is a file.
 * @throws OnejobError E_CONFIG when there is a config file that cannot be read at all.
 */
export async function findPlace(flags: Flags, env: Environment, cwd: string): Promise<DaemonPlace> {
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

/** Version of this onejob, as in package.json. */
export function readVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return /"version":\s*"([^"]+)"/.exec(text)?.[1] ?? 'unknown';
}
