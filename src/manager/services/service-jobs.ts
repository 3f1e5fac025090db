/**
 * Jobs of CI services that keep their own jobs, for people: what the services know now, combined with what was seen before.
 * onejob neither assigns nor ends these jobs, so nothing here changes them.
 */

import { OnejobError } from '../../base/errors.ts';
import { newestLast } from '../../contract/job-pages.ts';
import type { AboutView, JobView } from '../../contract/schema.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { type AgentId, type JobId, jobsIn } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import type { OutcomeTable } from '../../store/outcomes.ts';
import type { ServiceJobTable } from '../../store/service-jobs.ts';
import type { Reconciler } from '../loop/reconciler.ts';

export interface ServiceJobsParts {
  /** All CI services but the own queue. */
  readonly services: readonly (Pick<CiService, 'name' | 'serviceJobs'> & Partial<Pick<CiService, 'capabilities'>>)[];
  readonly table: Pick<ServiceJobTable, 'get' | 'list'>;
  readonly outcomes: Pick<OutcomeTable, 'get'>;
  readonly reconciler: Pick<Reconciler, 'slots' | 'pools' | 'placeOf'>;
  /** Why jobs of a pool wait; null if there is nothing to add. */
  readonly reasonFor: (pool: string) => string | null;
  readonly clock: Clock;
}

export interface ServiceJobs {
  about(id: JobId): AboutView | null;
  /** The known state. It is `done` also if no end was reported, but the job cannot run any more. */
  job(id: JobId): JobView | null;
  /** Resolves once it is over. @throws OnejobError E_JOB_UNKNOWN */
  settled(id: JobId, signal: AbortSignal): Promise<JobView>;
  /** Unsorted. `limit`: how many finished jobs are included; null: none. */
  jobs(limit: number | null): JobView[];
  /**
   * At most `limit` of all, newest first, after `skip` of them: what the services know now, then what was seen last. A job that
   * becomes known meanwhile may appear twice.
   */
  page(skip: number, limit: number): JobView[];
}

/** ms between looks at a job that somebody waits for: nobody reports its changes. */
const lookEvery = 1_000;

export function createServiceJobs({ services, table, outcomes, reconciler, reasonFor, clock }: ServiceJobsParts): ServiceJobs {
  const live = (): Map<JobId, ServiceJob> =>
    new Map(services.flatMap((service) => (service.serviceJobs?.() ?? []).map((job) => [job.id, job] as const)));

  /** If the service did not name the pool, and has only one, it is that one. */
  const poolOf = ({ pool, service }: ServiceJob): string => {
    const own = reconciler.pools.filter((one) => one.config.service === service);
    return pool === '' && own.length === 1 ? (own[0]?.config.name ?? '') : pool;
  };
  const hasSlot = (agent: AgentId | null): boolean => agent !== null && reconciler.placeOf(agent) !== undefined;
  /** Jobs in slots, whether or not the services know them: after a restart they have not looked yet. */
  const inSlots = (): JobId[] => reconciler.slots.flatMap(jobsIn);
  /** A job has no agent yet whose sandbox is being made. */
  const isHere = ({ id, agent }: ServiceJob): boolean => hasSlot(agent) || (agent === null && inSlots().includes(id));

  const reasonOf = (job: ServiceJob, pool: string, isOver: boolean): string | null => {
    if (job.note !== null) return job.note;
    if (job.state === 'waiting') return pool === '' ? null : reasonFor(pool);
    if (isOver || job.agent === null || hasSlot(job.agent)) return null;
    return 'its agent is gone; the service reports the job as abandoned when its lock expires, usually within ten minutes';
  };

  const elsewhere = new Set(services.flatMap(({ name, capabilities }) => (capabilities?.jobOnStdout === false ? [name] : [])));

  const view = (job: ServiceJob, isLive: boolean): JobView => {
    const isOver = job.state === 'done' || !(isLive || isHere(job));
    const pool = poolOf(job);
    const outcome = isOver ? outcomes.get(job.id) : null;
    return {
      ...(outcome !== null && { verdict: outcome.verdict, image: outcome.image, devices: outcome.devices }),
      ...(outcome?.variance != null && { variance: outcome.variance }),
      id: job.id,
      service: job.service,
      pool,
      command: [],
      about: aboutOf(job),
      ...(elsewhere.has(job.service) && job.agent !== null && { outputElsewhere: true }),
      state: isOver ? 'done' : job.state,
      priority: 0,
      attempt: job.agent === null ? 0 : 1,
      agent: job.agent,
      result: job.result === null ? null : { kind: 'reported', word: job.result },
      outcome: isOver ? job.outcome : null,
      reason: reasonOf(job, pool, isOver),
      cold: false,
      artifacts: [],
      submittedAt: job.queuedAt,
      startedAt: job.startedAt,
      endedAt: job.endedAt,
    };
  };

  const lookup = (id: JobId): JobView | null => {
    const now = live().get(id);
    if (now !== undefined) return view(now, true);
    const before = table.get(id);
    return before === null ? null : view(before, false);
  };

  return {
    about: (id) => lookup(id)?.about ?? null,
    job: lookup,
    async settled(id, signal) {
      for (;;) {
        signal.throwIfAborted();
        const job = lookup(id);
        if (job === null) throw new OnejobError('E_JOB_UNKNOWN', `Job ${id} no longer exists.`);
        if (job.state === 'done') return job;
        await sleep(clock, lookEvery, signal);
      }
    },
    jobs(limit) {
      const now = live();
      const seen = limit === null ? inSlots().flatMap((id) => table.get(id) ?? []) : table.list(limit);
      const before = seen.filter(({ id }) => !now.has(id));
      const views = [...[...now.values()].map((job) => view(job, true)), ...before.map((job) => view(job, false))];
      return limit === null ? views.filter(({ state }) => state !== 'done') : views;
    },
    page(skip, limit) {
      const now = live();
      const first = newestLast([...now.values()].map((job) => view(job, true))).reverse();
      const seen = table.list(limit + now.size, Math.max(0, skip - now.size)).filter(({ id }) => !now.has(id));
      return [...first.slice(skip), ...seen.map((job) => view(job, false))].slice(0, limit);
    },
  };
}

/** The error for such a job, with the place where it can be cancelled. */
export function notHere({ id, service, about }: JobView): OnejobError {
  const link = about?.link ?? null;
  const message = `Cannot cancel ${id}: it is a job of the CI service "${service}", and only that service can cancel it.`;
  const hint = link === null ? 'Cancel it on the website of that service.' : `Cancel it there: ${link}`;
  return new OnejobError('E_JOB_ELSEWHERE', message, { hint });
}

function aboutOf({ title, definition, build, repository, branch, reason, link, demands }: ServiceJob): AboutView {
  return { title, definition, build, repository, branch, reason, link, demands: [...demands] };
}
