/** The process as an interface, so that tests can drive commands. */
import type { Readable, Writable } from 'node:stream';
import type { Log } from '../base/log.ts';
import type { Variables } from '../base/variables.ts';
import type { Environment } from '../config/environment.ts';
import type { Instead } from '../config/load.ts';
import type { Flags } from '../config/paths.ts';
import type { DownRequest } from '../contract/schema.ts';

/** A stream that may be a terminal. It emits `resize` when its size changes. */
export type Terminal = Writable & { readonly isTTY?: boolean; readonly columns?: number; readonly rows?: number };

/** Options of `onejob up`. File and defaults decide about what is not set. */
export interface DaemonOptions extends Flags {
  /** No standbys; ends by itself when its last job and client are gone. */
  readonly temporary: boolean;
  /** Overrides `on_stop` of the config. */
  readonly onStop?: DownRequest['how'];
  /** A hangup applies the config again; otherwise it stops the daemon, as the end of its terminal. */
  readonly reloads?: boolean;
  readonly version: string;
  /** Program and arguments that start this onejob again. */
  readonly self: readonly string[];
  readonly log: Log;
  /** A config instead of the file. */
  readonly instead?: Instead | undefined;
}

/** What happens to the process, and its end. */
export interface ProcessControl {
  /** Calls `handler` for each INT and TERM until the returned function is called; never for one that the caller ignores. */
  onSignal(handler: (signal: 'SIGINT' | 'SIGTERM') => void): () => void;
  /** The same for each HUP, which ends the process if nothing handles it. `reload`: also for one that the caller ignores. */
  onHangup(handler: () => void, means?: 'end' | 'reload'): () => void;
  /** Ends the process at once, even if nobody reads its remaining output. */
  exit(code: number): never;
}

/** What only `main.ts` can do. */
export interface HostActions {
  /** Runs a daemon until it has stopped; the exit code. */
  startDaemon(options: DaemonOptions): Promise<number>;
  /** Why sandboxes of this host cannot have the network `internet`, as the end of a sentence; null when they can. Never throws. */
  internetObstacle(): Promise<string | null>;
  /** Why agents of this host can have no engine for containers, as the end of a sentence; null when they can. Never throws. `cards`: with cards of NVIDIA's. */
  containersObstacle(cards: boolean): Promise<string | null>;
  /** Why the Engine of this host starts no sandbox with that OCI runtime, as the end of a sentence; null if it may. Never throws. */
  ociObstacle(name: string): Promise<string | null>;
}

export interface CliContext {
  /** Without program and script. */
  readonly args: readonly string[];
  /** Whether the caller gave exactly this argument, or this `NAME=VALUE`: Node changes bytes that are not UTF-8. */
  isGiven(text: string, as: 'cmdline' | 'environ'): boolean;
  /** Variables that `--env NAME` passes on, and that a detached daemon inherits. */
  readonly variables: Variables;
  readonly environment: Environment;
  readonly cwd: string;
  /** Call it only to read: a process that touches its standard input may never end. */
  stdin(): Readable & { readonly isTTY?: boolean; setRawMode?(isRaw: boolean): unknown };
  readonly stdout: Terminal;
  readonly stderr: Terminal;
  /** Program and arguments that start this onejob again. */
  readonly self: readonly string[];
  readonly process: ProcessControl;
  readonly host: HostActions;
}
