/**
 * Agents that are told to end while they wait for a job. The service may have given them one in the same moment: an agent that ends
 * before its job arrives tells of nothing, and the job is lost until its lock runs out, ten minutes later.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import { passing } from '../../passing.ts';
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
  readonly jobs: Pick<JobBook, 'had'>;
  /** Agents that are to get no job any more. */
  readonly retired: Set<AgentId>;
}

/** ms that an end waits for a job to arrive, or for the service to answer. */
const patience = 3_000;
const betweenLooks = 100;

/** Resolves once the agent has its job, or can get none, or after three seconds. Never fails. */
export function createParting({ clock, log, client, registrar, jobs, retired }: PartingParts) {
  async function arrived(agent: AgentId, signal: AbortSignal): Promise<void> {
    const remote = await registrar.locate(agent, signal);
    if (remote === null || (await client.setEnabled(remote.pool, remote.id, false, signal)) === 'absent') return;
    for (;;) {
      const entry = await client.agent(remote.pool, remote.id, { assigned: true }, signal);
      if (entry?.assignedRequest == null) return;
      jobs.had(entry.assignedRequest, agent, remote.pool);
      if (requestState(entry.assignedRequest) !== 'assigned') return;
      await passing(clock, betweenLooks, signal);
      signal.throwIfAborted();
    }
  }

  return async ({ agent, job, why }: EndingAgent, signal: AbortSignal): Promise<void> => {
    // Whoever is seen to have a job has it; whoever is renewed was kept from jobs before.
    if (job !== null || why === 'renewal') return;
    retired.add(agent);
    const late = new AbortController();
    const callOff = clock.after(patience, () => late.abort(new Error('nothing came of it in time')));
    const either = AbortSignal.any([signal, late.signal]);
    try {
      await until(arrived(agent, either), either);
    } catch (error) {
      if (!signal.aborted) log.info('an agent ends that may just be given a job', { agent, reason: toFailure(error).message });
    } finally {
      callOff();
    }
  };
}
