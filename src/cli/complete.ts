/**
 * `onejob complete`: the names that a shell offers behind a command, asked of the daemon that is there. Whoever presses a
 * key waits for it, so it is silent and soon over, and starts no daemon.
 */
import type { Client } from '../api/client.ts';
import { connect } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

export const completed = ['pools', 'slots', 'jobs', 'open-jobs'] as const;
export type Completed = (typeof completed)[number];

/** ms for all of it. */
const patience = 2_000;
const jobsOffered = 100;

/** Always 0: what cannot be said is not offered. */
export async function complete(session: Session, what: readonly Completed[]): Promise<number> {
  const signal = AbortSignal.timeout(patience);
  const late = new Promise<never>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));
  late.catch(() => {});
  try {
    const connection = await Promise.race([connect(session, { start: false, signal, patience: 0 }), late]);
    try {
      const names = await Promise.race([Promise.all(what.map((each) => namesOf(connection.client, each))), late]);
      await session.output.print(...names.flat());
    } finally {
      connection.close();
    }
  } catch {
    // No daemon, a config with problems, a socket that is not ours: no reason to write over somebody's command line.
  }
  return exitCodes.ok;
}

async function namesOf(client: Client, what: Completed): Promise<string[]> {
  switch (what) {
    case 'pools':
      return (await client.status()).pools.map(({ name }) => name);
    case 'slots':
      return (await client.status()).pools.flatMap(({ slots }) => slots.map(({ key }) => key));
    case 'jobs':
    case 'open-jobs':
      return (await client.jobs({ all: what === 'jobs', pool: null, limit: jobsOffered })).map(({ id }) => id).reverse();
  }
}
