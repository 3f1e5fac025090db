/**
 * What the commands are given instead of reaching for the process: so that they can be driven in tests, and so that only
 * `main.ts` knows how a daemon is made. And what every command starts from: its streams, where the daemon is, a daemon once it is reached.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import type { Client } from '../api/client.ts';
import type { Environment } from '../config/environment.ts';
import type { Instead } from '../config/load.ts';
import { choosePaths, type Flags, findConfig, sharedSocket } from '../config/paths.ts';
import type { Log } from '../log.ts';
import type { Output } from './output.ts';

/** A stream that may be a terminal. */
export type Terminal = Writable & { readonly isTTY?: boolean; readonly columns?: number };

/** What `onejob up` was asked for; where nothing was said file and defaults decide. */
export interface DaemonOptions extends Flags {
  /** No standbys; ends by itself when its last job and client are gone. */
  readonly temporary: boolean;
  readonly version: string;
  /** Program and arguments that start this onejob again. */
  readonly self: readonly string[];
  readonly log: Log;
  /** A config in the place of the file. */
  readonly instead?: Instead | undefined;
}

/** Where a daemon is, or would be. */
export interface Place {
  readonly stateDir: string;
  /** Own socket of `stateDir`. */
  readonly socket: string;
  /** Whether `socket` was asked for on the command line or in the environment, so that no other one will do. */
  readonly isSocketNamed: boolean;
  /** The system daemon's socket, to be tried after our own; null for root, and where a socket was asked for by name. */
  readonly systemSocket: string | null;
}

export interface CliContext {
  /** Without program and script. */
  readonly args: readonly string[];
  /** The variables `--env NAME` takes values from, and a detached daemon inherits. */
  readonly variables: Readonly<Record<string, string | undefined>>;
  readonly environment: Environment;
  readonly cwd: string;
  /** Only to be touched by who reads it: a process that looks at its standard input may never end. */
  stdin(): Readable & { readonly isTTY?: boolean };
  readonly stdout: Terminal;
  readonly stderr: Terminal;
  /** Program and arguments that start this onejob again. */
  readonly self: readonly string[];
  /** Calls `handler` for each INT and TERM until the answer is called. */
  onSignal(handler: (signal: 'SIGINT' | 'SIGTERM') => void): () => void;
  /** Likewise for each HUP, which ends the process where nobody asks for it. */
  onHangup(handler: () => void): () => void;
  /** Ends the process at once, also when output is still on its way to somebody who does not read it. */
  exit(code: number): never;
  /** Runs a daemon until it has stopped; the exit code. */
  startDaemon(options: DaemonOptions): Promise<number>;
  /** Why sandboxes of this host cannot have the network `internet`, as the end of a sentence; null when they can. Never throws. */
  internetObstacle(): Promise<string | null>;
}

/** Flags that every command takes. */
export interface GlobalFlags extends Flags {
  readonly json?: boolean;
}

export interface Session {
  readonly context: CliContext;
  readonly output: Output;
  readonly version: string;
  readonly flags: Flags;
  /** Found once, at first need. */
  place(): Promise<Place>;
}

/** What a config is read by, as a daemon would read it. */
export function configSource({ context, flags }: Session): { flags: Flags; env: Environment; cwd: string } {
  return { flags, env: context.environment, cwd: context.cwd };
}

/** A daemon that is there; it stays while we are connected, also when it is a temporary one. */
export interface Connection {
  readonly client: Client;
  /** Settles when the daemon has gone. */
  readonly gone: Promise<void>;
  close(): void;
}

/**
 * Where the daemon is, for those who only want to speak to it. The config is loaded only where there is a file.
 * @throws OnejobError E_CONFIG when there is a config file that cannot be read at all.
 */
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

/** Version of this onejob, as in package.json. */
export function readVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  const found = /"version":\s*"([^"]+)"/.exec(text);
  return found?.[1] ?? 'unknown';
}
