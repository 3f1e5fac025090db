/**
 * Agents that should be online by now and are not. What a look saw may be a minute old, so the service is asked anew, after no job
 * can come any more in between: one that has come online meanwhile goes on, with its job if it has one.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId, Failure } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { AzureClient } from './client.ts';
import type { JobBook } from './job-book.ts';
import type { Registrar, Remote } from './registrar.ts';
import type { Seen } from './watch.ts';

export interface SilenceParts {
  readonly url: string;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly clock: Clock;
  readonly log: Log;
  readonly client: Pick<AzureClient, 'agent' | 'setEnabled'>;
  readonly registrar: Registrar;
  readonly jobs: Pick<JobBook, 'had'>;
  /** How long a released agent has not been seen by its service, ms; null for any other. */
  readonly silentFor: (agent: AgentId) => number | null;
  /** Agents that are to get no job any more, whatever is found. */
  readonly retired: ReadonlySet<AgentId>;
}

export interface Silence {
  after(seen: Seen, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void>;
}

export function createSilence(parts: SilenceParts): Silence {
  const { clock, log, client, registrar, jobs, silentFor, retired } = parts;
  /** Kept from jobs while they were asked about, and not given back to them yet. */
  const kept = new Map<AgentId, Remote>();

  const giveBack = async (agent: AgentId, { pool, id }: Remote, signal: AbortSignal): Promise<void> => {
    if (!retired.has(agent)) await client.setEnabled(pool, id, true, signal);
    kept.delete(agent);
  };

  const failure = (agent: AgentId): Failure => ({
    code: 'E_AGENT_SILENT',
    message: `Agent ${agent} was started ${Math.round((silentFor(agent) ?? 0) / 1000)} s ago and has not come online at ${parts.url}. Look whether it reaches that address from inside its container, and at the clock of this host.`,
    retry: true,
  });

  async function ask(agent: AgentId, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const remote = await registrar.locate(agent, signal);
    if (remote !== null) {
      kept.set(agent, remote);
      const isThere = (await client.setEnabled(remote.pool, remote.id, false, signal)) === 'done';
      const entry = isThere ? await client.agent(remote.pool, remote.id, { assigned: true }, signal) : null;
      // It has its one job: whether it could be given another does not matter.
      if (entry?.assignedRequest != null) {
        kept.delete(agent);
        emit({ kind: 'jobSeen', agent, job: jobs.had(entry.assignedRequest, agent, remote.pool) });
        return;
      }
      if (entry !== null && entry.status !== 'offline') {
        await giveBack(agent, remote, signal);
        if (entry.status === 'online') emit({ kind: 'online', agent });
        return;
      }
      kept.delete(agent);
    }
    if (silentFor(agent) !== null) emit({ kind: 'silent', agent, failure: failure(agent) });
  }

  return {
    async after({ pool, ours, steadySince }, emit, signal) {
      // An agent that could not reach a service that was away is not to blame for it.
      const steady = clock.now() - steadySince;
      const open = registrar.open().filter(({ place, placeholder }) => !placeholder && Number(place) === pool.id);
      for (const agent of kept.keys()) if (registrar.find(agent)?.state === 'removed') kept.delete(agent);
      for (const { agent } of open) {
        const isOnline = ours.get(agent)?.status === 'online';
        const remote = kept.get(agent);
        try {
          if (isOnline && remote !== undefined) await giveBack(agent, remote, signal);
          if (!isOnline && Math.min(silentFor(agent) ?? 0, steady) > parts.bootTimeout) await ask(agent, emit, signal);
        } catch (error) {
          signal.throwIfAborted();
          log.warn('nobody can say whether an agent is silent', { agent, reason: toFailure(error).message });
        }
      }
    },
  };
}
