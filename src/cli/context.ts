/**
 * What the commands are given instead of reaching for the process: so that they can be driven in tests, and so that only
 * `main.ts` knows how a daemon is made.
 */
import type { Readable, Writable } from 'node:stream';
import type { Environment } from '../config/environment.ts';
import type { Instead } from '../config/load.ts';
import type { Log } from '../log.ts';

/** A stream that may be a terminal. */
export type Terminal = Writable & { readonly isTTY?: boolean; readonly columns?: number };

/** What `onejob up` was asked for; null where nothing was said, so that file and defaults decide. */
export interface DaemonOptions {
  readonly config: string | null;
  readonly stateDir: string | null;
  readonly socket: string | null;
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

export interface PlaceFlags {
  readonly config: string | null;
  readonly stateDir: string | null;
  readonly socket: string | null;
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
