/**
 * Agents that are still there when the service has long given up their job: one whose session ran out before it heard of its job never
 * began it, and waits for another one for ever, while its slot counts as busy. Such an agent is ended, once it can get no job any more.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { AzureClient } from './client.ts';
import type { Seen } from './watch.ts';

export interface OutlivedParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly client: Pick<AzureClient, 'agent' | 'setEnabled'>;
  /** Whether the agent's slot counts as busy with its job. */
  readonly isBusy: (agent: AgentId) => boolean;
}

/** ms in which an agent ends by itself after its job, with what it has to tidy up. */
const patience = 300_000;

/** To be told of each look, one after the other. */
export function createOutlived({ clock, log, client, isBusy }: OutlivedParts) {
  /** Since when each look has shown a busy agent online and without a job. */
  const idleSince = new Map<AgentId, number>();

  return async ({ pool, ours }: Seen, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> => {
    for (const agent of idleSince.keys()) if (!ours.has(agent)) idleSince.delete(agent);
    for (const [agent, { id, status, assignedRequest }] of ours) {
      if (status !== 'online' || assignedRequest !== null || !isBusy(agent)) {
        idleSince.delete(agent);
        continue;
      }
      const since = idleSince.get(agent) ?? clock.now();
      idleSince.set(agent, since);
      if (clock.now() - since < patience) continue;
      try {
        const isThere = (await client.setEnabled(pool.id, id, false, signal)) === 'done';
        const entry = isThere ? await client.agent(pool.id, id, { assigned: true }, signal) : null;
        idleSince.delete(agent);
        // One that was given another job in this moment goes on with it.
        if (entry !== null && entry.assignedRequest === null) {
          log.warn('an agent is ended that has outlived its job', { agent, entry: entry.name });
          emit({ kind: 'jobDone', agent });
        }
      } catch (error) {
        signal.throwIfAborted();
        log.warn('nobody can say whether an agent still has its job', { agent, reason: toFailure(error).message });
      }
    }
  };
}
