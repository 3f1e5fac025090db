/** Jobs as people see them: those of the own queue and those that CI services keep, with what else is known of them here. */
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { jobPage, newestLast, pagePlace } from '../contract/job-pages.ts';
import { type JobPage, type JobsFilter, jobsListed, type Manager, pageLimit } from '../contract/manager.ts';
import type { JobView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { CiService } from '../ports/ci-service.ts';
import type { Store } from '../store/store.ts';
import { endedJobs } from '../verdict/history.ts';
import { limitsOf } from './job-limits.ts';
import type { Loop } from './loop/loop.ts';
import { createServiceJobs, notHere, type ServiceJobs } from './services/service-jobs.ts';
import { createStartEstimate, type StartEstimate } from './start-estimate.ts';
import { waitingReason } from './status.ts';

interface JobViewsParts {
  readonly clock: Clock;
  readonly loop: Pick<Loop, 'reconciler' | 'held' | 'logs'>;
  readonly queue: OwnQueue;
  /** All CI services but the own queue. */
  readonly services: readonly CiService[];
  readonly store: Pick<Store, 'serviceJobs' | 'outcomes'>;
}

/** ms for which one look at a pool is good enough for events. */
const estimateLasts = 100;

export class JobViews {
  readonly ofServices: ServiceJobs;
  readonly #parts: JobViewsParts;
  readonly #estimates: () => StartEstimate;
  /** Limits of jobs that began before are not certain, wall clock, ms. */
  readonly #since: number;
  /** Events may report thousands of jobs at once. */
  #recent: { readonly at: number; readonly estimate: StartEstimate };

  constructor(parts: JobViewsParts) {
    this.#parts = parts;
    const { clock, store, services, loop } = parts;
    const { reconciler } = loop;
    const { outcomes, serviceJobs: table } = store;
    const reasonFor = (pool: string) => waitingReason(reconciler, pool);
    this.ofServices = createServiceJobs({ services, table, outcomes, reconciler, reasonFor, clock });
    this.#estimates = createStartEstimate({ clock, reconciler, outcomes, reasonFor });
    this.#since = clock.wall();
    this.#recent = { at: Number.NEGATIVE_INFINITY, estimate: this.#estimates() };
  }

  job(id: string, estimate = this.#estimates()): JobView | null {
    const job = this.#listed(id, estimate);
    if (job === null) return null;
    const limited = { ...job, limits: this.#limits(job) };
    return job.agent === null ? limited : { ...limited, firstOutputAt: this.#parts.loop.logs.firstOutputAt(job.agent) };
  }

  /** As `job`, for one of many events. */
  ofEvent(id: string): JobView | null {
    const now = this.#parts.clock.now();
    if (now - this.#recent.at > estimateLasts) this.#recent = { at: now, estimate: this.#estimates() };
    return this.job(id, this.#recent.estimate);
  }

  page({ all, pool, limit = all ? jobsListed : pageLimit, before }: JobsFilter): JobPage {
    const place = pagePlace(before ?? null);
    const own = this.#parts.queue.page(all, { pool, limit: limit + 1, before: place.seq });
    const elsewhere = all
      ? this.ofServices.page(place.skip, limit + 1)
      : newestLast(this.ofServices.jobs(null))
          .reverse()
          .slice(place.skip, place.skip + limit + 1);
    const page = jobPage(own, elsewhere, { place, pool, limit });
    const estimate = this.#estimates();
    return { ...page, jobs: page.jobs.map((job) => this.#shown(job, estimate)) };
  }

  ended(filter: Parameters<Manager['endedJobs']>[0]): JobPage {
    const estimate = this.#estimates();
    return endedJobs(this.#parts.store.outcomes, (id) => this.#listed(id, estimate), filter);
  }

  async settled(id: string, signal: AbortSignal): Promise<JobView> {
    const { queue } = this.#parts;
    if (queue.job(id) === null) return this.ofServices.settled(id, signal);
    return this.#shown(await queue.settled(id, signal), this.#estimates());
  }

  /** @throws OnejobError E_JOB_ELSEWHERE */
  checkOwn(id: string): void {
    const job = this.#parts.queue.job(id) === null ? this.ofServices.job(id) : null;
    if (job !== null) throw notHere(job);
  }

  /** As in lists: without what must be read from its output. */
  #listed(id: string, estimate: StartEstimate): JobView | null {
    const own = this.#parts.queue.job(id);
    return own === null ? this.ofServices.job(id) : this.#shown(own, estimate);
  }

  #shown(job: JobView, estimate: StartEstimate): JobView {
    const until = job.state === 'done' ? this.#parts.loop.held.until(job.id) : null;
    return estimate(until === null ? job : { ...job, held: { until } });
  }

  #limits(job: JobView) {
    const { queue, loop } = this.#parts;
    const pool = loop.reconciler.pools.find(({ config }) => config.name === job.pool);
    const its = pool === undefined ? null : { config: pool.config, poolTimeout: pool.service.capabilities.poolTimeout };
    return limitsOf({ job, own: queue.asked(job.id), pool: its, since: this.#since });
  }
}
