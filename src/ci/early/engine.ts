/**
 * What every CI service does that binds early, over the port beside this file: an agent must be online to be given a job, so each
 * standby is made known to the service while it waits, watched until it has a job, and taken off the service's list again.
 */
import { sleep } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { CiEvent, CiService, Deregistered } from '../ci-service.ts';
import { createJobRecords } from './job-records.ts';
import { createOfflineAgents } from './offline-agents.ts';
import type { EarlyParts, Entry, Queue, Registry, Shown } from './port.ts';
import { createRegistrations, createSweep, type Registrations } from './registrations.ts';

export interface EarlyBound<R> {
  /** All of the service but what only its adapter knows. */
  readonly common: Omit<CiService, 'capabilities' | 'check'> & Required<Pick<CiService, 'ending' | 'waiting' | 'serviceJobs'>>;
  readonly registry: R;
  readonly books: Registrations;
}

/** Ends that are remembered. */
const remembered = 256;
/** ms between two looks at a service that is away, at most; more only where config says so. */
const longest = 60_000;

/** `connect`: makes the adapter, which may enter more than agents into the books, such as placeholders. */
export function createEarlyBound<R extends Registry>(parts: EarlyParts, connect: (books: Registrations) => R): EarlyBound<R> {
  const { service, queues, store, clock, log } = parts;
  const { poolOf } = parts.slots;
  const books: Registrations = createRegistrations({ ...parts, registry: () => registry });
  const registry: R = connect(books);
  const jobs = createJobRecords({ service, store, clock, log, registry, poolOf });
  const inDoubt = createOfflineAgents({ ...parts, registry, books, jobs });
  const sweep = createSweep({ ...parts, registry, books, before: jobs.last });
  const waiting = new Map<string, number>();
  const underWay = new Set<string>();
  /** What had become of agents that are off the list; asked for again when the sandbox could not be removed at once. */
  const ended = new Map<AgentId, Deregistered>();

  /** Beside the looks, of which none waits for it, one at a time: what finds one under way is left to a later look. */
  function beside(what: string, work: () => Promise<void>, signal: AbortSignal): void {
    if (underWay.has(what)) return;
    underWay.add(what);
    work()
      .catch((error: unknown) => {
        if (!signal.aborted) log.error('failed to act on what a CI service reported', { reason: toFailure(error).message });
      })
      .finally(() => underWay.delete(what));
  }

  /** By their ids. Another service of this host may have its agents in the same queue. */
  function oursOf({ entries }: Shown): Map<AgentId, Entry> {
    const ours = new Map<AgentId, Entry>();
    for (const entry of entries) {
      const agent = books.marks.agentOf(entry.name);
      if (agent !== null && books.find(agent)?.service === service) ours.set(agent, entry);
    }
    return ours;
  }

  /** Events come first: what people are told about jobs, and the cleaning up, make more calls, and may take their time. */
  function follow(shown: Shown, steadySince: number, { pools }: Queue, emit: (event: CiEvent) => void, signal: AbortSignal): void {
    const { place } = shown;
    const seen = { place, ours: oursOf(shown), steadySince };
    registry.saw?.(shown);
    for (const [agent, { id, status, job }] of seen.ours) {
      books.seen(agent, id);
      if (status === 'online') emit({ kind: 'online', agent });
      if (job !== null) emit({ kind: 'jobSeen', agent, job: jobs.had(job, agent, place) });
    }
    const { waiting: found } = shown;
    if (found !== undefined) for (const name of pools) waiting.set(name, found.filter((one) => one.pools.includes(name)).length);
    jobs.saw(shown);
    for (const [agent, { job }] of seen.ours) if (job !== null) jobs.describe(job, agent, place, signal);
    beside(`${place} silence`, () => inDoubt.silence(seen, emit, signal), signal);
    beside(`${place} outlived`, () => inDoubt.outlived(seen, emit, signal), signal);
    const rest = async (): Promise<void> => {
      await registry.follow?.(shown, emit, signal);
      await sweep.after(shown, signal);
    };
    beside(`${place} rest`, rest, signal);
  }

  /**
   * One look after the other at a queue of the service, whatever the number of slots, until the signal aborts: who is online, who has
   * which job, what waits. A look that fails says nothing about any agent (S6); it only keeps new ones from being begun.
   */
  async function watch(queue: Queue, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void> {
    const { pollEvery: every, random } = parts;
    let failures = 0;
    /** Since when every look has succeeded, core clock, ms: before that nobody knows what could come online. */
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
        // A credential that is refused is held back before anything is sent, so looking whether it was changed costs nothing.
        failures = error instanceof OnejobError && error.code === 'E_CI_CREDENTIAL' ? 1 : failures + 1;
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
        // What goes wrong here says nothing of the service.
        if (!signal.aborted) log.error('failed to act on what a CI service reported', { reason: toFailure(error).message });
      }
    }

    while (!signal.aborted) {
      await look();
      const wait = Math.max(every, Math.min(longest, every * 2 ** Math.min(failures - 1, 10)));
      if (!signal.aborted) await sleep(clock, wait * (0.9 + random() * 0.2), signal);
    }
  }

  /** null, too, for one that was to make itself known, and that the service has never heard of. */
  async function whatRan(agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined> {
    try {
      const remote = await books.locate(agent, signal);
      return remote === null ? null : await jobs.last(remote, agent, signal);
    } catch (error) {
      signal.throwIfAborted();
      log.warn('failed to find out what an agent did', { agent, reason: toFailure(error).message });
      return undefined;
    }
  }

  const common: EarlyBound<R>['common'] = {
    name: service,
    jobs: null,

    observe(emit, signal) {
      for (const queue of queues) void watch(queue, emit, signal);
      if (queues.length === 0) void sweep.alone(signal);
    },

    async register(context, signal) {
      const { agent } = context;
      const name = books.marks.agentName(context.name, agent);
      const { place, create } = await registry.create(context, name, signal);
      return books.register({ agent, place, name, placeholder: false }, create, signal);
    },

    async deregister({ agent }, signal) {
      const registration = books.find(agent);
      inDoubt.forget(agent);
      if (registration === null) return { ran: null };
      if (registration.service !== service) return { ran: undefined };
      if (registration.state === 'removed') return ended.get(agent) ?? { ran: undefined };
      const ran = await whatRan(agent, signal);
      // A service that does not say that now would only keep the slot waiting: the sweep goes on with it.
      if (ran === undefined && registry.lastJob !== undefined) return { ran };
      try {
        if ((await books.remove(registration, signal)) === 'refused') {
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
  };
  return { common, registry, books };
}
