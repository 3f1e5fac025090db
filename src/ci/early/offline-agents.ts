/**
 * Agents of which nobody knows whether a job is on its way to them: to be renewed, to be told to end, not online in time, without the
 * job they had. What a look saw may be a minute old, so each is kept from jobs first, and the service is asked after that.
 */

import { abortable } from '../../abortable.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId, Failure, JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { CiEvent, EndingAgent } from '../ci-service.ts';
import type { SlotFacts } from '../parts.ts';
import type { JobRecords } from './job-records.ts';
import type { EarlyParts, Entry, Registry, Remote, Shown } from './port.ts';
import type { Registrations } from './registrations.ts';

export interface OfflineAgentsParts extends Pick<EarlyParts, 'service' | 'url' | 'bootTimeout' | 'clock' | 'log'> {
  readonly registry: Pick<Registry, 'isSingleUse' | 'find' | 'remove' | 'disable'>;
  readonly books: Registrations;
  readonly jobs: Pick<JobRecords, 'had' | 'hasBegun'>;
  readonly slots: Pick<SlotFacts, 'silentFor' | 'isBusy'>;
}

/** What a look shows of our agents, and since when every look has succeeded. */
export interface Ours {
  readonly place: Shown['place'];
  readonly ours: ReadonlyMap<AgentId, Entry>;
  /** Core clock, ms. */
  readonly steadySince: number;
}

/** ms that an end waits for the service to say whether there is a job. */
const patience = 3_000;
/** ms that it waits for a job that the service has given to the agent. */
const arrival = 20_000;
/** ms in which an agent ends by itself after its job, with what it has to tidy up. */
const tidying = 300_000;

export function createOfflineAgents(parts: OfflineAgentsParts) {
  const { service, clock, log, registry, books, jobs } = parts;
  const { silentFor, isBusy } = parts.slots;
  /** Agents that are to get no job any more, whatever is found. */
  const retired = new Set<AgentId>();
  /** Kept from jobs while they were asked about, and not given back to them yet. */
  const kept = new Map<AgentId, Remote>();
  /** Since when each look has shown a busy agent online and without a job. */
  const idleSince = new Map<AgentId, number>();

  /** No job can come to it any more. Answers its entry as it is then; null when there is none. */
  async function keep(remote: Remote, signal: AbortSignal): Promise<Entry | null> {
    if (registry.disable !== undefined) {
      if ((await registry.disable(remote, true, signal)) === 'absent') return null;
      return registry.find(remote, signal);
    }
    if ((await registry.remove(remote, signal)) !== 'busy') return null;
    const entry = await registry.find(remote, signal);
    if (entry === null || entry.job !== null) return entry;
    throw new OnejobError('E_CI_UNREACHABLE', `${parts.url} reports that agent ${entry.name} has a job, but not which one.`, {
      hint: 'onejob asks again.',
      retry: true,
    });
  }

  /** Resolves once the agent has its job, or can get none. `onItsWay`: told once there is a job that it has yet to hear of. */
  async function arrived(agent: AgentId, onItsWay: () => void, signal: AbortSignal): Promise<void> {
    const remote = await books.locate(agent, signal);
    if (remote === null) return;
    const since = clock.now();
    for (let entry = await keep(remote, signal); entry !== null && entry.job !== null; ) {
      jobs.had(entry.job, agent, remote.place);
      if (entry.job.state !== 'assigned') return;
      onItsWay();
      await sleep(clock, clock.now() - since < patience ? 100 : 500, signal);
      signal.throwIfAborted();
      const before: Entry = entry;
      entry = await registry.find(remote, signal).catch(() => {
        signal.throwIfAborted();
        return before;
      });
    }
  }

  const openAt = (place: string) => books.open().filter((one) => !one.placeholder && one.place === place);

  const giveBack = async (agent: AgentId, remote: Remote, signal: AbortSignal): Promise<void> => {
    if (!retired.has(agent)) await registry.disable?.(remote, false, signal);
    kept.delete(agent);
  };

  const silent = (agent: AgentId): Failure => ({
    code: 'E_AGENT_SILENT',
    message: `Agent ${agent} was started ${Math.round((silentFor(agent) ?? 0) / 1000)} s ago and has not come online at ${parts.url}. Check whether it can reach that address from inside its container, and check the clock of this host.`,
    retry: true,
  });

  /** One that has come online meanwhile goes on, with its job if it has one. */
  async function isItSilent(agent: AgentId, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const remote = await books.locate(agent, signal);
    if (remote !== null) {
      const canDisable = registry.disable !== undefined;
      if (canDisable) kept.set(agent, remote);
      let entry = canDisable ? await keep(remote, signal) : await registry.find(remote, signal);
      // What can only be removed is so once it is known to be of no use.
      if (!canDisable && entry?.status === 'offline' && entry.job === null) entry = await keep(remote, signal);
      // It has its one job: whether it could be given another does not matter.
      if (entry !== null && entry.job !== null) {
        kept.delete(agent);
        emit({ kind: 'jobSeen', agent, job: jobs.had(entry.job, agent, remote.place) });
        return;
      }
      if (entry !== null && entry.status !== 'offline') {
        await giveBack(agent, remote, signal);
        if (entry.status === 'online') emit({ kind: 'online', agent });
        return;
      }
      kept.delete(agent);
    }
    if (silentFor(agent) !== null) emit({ kind: 'silent', agent, failure: silent(agent) });
  }

  return {
    /** As `CiService.retire`. */
    async retire(agent: AgentId, signal: AbortSignal): Promise<JobId | null> {
      retired.add(agent);
      const owner = books.find(agent)?.service ?? service;
      if (owner !== service)
        throw new OnejobError('E_CI_UNREACHABLE', `Cannot ask ${service} for agent ${agent}: service "${owner}" registered it.`, {
          hint: `Put "${owner}" back into the config until the agent is gone.`,
          retry: true,
        });
      const remote = await books.locate(agent, signal);
      if (remote === null) return null;
      const entry = await keep(remote, signal);
      return entry === null || entry.job === null ? null : jobs.had(entry.job, agent, remote.place);
    },

    /**
     * As `CiService.ending`. An agent may not listen for messages all the time: one that ends before its job arrives tells of nothing,
     * and the job is lost until its lock runs out.
     */
    async ending({ agent, job, why }: EndingAgent, signal: AbortSignal): Promise<void> {
      // Whoever works on its job has it; whoever is renewed was kept from jobs before.
      if (why === 'renewal' || (job !== null && jobs.hasBegun(job))) return;
      retired.add(agent);
      const late = new AbortController();
      const giveUp = () => late.abort(new Error('no result in time'));
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
        await abortable(arrived(agent, onItsWay, either), either);
      } catch (error) {
        if (!signal.aborted)
          log.info('an agent ends while the service may be giving it a job', { agent, reason: toFailure(error).message });
      } finally {
        callOff();
      }
    },

    /** Agents that should be online by now and are not. To be told of each look, one after the other, like `outlived`. */
    async silence({ place, ours, steadySince }: Ours, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
      // An agent that could not reach a service that was away is not to blame for it.
      const steady = clock.now() - steadySince;
      for (const agent of kept.keys()) if (books.find(agent)?.state === 'removed') kept.delete(agent);
      for (const { agent } of openAt(place)) {
        const isOnline = ours.get(agent)?.status === 'online';
        const remote = kept.get(agent);
        try {
          if (isOnline && remote !== undefined) await giveBack(agent, remote, signal);
          if (!isOnline && Math.min(silentFor(agent) ?? 0, steady) > parts.bootTimeout) await isItSilent(agent, emit, signal);
        } catch (error) {
          signal.throwIfAborted();
          log.warn('failed to find out whether an agent is silent', { agent, reason: toFailure(error).message });
        }
      }
    },

    /**
     * Agents that are still there when the service has long given up their job: one whose session ran out before it heard of its job
     * never began it, and waits for another one for ever, while its slot counts as busy; and one of single use goes on with a job that
     * was cancelled, when it does not hear of that.
     */
    async outlived({ place, ours }: Ours, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
      const seen = new Map<AgentId, Entry | null>(ours);
      if (registry.isSingleUse === true)
        for (const { agent } of openAt(place)) if (!seen.has(agent) && books.remoteOf(agent) !== null) seen.set(agent, null);
      for (const agent of idleSince.keys()) if (!seen.has(agent)) idleSince.delete(agent);
      for (const [agent, one] of seen) {
        if ((one !== null && (one.status !== 'online' || one.job !== null)) || !isBusy(agent)) {
          idleSince.delete(agent);
          continue;
        }
        const since = idleSince.get(agent) ?? clock.now();
        idleSince.set(agent, since);
        if (clock.now() - since < tidying) continue;
        try {
          const entry = one === null ? null : await keep(one, signal);
          idleSince.delete(agent);
          // One that was given another job in this moment goes on with it.
          if (entry === null ? one !== null && registry.disable !== undefined : entry.job !== null) continue;
          log.warn('onejob ends an agent that outlived its job', { agent, entry: books.find(agent)?.name });
          emit({ kind: 'jobDone', agent });
        } catch (error) {
          signal.throwIfAborted();
          log.warn('failed to find out whether an agent still has its job', { agent, reason: toFailure(error).message });
        }
      }
    },

    /** It is gone. */
    forget: (agent: AgentId) => void retired.delete(agent),
  };
}
