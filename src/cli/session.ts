/** What every command starts from: its streams, and where the daemon is; and a daemon once it is reached. */
import type { Client } from '../api/client.ts';
import type { CliContext, Place, PlaceFlags } from './context.ts';
import type { Output } from './output.ts';

/** Flags that every command takes. */
export interface GlobalFlags {
  readonly json?: boolean;
  readonly stateDir?: string;
  readonly socket?: string;
  readonly config?: string;
}

export interface Session {
  readonly context: CliContext;
  readonly output: Output;
  readonly version: string;
  readonly flags: PlaceFlags;
  /** Found once, at first need. */
  place(): Promise<Place>;
}

/** A daemon that is there; it stays while we are connected, also when it is a temporary one. */
export interface Connection {
  readonly client: Client;
  /** Settles when the daemon has gone. */
  readonly gone: Promise<void>;
  close(): void;
}
