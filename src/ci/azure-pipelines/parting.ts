/**
 * Agents that are told to end before their job has reached them. An agent looks for messages all but 5 to 15 s of each minute: one
 * that ends before its job arrives tells of nothing, and the job is lost until its lock runs out, ten minutes later.
 */
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { until } from '../../until.ts';
import type { EndingAgent } from '../ci-service.ts';
import type { AzureClient } from './client.ts';
import type { JobBook } from './job-book.ts';
import type { Registrar } from './registrar.ts';
import { requestState } from './wire.ts';

export interface PartingParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly client: Pick<AzureClient, 'agent' | 'setEnabled'>;
  readonly registrar: Pick<Registrar, 'locate'>;
  readonly jobs: Pick<JobBook, 'had' | 'hasBegun'>;
  /** Agents that are to get no job any more. */
  readonly retired: Set<AgentId>;
}

/** ms that an end waits for the service to say whether there is a job. */
const patience = 3_000;
/** ms that it waits for a job that the service has given to the agent. */
const arrival = 20_000;

/** Resolves once the agent has its job, or can get none, or neither comes about in time. Never fails. */
export function createParting({ clock, log, client, registrar, jobs, retired }: PartingParts) {
  /** `onItsWay`: told once there is a job that the agent has yet to hear of. */
  async function arrived(agent: AgentId, onItsWay: () => void, signal: AbortSignal): Promise<void> {
    const remote = await registrar.locate(agent, signal);
    if (remote === null || (await client.setEnabled(remote.pool, remote.id, false, signal)) === 'absent') return;
    const since = clock.now();
    for (let isKnown = false; ; ) {
      try {
        const entry = await client.agent(remote.pool, remote.id, { assigned: true }, signal);
        if (entry?.assignedRequest == null) return;
        jobs.had(entry.assignedRequest, agent, remote.pool);
        if (requestState(entry.assignedRequest) !== 'assigned') return;
        isKnown = true;
        onItsWay();
      } catch (error) {
        signal.throwIfAborted();
        if (!isKnown) throw error;
      }
      await sleep(clock, clock.now() - since < patience ? 100 : 500, signal);
      signal.throwIfAborted();
    }
  }

  return async ({ agent, job, why }: EndingAgent, signal: AbortSignal): Promise<void> => {
    // Whoever works on its job has it; whoever is renewed was kept from jobs before.
    if (why === 'renewal' || (job !== null && jobs.hasBegun(job))) return;
    retired.add(agent);
    const late = new AbortController();
    const giveUp = () => late.abort(new Error('nothing came of it in time'));
    let callOff = clock.after(patience, giveUp);
    let isOnItsWay = false;
    const onItsWay = (): void => {
      if (isOnItsWay) return;
      isOnItsWay = true;
      callOff();
      callOff = clock.after(arrival, giveUp);
    };
    const either = AbortSignal.any([signal, late.signal]);
    try {
      await until(arrived(agent, onItsWay, either), either);
    } catch (error) {
      if (!signal.aborted) log.info('an agent ends that may just be given a job', { agent, reason: toFailure(error).message });
    } finally {
      callOff();
    }
  };
}
