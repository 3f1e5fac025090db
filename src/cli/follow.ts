/**
 * A job's output up to its end, across restarts of the daemon: the job goes on without it, so does whoever watches.
 * No byte is lost or shown twice.
 */
import type { LogPiece } from '../api/manager.ts';
import type { JobView } from '../api/schema.ts';
import { isGone, reconnect } from './connect.ts';
import type { Connection, Session } from './session.ts';
import { formatAge } from './units.ts';

/** ms a lost daemon is waited for. */
const patience = 600_000;

/** A connection that is made anew when it is lost. */
export interface Lasting {
  connection: Connection;
  /** Whether it is a temporary daemon, which nobody but us starts again. */
  temporary: boolean;
}

export async function followJob(
  session: Session,
  lasting: Lasting,
  id: string,
  show: (piece: LogPiece) => Promise<void>,
): Promise<JobView> {
  let shown = 0;
  let complete = false;
  for (;;) {
    try {
      const { client } = lasting.connection;
      if (!complete) {
        for await (const piece of client.logs({ job: id }, { follow: true, from: shown })) {
          await show(piece);
          if (piece.stream !== 'note') shown += piece.bytes.length;
        }
      }
      complete = true;
      return await client.settled(id);
    } catch (error) {
      if (!isGone(error)) throw error;
      await recover(session, lasting, id);
    }
  }
}

/** Repeats `work` over a lost daemon. Only for what may be done twice. */
export async function persist<T>(session: Session, lasting: Lasting, id: string, work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!isGone(error)) throw error;
      await recover(session, lasting, id);
    }
  }
}

async function recover(session: Session, lasting: Lasting, id: string): Promise<void> {
  const { client } = lasting.connection;
  lasting.connection.close();
  session.output.say(`the daemon is gone; job ${id} goes on without it; waiting for the daemon for up to ${formatAge(patience)}`);
  lasting.connection = await reconnect(session, client, lasting.temporary, patience);
  session.output.say('the daemon is back');
}
