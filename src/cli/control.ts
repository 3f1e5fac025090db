/** `onejob pause`, `resume` and `drain`. */

import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

export async function pausePools(
  session: Session,
  what: 'pause' | 'resume' | 'drain',
  pool: string | null,
  reason: string,
): Promise<number> {
  await withDaemon(session, (client) => (what === 'drain' ? client.drain(pool) : client[what](pool, reason)));
  const { output } = session;
  const who = pool === null ? 'all pools' : `pool ${pool}`;
  const said = {
    pause: `Paused ${who}: nothing new is started.`,
    resume: `Resumed ${who}.`,
    drain: `Draining ${who}: what runs is finished.`,
  };
  if (output.json) await output.value({ done: what, pool, reason: what === 'drain' ? null : reason });
  else await output.print(said[what]);
  return exitCodes.ok;
}
