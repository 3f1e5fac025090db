/**
 * A job's output up to its end, across restarts of the daemon: the job goes on without it, so does whoever watches.
 * No byte is lost or shown twice.
 */

import { abortable } from '../abortable.ts';
import type { LogPiece, LogSource } from '../api/manager.ts';
import type { JobView } from '../api/schema.ts';
import { none, plus, sizeOf } from '../logs/gap.ts';
import { isGone, isStopping, reconnect } from './connect.ts';
import type { Connection, Session } from './session.ts';
import { formatAge } from './text.ts';

/** ms a lost daemon is waited for. */
const usualPatience = 600_000;

/** A connection that is made anew when it is lost, until `signal` aborts. */
export interface Lasting {
  connection: Connection;
  /** Whether it is a temporary daemon, which nobody but us starts again. */
  temporary: boolean;
  /** Whether a temporary daemon that was lost may be started again: by whoever has a job in it, never by who only looks. */
  readonly mayStart: boolean;
  /** Under way while a lost connection is being made anew. */
  mending: Promise<void> | null;
  readonly signal: AbortSignal;
  /** ms a lost daemon is waited for; default 10 min. */
  readonly patience?: number;
}

type Show = (piece: LogPiece) => Promise<void>;

/** Shows a job's output as it comes; resolves with the job once it is done. */
export async function followJob(session: Session, lasting: Lasting, id: string, show: Show): Promise<JobView> {
  const what = `job ${id} goes on without it`;
  // Asked for from the start: a daemon that stops answers what it was asked, and then takes no more questions.
  const done = persist(session, lasting, what, ({ client }) => client.settled(id, lasting.signal));
  done.catch(() => {});
  await followLogs(session, lasting, { what, source: { job: id } }, show);
  return done;
}

/** Shows output to its end. `what` says what goes on while the daemon is away. */
export async function followLogs(
  session: Session,
  lasting: Lasting,
  { what, source, tail = null }: { readonly what: string; readonly source: LogSource; readonly tail?: number | null },
  show: Show,
): Promise<void> {
  let shown = none;
  let isBegun = false;
  await persist(session, lasting, what, async ({ client }) => {
    for await (const piece of client.logs(source, {
      follow: true,
      from: shown,
      tail: isBegun ? null : tail,
      signal: lasting.signal,
    })) {
      isBegun = true;
      await show(piece);
      shown = plus(shown, sizeOf(piece));
    }
  });
}

/** Repeats `work` over a lost daemon. Only for what may be done twice. `what` says what that means for the job. */
export async function persist<T>(
  session: Session,
  lasting: Lasting,
  what: string,
  work: (connection: Connection) => Promise<T>,
): Promise<T> {
  for (;;) {
    const { connection } = lasting;
    let stopping = false;
    try {
      return await work(connection);
    } catch (error) {
      lasting.signal.throwIfAborted();
      if (!isGone(error)) throw error;
      stopping = isStopping(error);
    }
    // Of several that notice the loss the first mends it.
    if (lasting.connection !== connection) continue;
    lasting.mending ??= recover(session, lasting, what, stopping).finally(() => {
      lasting.mending = null;
    });
    await lasting.mending;
  }
}

async function recover(session: Session, lasting: Lasting, what: string, stopping: boolean): Promise<void> {
  const { output } = session;
  const { signal, connection, patience = usualPatience } = lasting;
  const temporary = lasting.temporary && lasting.mayStart;
  if (stopping) {
    // It may wait for its jobs, and would refuse again and again until it has gone.
    output.say('the daemon is stopping and accepts no new requests; waiting for it to end');
    await abortable(connection.gone, signal);
  }
  connection.close();
  const wait = temporary ? 'starting another' : `waiting for up to ${formatAge(patience)}`;
  output.say(`the daemon is gone; ${what}; ${wait}`);
  lasting.connection = await reconnect(session, connection.client, { temporary, patience, signal });
  // One that stays may have taken the place of a temporary one, or the other way round.
  lasting.temporary = await lasting.connection.client.status().then(
    (status) => status.temporary,
    () => lasting.temporary,
  );
  output.say('connected again');
}
