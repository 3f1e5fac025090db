/**
 * Agents that may be getting a job right now: to be renewed, to be told to end, not online in time, or without the job they had. A
 * look may be a minute old, so onejob first keeps jobs from such an agent, and then asks the service.
 */
import { abortable } from '../../base/abortable.ts';
import { type Failure, OnejobError, toFailure } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import type { CiEvent, EndingAgent } from '../../ports/ci-service.ts';
import type { SlotFacts } from '../parts.ts';
import type { JobRecords } from './job-records.ts';
import type { EarlyParts, Entry, Registry, Remote, Shown } from './port.ts';
import type { Registrations } from './registrations.ts';

/** What a look shows of our agents. `steadySince`: since when every look has succeeded, core clock, ms. */
export interface Ours extends Pick<Shown, 'place'> {
  readonly ours: ReadonlyMap<AgentId, Entry>;
  readonly steadySince: number;
}

/** ms that an end waits for the service to say whether there is a job, and for a job that the service has assigned to arrive. */
const [patience, arrival] = [3_000, 20_000];
/** ms in which an agent ends by itself after its job, including its own clean-up. */
const tidying = 300_000;

interface OfflineAgentsParts extends Pick<EarlyParts, 'service' | 'url' | 'pace' | 'clock' | 'log'> {
  readonly slots: Pick<SlotFacts, 'silentFor' | 'isBusy'>;
}

export class OfflineAgents {
  readonly #parts: OfflineAgentsParts;
  readonly #registry: Pick<Registry, 'find' | 'remove' | 'disable'>;
  readonly #registrations: Registrations;
  readonly #jobs: Pick<JobRecords, 'had' | 'hasBegun'>;
  /** Agents that get no more jobs. */
  readonly #retired = new Set<AgentId>();
  /** Agents that were kept from jobs while onejob asked about them, and still are. */
  readonly #kept = new Map<AgentId, Remote>();
  /** Since when each look has shown a busy agent online and without a job. */
  readonly #idleSince = new Map<AgentId, number>();

  constructor(
    parts: OfflineAgentsParts,
    registry: Pick<Registry, 'find' | 'remove' | 'disable'>,
    registrations: Registrations,
    jobs: Pick<JobRecords, 'had' | 'hasBegun'>,
  ) {
    this.#parts = parts;
    this.#registry = registry;
    this.#registrations = registrations;
    this.#jobs = jobs;
  }

  /** As `CiService.retire`. */
  async retire(agent: AgentId, signal: AbortSignal): Promise<JobId | null> {
    this.#retired.add(agent);
    const { service } = this.#parts;
    const owner = this.#registrations.find(agent)?.service ?? service;
    if (owner !== service)
      throw new OnejobError('E_CI_UNREACHABLE', `Cannot ask ${service} for agent ${agent}: service "${owner}" registered it.`, {
        hint: `Put "${owner}" back into the config until the agent is gone.`,
        retry: true,
      });
    const remote = await this.#registrations.locate(agent, signal);
    if (remote === null) return null;
    const entry = await this.#keep(remote, signal);
    return entry === null || entry.job === null ? null : this.#jobs.had(entry.job, agent, remote.place);
  }

  /** As `CiService.ending`. An agent that ends before its job arrives reports nothing, and the job is lost. */
  async ending({ agent, job, why }: EndingAgent, signal: AbortSignal): Promise<void> {
    // An agent that works on its job has it; an agent that is renewed was kept from jobs before.
    if (why === 'renewal' || (job !== null && this.#jobs.hasBegun(job))) return;
    this.#retired.add(agent);
    const late = new AbortController();
    const giveUp = () => late.abort(new Error('no result in time'));
    let callOff = this.#parts.clock.after(patience, giveUp);
    let isOnItsWay = false;
    const onItsWay = (): void => {
      if (isOnItsWay) return;
      isOnItsWay = true;
      callOff();
      callOff = this.#parts.clock.after(arrival, giveUp);
    };
    const either = AbortSignal.any([signal, late.signal]);
    try {
      await abortable(this.#arrived(agent, onItsWay, either), either);
    } catch (error) {
      const { message: reason } = toFailure(error);
      if (!signal.aborted) this.#parts.log.info('an agent ends while the service may be giving it a job', { agent, reason });
    } finally {
      callOff();
    }
  }

  /** Agents that should be online by now and are not. Called for each look, one at a time, like `outlived`. */
  async silence({ place, ours, steadySince }: Ours, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    // While the service was away, no agent could reach it.
    const steady = this.#parts.clock.now() - steadySince;
    for (const agent of this.#kept.keys()) if (this.#registrations.find(agent)?.state === 'removed') this.#kept.delete(agent);
    for (const { agent } of this.#openAt(place)) {
      const isOnline = ours.get(agent)?.status === 'online';
      const remote = this.#kept.get(agent);
      try {
        if (isOnline && remote !== undefined) await this.#giveBack(agent, remote, signal);
        if (!isOnline && Math.min(this.#parts.slots.silentFor(agent) ?? 0, steady) > this.#parts.pace.bootTimeout)
          await this.#isItSilent(agent, emit, signal);
      } catch (error) {
        signal.throwIfAborted();
        this.#parts.log.warn('failed to find out whether an agent is silent', { agent, reason: toFailure(error).message });
      }
    }
  }

  /**
   * Agents that are still there although the service has long given up their job. An agent whose session expired before its job arrived
   * never began it, and waits forever in a slot that counts as busy.
   */
  async outlived({ ours }: Pick<Ours, 'ours'>, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    for (const agent of this.#idleSince.keys()) if (!ours.has(agent)) this.#idleSince.delete(agent);
    for (const [agent, one] of ours) {
      if (one.status !== 'online' || one.job !== null || !this.#parts.slots.isBusy(agent)) {
        this.#idleSince.delete(agent);
        continue;
      }
      const since = this.#idleSince.get(agent) ?? this.#parts.clock.now();
      this.#idleSince.set(agent, since);
      if (this.#parts.clock.now() - since < tidying) continue;
      try {
        const entry = await this.#keep(one, signal);
        this.#idleSince.delete(agent);
        // An agent that just got another job continues with it.
        if (entry === null ? this.#registry.disable !== undefined : entry.job !== null) continue;
        this.#parts.log.warn('onejob ends an agent that outlived its job', { agent, entry: this.#registrations.find(agent)?.name });
        emit({ kind: 'jobDone', agent });
      } catch (error) {
        signal.throwIfAborted();
        this.#parts.log.warn('failed to find out whether an agent still has its job', { agent, reason: toFailure(error).message });
      }
    }
  }

  forget(agent: AgentId): void {
    this.#retired.delete(agent);
  }

  /** Makes sure that the agent gets no more jobs. Answers its entry after that; null: it has none. */
  async #keep(remote: Remote, signal: AbortSignal): Promise<Entry | null> {
    if (this.#registry.disable !== undefined) {
      if ((await this.#registry.disable(remote, true, signal)) === 'absent') return null;
      return this.#registry.find(remote, signal);
    }
    if ((await this.#registry.remove(remote, signal)) !== 'busy') return null;
    const entry = await this.#registry.find(remote, signal);
    if (entry === null || entry.job !== null) return entry;
    throw new OnejobError('E_CI_UNREACHABLE', `${this.#parts.url} reports that agent ${entry.name} has a job, but not which one.`, {
      hint: 'onejob asks again.',
      retry: true,
    });
  }

  /** Resolves once the agent has its job, or can get none. `onItsWay`: called once a job is assigned that has not arrived. */
  async #arrived(agent: AgentId, onItsWay: () => void, signal: AbortSignal): Promise<void> {
    const remote = await this.#registrations.locate(agent, signal);
    if (remote === null) return;
    const since = this.#parts.clock.now();
    for (let entry = await this.#keep(remote, signal); entry !== null && entry.job !== null; ) {
      this.#jobs.had(entry.job, agent, remote.place);
      if (entry.job.state !== 'assigned') return;
      onItsWay();
      await sleep(this.#parts.clock, this.#parts.clock.now() - since < patience ? 100 : 500, signal);
      signal.throwIfAborted();
      const before: Entry = entry;
      entry = await this.#registry.find(remote, signal).catch(() => {
        signal.throwIfAborted();
        return before;
      });
    }
  }

  #openAt(place: string) {
    return this.#registrations.open().filter((one) => !one.placeholder && one.place === place);
  }

  async #giveBack(agent: AgentId, remote: Remote, signal: AbortSignal): Promise<void> {
    if (!this.#retired.has(agent)) await this.#registry.disable?.(remote, false, signal);
    this.#kept.delete(agent);
  }

  #silent(agent: AgentId): Failure {
    return {
      code: 'E_AGENT_SILENT',
      message: `Agent ${agent} was started ${Math.round((this.#parts.slots.silentFor(agent) ?? 0) / 1000)} s ago and has not come online at ${this.#parts.url}. Check whether it can reach that address from inside its container, and check the clock of this host.`,
      retry: true,
    };
  }

  /** An agent that has come online meanwhile continues, with its job if it has one. */
  async #isItSilent(agent: AgentId, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const remote = await this.#registrations.locate(agent, signal);
    if (remote !== null) {
      const canDisable = this.#registry.disable !== undefined;
      if (canDisable) this.#kept.set(agent, remote);
      let entry = canDisable ? await this.#keep(remote, signal) : await this.#registry.find(remote, signal);
      // An entry that can only be removed is removed once it is known to be useless.
      if (!canDisable && entry?.status === 'offline' && entry.job === null) entry = await this.#keep(remote, signal);
      // It has its one job, so it may stay disabled.
      if (entry !== null && entry.job !== null) {
        this.#kept.delete(agent);
        emit({ kind: 'jobSeen', agent, job: this.#jobs.had(entry.job, agent, remote.place) });
        return;
      }
      if (entry !== null && entry.status !== 'offline') {
        await this.#giveBack(agent, remote, signal);
        if (entry.status === 'online') emit({ kind: 'online', agent });
        return;
      }
      this.#kept.delete(agent);
    }
    if (this.#parts.slots.silentFor(agent) !== null) emit({ kind: 'silent', agent, failure: this.#silent(agent) });
  }
}
