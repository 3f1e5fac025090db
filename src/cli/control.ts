/** `onejob pause`, `resume`, `drain` and `down`. */
import { readFileSync } from 'node:fs';
import { setTimeout as after } from 'node:timers/promises';
import { OnejobError } from '../errors.ts';
import { connect } from './connect.ts';
import { exitCodes } from './exit.ts';
import { type Session, withDaemon } from './session.ts';

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

/** Returns when the daemon has ended, or at once after an INT: the daemon goes on stopping. */
export async function down(session: Session, how: 'end' | 'drain' | 'leave', grace: number | null): Promise<number> {
  const { output, context } = session;
  const connection = await connect(session, { start: false }).catch((error) => {
    if (error instanceof OnejobError && error.code === 'E_DAEMON_ABSENT') return null;
    throw error;
  });
  if (connection === null) {
    if (output.json) await output.value({ stopped: false });
    else await output.print('No daemon runs here.');
    return exitCodes.ok;
  }
  const interrupted = Promise.withResolvers<'interrupted'>();
  const release = context.onSignal(() => interrupted.resolve('interrupted'));
  try {
    const { pid } = await connection.client.status();
    await connection.client.down({ how, grace });
    output.progress(how === 'drain' ? 'waiting for the running jobs to end' : 'waiting for the daemon to end');
    if ((await Promise.race([connection.gone, interrupted.promise])) === 'interrupted') {
      output.say('the daemon goes on stopping');
      return exitCodes.cancelled;
    }
    await untilEnded(pid);
    output.progress(null);
    if (output.json) await output.value({ stopped: true });
    else await output.print('The daemon has ended.');
    return exitCodes.ok;
  } finally {
    release();
    connection.close();
  }
}

/** ms the rest of a daemon may take once it has closed its socket. */
const lastSteps = 10_000;

/**
 * A daemon closes its socket before it lets go of its state, and whoever types `onejob down && onejob up` must not find it
 * still there. Nothing tells of the end of a process that is not our child, so this looks again and again.
 */
async function untilEnded(pid: number): Promise<void> {
  for (const until = performance.now() + lastSteps; exists(pid) && performance.now() < until; ) await after(10);
}

/** False for one that only waits to be reaped, and for a pid of another container's. */
function exists(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return !/^[ZX]/.test(stat.slice(stat.lastIndexOf(')') + 2));
  } catch {
    return false;
  }
}
