/** `onejob pause`, `resume` and `drain`. */
import type { ResumeView } from '../api/schema.ts';
import { quoted } from '../quoted.ts';
import { printable } from './color.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

export async function pausePools(session: Session, what: 'pause' | 'drain', pool: string | null, reason: string): Promise<number> {
  await withDaemon(session, (client) => (what === 'drain' ? client.drain(pool) : client.pause(pool, reason)));
  const { output } = session;
  const who = pool === null ? 'all pools' : `pool ${pool}`;
  const said = { pause: `Paused ${who}: nothing new is started.`, drain: `Draining ${who}: what runs is finished.` };
  if (output.json) await output.value({ done: what, pool, reason: what === 'drain' ? null : reason });
  else await output.print(said[what]);
  return exitCodes.ok;
}

/** 1 when somebody else still holds one of the pools. */
export async function resumePools(session: Session, pool: string | null, reason: string): Promise<number> {
  const { held } = await withDaemon(session, (client) => client.resume(pool, reason));
  const { output } = session;
  const isHeld = held.some(({ by }) => by.length > 0);
  if (output.json) await output.value({ done: 'resume', pool, reason, held });
  else {
    if (!isHeld) await output.print(pool === null ? 'Resumed all pools.' : `Resumed pool ${pool}.`);
    await output.print(...held.flatMap(heldLines));
  }
  return isHeld ? exitCodes.failed : exitCodes.ok;
}

function heldLines({ pool, by, because }: ResumeView['held'][number]): string[] {
  const people = by.map(
    (reason) =>
      `Pool ${pool} is still paused by ${printable(reason)}: type "onejob resume ${pool} --reason ${quoted(printable(reason))}".`,
  );
  const others = because.map((why) => `Pool ${pool} still starts nothing: ${printable(why).replace(/\.$/, '')}.`);
  return [...people, ...others];
}
