/**
 * What every CI service that binds early does, over the port in `port.ts`: an agent must be online to get a job, so each standby is
 * registered while it waits, watched until it has a job, and removed from the service afterwards.
 */

import { hasCode, toFailure } from '../../base/errors.ts';
import { doubling, sleep } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import type { CiEvent, CiService, Deregistered } from '../../ports/ci-service.ts';
import { createJobRecords } from './job-records.ts';
import { createNamedRemoval } from './named.ts';
import { createOfflineAgents } from './offline-agents.ts';
import type { EarlyParts, Entry, Queue, Registry, Shown } from './port.ts';
import { createRegistrations, createSweep, type Registrations } from './registrations.ts';

/** How many removed agents are remembered. */
const remembered = 256;
/** ms. Longest wait between two looks at a service that is away, unless `pollEvery` is longer. */
const longest = 60_000;
/** ms between two looks at least, however often somebody asks for one. */
const shortest = 5_000;

/** All of the service except what only its adapter knows. */
type Common = Omit<CiService, 'capabilities' | 'check'> &
  Required<Pick<CiService, 'ending' | 'waiting' | 'serviceJobs' | 'removeNamed'>>;

/** `connect`: makes the adapter, which may also register other entries than agents, such as placeholders. */
export function createEarlyBound<R extends Registry>(parts: EarlyParts, connect: (registrations: Registrations) => R) {
  const { service, queues, store, clock, log } = parts;
  const { poolOf } = parts.slots;
  const registrations: Registrations = createRegistrations(parts, () => registry);
  const registry: R = connect(registrations);
  const jobs = createJobRecords({ service, store, clock, log, registry, poolOf });
  const inDoubt = createOfflineAgents(parts, registry, registrations, jobs);
  const sweep = createSweep(parts, registry, registrations, jobs.last);
  const named = createNamedRemoval(queues, registry, registrations);
  const waiting = new Map<string, number>();
  /** Agents that a look has shown at work. */
  const shownBusy = new Set<AgentId>();
  const underWay = new Set<string>();
  /** Queues that somebody wants to be looked at now, and what ends the waits for the next look. */
  const wanted = new Set<string>();
  const waits = new Map<string, AbortController>();
  /** What removed agents ran; asked for again when the sandbox could not be removed at once. */
  const ended = new Map<AgentId, Deregistered>();

  /** Work for which no look waits. If the same work is still under way, it is left to a later look. */
  function inBackground(what: string, work: () => Promise<void>, signal: AbortSignal): void {
    if (underWay.has(what)) return;
    underWay.add(what);
    work()
      .catch((error: unknown) => {
        if (!signal.aborted) log.error('failed to act on what a CI service reported', { reason: toFailure(error).message });
      })
      .finally(() => underWay.delete(what));
  }

  /** By agent id. Another service of this host may have its agents in the same queue. */
  function oursOf({ entries }: Shown): Map<AgentId, Entry> {
    const ours = new Map<AgentId, Entry>();
    for (const entry of entries) {
      const agent = registrations.agentNames.agentOf(entry.name);
      if (agent !== null && registrations.find(agent)?.service === service) ours.set(agent, entry);
    }
    return ours;
  }

  /** Emits events first: describing jobs and cleaning up make more calls, and may take long. */
  function follow(shown: Shown, steadySince: number, { pools }: Queue, emit: (event: CiEvent) => void, signal: AbortSignal): void {
    const { place, waiting: found } = shown;
    // First, because what an agent has got waits no more.
    let isNews = found !== undefined;
    for (const name of pools)
      if (found === undefined) isNews = waiting.delete(name) || isNews;
      else waiting.set(name, found.filter((one) => one.pools.includes(name)).length);
    const seen = { place, ours: oursOf(shown), steadySince };
    for (const [agent, { id, status, job }] of seen.ours) {
      registrations.seen(agent, id);
      if (status === 'online') emit({ kind: 'online', agent });
      if (job === null) continue;
      shownBusy.add(agent);
      emit({ kind: 'jobSeen', agent, job: jobs.had(job, agent, place) });
    }
    if (isNews) for (const pool of pools) emit({ kind: 'waiting', pool });
    jobs.saw(shown);
    named.saw(shown.entries);
    for (const [agent, { job }] of seen.ours) if (job !== null) jobs.describe(job, agent, place, signal);
    inBackground(`${place} silence`, () => inDoubt.silence(seen, emit, signal), signal);
    inBackground(`${place} outlived`, () => inDoubt.outlived(seen, emit, signal), signal);
    const rest = async () => {
      await registry.follow?.(shown, emit, signal);
      await sweep.after(shown, signal);
    };
    inBackground(`${place} rest`, rest, signal);
  }

  /** Looks at a queue until the signal aborts. A failed look says nothing about any agent (S6): it only holds pools. */
  async function watch(queue: Queue, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const { pace, random } = parts;
    let failures = 0;
    /** Since when every look has succeeded, core clock, ms; null: the last one failed. */
    let steadySince: number | null = null;
    const hold = (reason: string | null): void => {
      for (const pool of queue.pools) emit({ kind: 'hold', pool, reason });
    };

    async function look(): Promise<void> {
      let shown: Shown;
      try {
        shown = await registry.list(queue, signal);
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
      steadySince ??= clock.now();
      hold(null);
      try {
        follow(shown, steadySince, queue, emit, signal);
      } catch (error) {
        // An error here is not the service's.
        if (!signal.aborted) log.error('failed to act on what a CI service reported', { reason: toFailure(error).message });
      }
    }

    while (!signal.aborted) {
      wanted.delete(queue.name);
      await look();
      const wait = Math.max(pace.pollEvery, doubling(pace.pollEvery, longest, failures)) * (0.9 + random() * 0.2);
      // A service that is away is not asked more often because of what others tell.
      const soonest = clock.now() + (failures > 0 ? wait : Math.min(wait, shortest));
      const early = new AbortController();
      waits.set(queue.name, early);
      if (wanted.has(queue.name)) early.abort();
      if (!signal.aborted) await sleep(clock, wait, AbortSignal.any([signal, early.signal]));
      waits.delete(queue.name);
      if (clock.now() < soonest) await sleep(clock, soonest - clock.now(), signal);
    }
  }

  /** Also null for an agent that was to register itself and that the service has never seen. */
  async function whatRan(agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> {
    try {
      const remote = await registrations.locate(agent, signal);
      return remote === null ? null : await jobs.last(remote, agent, signal);
    } catch (error) {
      signal.throwIfAborted();
      log.warn('failed to find out what an agent did', { agent, reason: toFailure(error).message });
      return undefined;
    }
  }

  const common: Common = {
    name: service,
    jobs: null,
    observe(emit, signal) {
      jobs.resume(signal);
      for (const queue of queues) void watch(queue, emit, signal);
      if (queues.length === 0) void sweep.alone(signal);
    },
    async register(context, signal) {
      const { agent } = context;
      const name = registrations.agentNames.agentName(context.name, agent);
      const { place, create } = await registry.create(context, name, signal);
      return registrations.register({ agent, place, name, placeholder: false }, create, signal);
    },
    async deregister({ agent }, signal) {
      const registration = registrations.find(agent);
      inDoubt.forget(agent);
      if (registration === null) return { ran: null };
      if (registration.service !== service) return { ran: undefined };
      if (registration.state === 'removed') return ended.get(agent) ?? { ran: undefined };
      const ran = await whatRan(agent, signal);
      // Between two looks it got, and ended, a job that the last look counts as waiting.
      const pool = poolOf(agent) ?? '';
      const counted = waiting.get(pool) ?? 0;
      if (!shownBusy.delete(agent) && ran != null && counted > 0) waiting.set(pool, counted - 1);
      // A service that cannot say that now must not keep the slot waiting: the sweep continues with the entry.
      if (ran === undefined && registry.lastJob !== undefined) return { ran };
      try {
        if ((await registrations.remove(registration, signal)) === 'refused') {
          log.warn('the service does not yet release the entry of an agent that is gone', { agent, entry: registration.name });
        } else {
          ended.set(agent, { ran });
          for (const old of [...ended.keys()].slice(0, -remembered)) ended.delete(old);
        }
      } catch (error) {
        signal.throwIfAborted();
        log.warn('registration not removed yet', { agent, reason: toFailure(error).message });
      }
      return { ran };
    },
    retire: inDoubt.retire,
    ending: inDoubt.ending,
    waiting: (pool) => waiting.get(pool) ?? null,
    serviceJobs: () => jobs.list(),
    removeNamed: named.removeNamed,
  };
  /** Looks at a queue as soon as possible. */
  function lookNow(queue: string): void {
    wanted.add(queue);
    waits.get(queue)?.abort();
  }
  return { common, registry, registrations, lookNow, had: jobs.had };
}
