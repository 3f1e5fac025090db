/** The onejob of this machine, as `onejob cloud attend` sees and ends it. */
import type { Client } from '../../api/client.ts';
import type { Log } from '../../base/log.ts';
import type { PoolView } from '../../contract/schema.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { BeatCall } from './protocol.ts';

/** What the machine's daemon has. */
export interface AttendLook extends Pick<BeatCall, 'busy' | 'agents' | 'slots' | 'waiting' | 'problem'> {
  /** Whether it starts nothing new. */
  readonly isDraining: boolean;
  /** When the last job ended; wall clock, ms since the epoch; null: there was none. */
  readonly lastEnd: number | null;
}

/** The daemon of this machine. Methods throw OnejobError, E_DAEMON_ABSENT if none runs. */
export interface LocalDaemon {
  look(): Promise<AttendLook>;
  /** Starts nothing new. Stays so, also after a restart. Idempotent. */
  drain(): Promise<void>;
  /** Ends the daemon: once its agents have ended, or by ending them within `grace` ms. `taken`: because the cloud takes the machine. */
  down(how: 'drain' | 'end', grace: number | null, taken: boolean): Promise<void>;
}

/** ms that services may take to forget what is registered there. */
const forgetting = 90_000;

/** Why none of the pools can start an agent; null: one can, or a person keeps them from it. */
function whyStuck(pools: readonly PoolView[]): string | null {
  const whys = pools.map(({ name, paused, backoff, draining, leaving, slots }) => {
    const isMeant = draining || leaving || paused.some((held) => held.startsWith('by '));
    if (isMeant || slots.some(({ agent }) => agent.online === true || agent.job !== null)) return null;
    const why = paused[0] ?? backoff?.reason ?? (slots.length === 0 ? 'it has no agents, since no device fits' : null);
    return why === null ? null : `pool ${name}: ${why}`;
  });
  return whys.includes(null) ? null : (whys[0] ?? null);
}

/** The daemon behind a socket. */
export function localDaemon(
  client: Pick<Client, 'status' | 'endedJobs' | 'drain' | 'down' | 'forgotten'>,
  { clock, log }: { readonly clock: Clock; readonly log: Pick<Log, 'warn'> },
): LocalDaemon {
  return {
    async look() {
      const { pools, problems } = await client.status();
      const [last] = await client.endedJobs({ limit: 1 });
      const slots = pools.flatMap((pool) => pool.slots);
      const known = pools.flatMap(({ waiting }) => (waiting === null ? [] : [waiting]));
      const agents = slots.flatMap(({ agent, standby, leaving }) => [agent.agent, standby.agent, ...leaving]);
      return {
        busy: slots.filter(({ agent }) => agent.job !== null || agent.state === 'busy').length,
        agents: agents.filter((one) => one !== null).length,
        slots: slots.length,
        waiting: known.length === 0 ? null : known.reduce((sum, one) => sum + one, 0),
        problem: problems[0] ?? whyStuck(pools),
        isDraining: pools.every(({ draining, leaving }) => draining || leaving),
        lastEnd: last?.endedAt ?? null,
      };
    },
    drain: () => client.drain(null),
    async down(how, grace, taken) {
      // Asked for first: once it is told to end, the daemon may be gone at once.
      void tellLeft();
      await client.down({ how, grace, forget: true, taken });
    },
  };

  /** What services did not forget is for the controller's sweep. */
  async function tellLeft(): Promise<void> {
    using limit = deadline(clock, forgetting);
    const late = new Promise<[]>((resolve) => limit.signal.addEventListener('abort', () => resolve([]), { once: true }));
    const forgotten = await Promise.race([client.forgotten().catch(() => []), late]);
    for (const { service, left, problem } of forgotten)
      if (problem !== null) log.warn('entries are left at a CI service', { service, left, reason: problem });
  }
}
