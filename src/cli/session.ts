/** What every command starts from: its streams, where the daemon is, and a way to reach it. */
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

/** Runs `work` with a connection to a daemon that must be there already. */
export async function withDaemon<T>(session: Session, work: (client: Client) => Promise<T>): Promise<T> {
  const { connect } = await import('./connect.ts');
  const connection = await connect(session, { start: false });
  try {
    return await work(connection.client);
  } finally {
    connection.close();
  }
}

/** As `withDaemon`, but starts a temporary daemon when there is none. */
export async function withAnyDaemon<T>(session: Session, work: (client: Client) => Promise<T>): Promise<T> {
  const { connect } = await import('./connect.ts');
  const connection = await connect(session, { start: true });
  try {
    return await work(connection.client);
  } finally {
    connection.close();
  }
}
