/**
 * What every CI service that binds early does, over the port in `port.ts`: an agent must be online to get a job, so each standby is
 * registered while it waits, watched until it has a job, and removed from the service afterwards.
 */

import { hasCode, toFailure } from '../../base/errors.ts';
import { doubling, sleep } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import type { AgentContext, CiEvent, CiService, Deregistered, Registration } from '../../ports/ci-service.ts';
import { UnfitWatch, unfitHow } from '../kit/unfit.ts';
import { JobRecords } from './job-records.ts';
import { createNamedRemover, type NamedRemover } from './named.ts';
import { OfflineAgents } from './offline-agents.ts';
import type { EarlyParts, Entry, Queue, Registry, RemoteJob, Shown } from './port.ts';
import { Registrations, Sweep } from './registrations.ts';

/** How many removed agents are remembered. */
const remembered = 256;
/** ms. Longest wait between two looks at a service that is away, unless `pollEvery` is longer. */
const longest = 60_000;
/** ms between two looks at least, however often somebody asks for one. */
const shortest = 5_000;

/** All of the service except what only its adapter knows. */
type Common = Omit<CiService, 'capabilities' | 'check'> &
  Required<Pick<CiService, 'ending' | 'waiting' | 'unfit' | 'serviceJobs' | 'removeNamed'>>;

/** `connect`: makes the adapter, which may also register other entries than agents, such as placeholders. */
export class EarlyBound<R extends Registry> {
  readonly #parts: EarlyParts;
  readonly registrations: Registrations;
  readonly registry: R;
  readonly #jobs: JobRecords;
  readonly #inDoubt: OfflineAgents;
  readonly #sweep: Sweep;
  readonly #named: NamedRemover;
  readonly #waiting = new Map<string, number>();
  readonly #unfit: UnfitWatch;
  /** Agents that a look has shown at work. */
  readonly #shownBusy = new Set<AgentId>();
  readonly #underWay = new Set<string>();
  /** Queues that somebody wants to be looked at now, and what ends the waits for the next look. */
  readonly #wanted = new Set<string>();
  readonly #waits = new Map<string, AbortController>();
  /** What removed agents ran; asked for again when the sandbox could not be removed at once. */
  readonly #ended = new Map<AgentId, Deregistered>();
  readonly common: Common;

  constructor(parts: EarlyParts, connect: (registrations: Registrations) => R) {
    this.#parts = parts;
    this.registrations = new Registrations(this.#parts, () => this.registry);
    this.registry = connect(this.registrations);
    this.#jobs = new JobRecords({ ...parts, registry: this.registry, poolOf: parts.slots.poolOf });
    this.#inDoubt = new OfflineAgents(this.#parts, this.registry, this.registrations, this.#jobs);
    this.#sweep = new Sweep(this.#parts, this.registry, this.registrations, (remote, agent, signal) =>
      this.#jobs.last(remote, agent, signal),
    );
    this.#unfit = new UnfitWatch(parts.clock, parts.compare);
    this.#named = createNamedRemover(this.#parts.queues, this.registry, this.registrations);
    this.common = {
      name: this.#parts.service,
      jobs: null,
      observe: (emit, signal) => this.#observe(emit, signal),
      register: (context, signal) => this.#register(context, signal),
      deregister: (context, signal) => this.#deregister(context, signal),
      retire: (agent, signal) => this.#inDoubt.retire(agent, signal),
      ending: (agent, signal) => this.#inDoubt.ending(agent, signal),
      waiting: (pool) => this.#waiting.get(pool) ?? null,
      unfit: () => this.#unfit.list(),
      serviceJobs: () => this.#jobs.list(),
      removeNamed: this.#named.removeNamed,
    };
  }

  /** Looks at a queue as soon as possible. */
  lookNow(queue: string): void {
    this.#wanted.add(queue);
    this.#waits.get(queue)?.abort();
  }

  /** An agent has, or had, this job. `place`: of the queue at the service. */
  had(job: RemoteJob, agent: AgentId, place: string): void {
    this.#jobs.had(job, agent, place);
  }

  #observe(emit: (event: CiEvent) => void, signal: AbortSignal): void {
    this.#jobs.resume(signal);
    for (const queue of this.#parts.queues) void this.#watch(queue, emit, signal);
    if (this.#parts.queues.length === 0) void this.#sweep.alone(signal);
  }

  async #register(context: AgentContext, signal: AbortSignal): Promise<Registration> {
    const { agent } = context;
    const name = this.registrations.agentNames.agentName(context.name, agent);
    const { place, create } = await this.registry.create(context, name, signal);
    return this.registrations.register({ agent, place, name, placeholder: false }, create, signal);
  }

  async #deregister({ agent }: { readonly agent: AgentId }, signal: AbortSignal): Promise<Deregistered> {
    const registration = this.registrations.find(agent);
    this.#inDoubt.forget(agent);
    if (registration === null) return { ran: null };
    if (registration.service !== this.#parts.service) return { ran: undefined };
    if (registration.state === 'removed') return this.#ended.get(agent) ?? { ran: undefined };
    const ran = await this.#whatRan(agent, signal);
    // Between two looks it got, and ended, a job that the last look counts as waiting.
    const pool = this.#parts.slots.poolOf(agent) ?? '';
    const counted = this.#waiting.get(pool) ?? 0;
    if (!this.#shownBusy.delete(agent) && ran != null && counted > 0) this.#waiting.set(pool, counted - 1);
    // A service that cannot say that now must not keep the slot waiting: the sweep continues with the entry.
    if (ran === undefined && this.registry.lastJob !== undefined) return { ran };
    try {
      if ((await this.registrations.remove(registration, signal)) === 'refused') {
        this.#parts.log.warn('the service does not yet release the entry of an agent that is gone', {
          agent,
          entry: registration.name,
        });
      } else {
        this.#ended.set(agent, { ran });
        for (const old of [...this.#ended.keys()].slice(0, -remembered)) this.#ended.delete(old);
      }
    } catch (error) {
      signal.throwIfAborted();
      this.#parts.log.warn('registration not removed yet', { agent, reason: toFailure(error).message });
    }
    return { ran };
  }

  /** Work for which no look waits. If the same work is still under way, it is left to a later look. */
  #inBackground(what: string, work: () => Promise<void>, signal: AbortSignal): void {
    if (this.#underWay.has(what)) return;
    this.#underWay.add(what);
    work()
      .catch((error: unknown) => {
        if (!signal.aborted)
          this.#parts.log.error('failed to act on what a CI service reported', { reason: toFailure(error).message });
      })
      .finally(() => this.#underWay.delete(what));
  }

  /** By agent id. Another service of this host may have its agents in the same queue. */
  #oursOf({ entries }: Shown): Map<AgentId, Entry> {
    const ours = new Map<AgentId, Entry>();
    for (const entry of entries) {
      const agent = this.registrations.agentNames.agentOf(entry.name);
      if (agent !== null && this.registrations.find(agent)?.service === this.#parts.service) ours.set(agent, entry);
    }
    return ours;
  }

  /** Emits events first: describing jobs and cleaning up make more calls, and may take long. */
  #follow(
    shown: Shown,
    steadySince: number,
    { name: queue, pools }: Queue,
    emit: (event: CiEvent) => void,
    signal: AbortSignal,
  ): void {
    const { place, waiting: found } = shown;
    // First, because what an agent has got waits no more.
    let isNews = found !== undefined;
    for (const name of pools)
      if (found === undefined) isNews = this.#waiting.delete(name) || isNews;
      else this.#waiting.set(name, found.filter((one) => one.pools.includes(name)).length);
    const unfit = found?.filter((one) => one.pools.length === 0 && !one.isForOthers);
    const asked = unfit?.map(({ job }) => [job.id, { jobs: 1, how: unfitHow(shown.title, job.facts().demands) }] as const);
    if (asked !== undefined) this.#unfit.saw(queue, new Map(asked));
    const seen = { place, ours: this.#oursOf(shown), steadySince };
    for (const [agent, { id, status, job }] of seen.ours) {
      this.registrations.seen(agent, id);
      if (status === 'online') emit({ kind: 'online', agent });
      if (job === null) continue;
      this.#shownBusy.add(agent);
      emit({ kind: 'jobSeen', agent, job: this.#jobs.had(job, agent, place) });
    }
    if (isNews) for (const pool of pools) emit({ kind: 'waiting', pool });
    this.#jobs.saw(shown);
    this.#named.saw(shown.entries);
    for (const [agent, { job }] of seen.ours) if (job !== null) this.#jobs.describe(job, agent, place, signal);
    this.#inBackground(`${place} silence`, () => this.#inDoubt.silence(seen, emit, signal), signal);
    this.#inBackground(`${place} outlived`, () => this.#inDoubt.outlived(seen, emit, signal), signal);
    const rest = async () => {
      await this.registry.follow?.(shown, emit, signal);
      await this.#sweep.after(shown, signal);
    };
    this.#inBackground(`${place} rest`, rest, signal);
  }

  /** Looks at a queue until the signal aborts. A failed look says nothing about any agent (S6): it only holds pools. */
  async #watch(queue: Queue, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const { pace, random } = this.#parts;
    let failures = 0;
    /** Since when every look has succeeded, core clock, ms; null: the last one failed. */
    let steadySince: number | null = null;
    const hold = (reason: string | null): void => {
      for (const pool of queue.pools) emit({ kind: 'hold', pool, reason });
    };

    const look = async (): Promise<void> => {
      let shown: Shown;
      try {
        shown = await this.registry.list(queue, signal);
      } catch (error) {
        if (signal.aborted) return;
        // A refused credential is not sent again, so checking whether it was changed costs nothing.
        failures = hasCode(error, 'E_CI_CREDENTIAL') ? 1 : failures + 1;
        steadySince = null;
        hold(toFailure(error).message);
        return;
      }
      if (signal.aborted) return;
      failures = 0;
      steadySince ??= this.#parts.clock.now();
      hold(null);
      try {
        this.#follow(shown, steadySince, queue, emit, signal);
      } catch (error) {
        // An error here is not the service's.
        if (!signal.aborted)
          this.#parts.log.error('failed to act on what a CI service reported', { reason: toFailure(error).message });
      }
    };

    while (!signal.aborted) {
      this.#wanted.delete(queue.name);
      await look();
      const wait = Math.max(pace.pollEvery, doubling(pace.pollEvery, longest, failures)) * (0.9 + random() * 0.2);
      // A service that is away is not asked more often because of what others tell.
      const soonest = this.#parts.clock.now() + (failures > 0 ? wait : Math.min(wait, shortest));
      const early = new AbortController();
      this.#waits.set(queue.name, early);
      if (this.#wanted.has(queue.name)) early.abort();
      if (!signal.aborted) await sleep(this.#parts.clock, wait, AbortSignal.any([signal, early.signal]));
      this.#waits.delete(queue.name);
      if (this.#parts.clock.now() < soonest) await sleep(this.#parts.clock, soonest - this.#parts.clock.now(), signal);
    }
  }

  /** Also null for an agent that was to register itself and that the service has never seen. */
  async #whatRan(agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> {
    try {
      const remote = await this.registrations.locate(agent, signal);
      return remote === null ? null : await this.#jobs.last(remote, agent, signal);
    } catch (error) {
      signal.throwIfAborted();
      this.#parts.log.warn('failed to find out what an agent did', { agent, reason: toFailure(error).message });
      return undefined;
    }
  }
}
