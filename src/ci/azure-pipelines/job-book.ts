/**
 * The service's jobs as far as they concern this host: which wait, which an agent has, and how each ended. For people, but for
 * `last`: it says whether an agent that is gone had a job.
 */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { Store } from '../../store/store.ts';
import type { ServiceJob } from '../ci-service.ts';
import type { Builds } from './builds.ts';
import type { AzureClient } from './client.ts';
import { jobIdOf, jobOf } from './jobs.ts';
import type { JobRequest } from './wire.ts';

export interface JobBookParts {
  /** Name of the service in the config. */
  readonly service: string;
  readonly store: Pick<Store, 'serviceJobs' | 'transaction'>;
  readonly client: Pick<AzureClient, 'requests'>;
  readonly builds: Builds;
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
}

/** A job that waits, and the pool of the config that it waits for. */
export interface Waiting {
  readonly request: JobRequest;
  readonly pool: string;
}

/** `place`: id of the agent pool at the service. */
export interface JobBook {
  /** An agent has this job: written down with what is known already, so that nobody waits for its build. */
  had(request: JobRequest, agent: AgentId, place: number): JobId;
  /** Adds what its build says once that has been read, which nobody waits for. */
  describe(request: JobRequest, agent: AgentId, place: number, signal: AbortSignal): void;
  /** The newest job that this agent began; undefined when the service does not say. */
  last(place: number, id: number, agent: AgentId, signal: AbortSignal): Promise<JobId | null | undefined>;
  /** All jobs of one agent pool that are not over. */
  saw(place: number, unfinished: readonly JobRequest[], waiting: readonly Waiting[]): void;
  list(): readonly ServiceJob[];
  /** Whether its agent is known to work on it, or to be done; an agent is given a job before it hears of it. */
  hasBegun(job: JobId): boolean;
}

/** Jobs of which it is remembered that they are over. */
const remembered = 1_000;

export function createJobBook({ service, store, client, builds, poolOf, wall }: JobBookParts): JobBook {
  const known = new Map<JobId, { readonly job: ServiceJob; readonly place: number }>();
  /** A look may have begun before a job ended, and be told of after it. */
  const over = new Set<JobId>();
  /** Jobs whose builds are being read, as they were seen last. */
  const describing = new Map<JobId, JobRequest>();

  const save = (job: ServiceJob, place: number): void => {
    if (job.state !== 'done' && over.has(job.id)) return;
    const before = known.get(job.id);
    if (job.state === 'done') {
      known.delete(job.id);
      over.add(job.id);
      for (const old of [...over].slice(0, -remembered)) over.delete(old);
    } else {
      known.set(job.id, { job, place });
    }
    if (before !== undefined && JSON.stringify(before.job) === JSON.stringify(job)) return;
    store.transaction({ durable: false }, () => store.serviceJobs.save(job, wall()));
  };

  const poolFor = (id: JobId, agent: AgentId): string =>
    poolOf(agent) ?? known.get(id)?.job.pool ?? store.serviceJobs.get(id)?.pool ?? '';

  const had = (request: JobRequest, agent: AgentId, place: number): JobId => {
    const id = jobIdOf(service, request);
    save(jobOf(request, { service, pool: poolFor(id, agent), agent }, builds.known(request)), place);
    return id;
  };

  const describe = (request: JobRequest, agent: AgentId, place: number, signal: AbortSignal): void => {
    if (builds.known(request) !== null) return;
    const id = jobIdOf(service, request);
    const isUnderWay = describing.has(id);
    describing.set(id, request);
    if (isUnderWay) return;
    builds
      .of(request, signal)
      .then((build) => {
        const newest = describing.get(id);
        if (build !== null && newest !== undefined && !signal.aborted) had(newest, agent, place);
      })
      // Only for people.
      .catch(() => {})
      .finally(() => describing.delete(id));
  };

  return {
    had,
    describe,
    async last(place, id, agent, signal) {
      try {
        const requests = await client.requests(place, { agent: id }, signal);
        const begun = requests.filter((one) => one.receiveTime !== null).sort((a, b) => b.requestId - a.requestId)[0];
        if (begun === undefined) return null;
        const job = had(begun, agent, place);
        describe(begun, agent, place, signal);
        return job;
      } catch {
        signal.throwIfAborted();
        return undefined;
      }
    },
    saw(place, unfinished, waiting) {
      const there = new Set(unfinished.map((one) => jobIdOf(service, one)));
      const here = new Set(waiting.map(({ request }) => jobIdOf(service, request)));
      for (const [id, one] of known) {
        if (one.place !== place) continue;
        const { job } = one;
        // One that an agent of another host has taken is not over, and waits no more.
        if (job.state === 'waiting' && !here.has(id)) known.delete(id);
        if (there.has(id) || !known.has(id)) continue;
        // An agent that is still there will say by its end how the job ended.
        if (job.agent === null || poolOf(job.agent) === null) save({ ...job, state: 'done', endedAt: wall() }, place);
      }
      for (const { request, pool } of waiting) {
        const job = jobOf(request, { service, pool, agent: null }, null);
        if (!over.has(job.id)) known.set(job.id, { job, place });
      }
    },
    list: () => [...known.values()].map(({ job }) => job),
    hasBegun: (id) => over.has(id) || known.get(id)?.job.state === 'running',
  };
}
