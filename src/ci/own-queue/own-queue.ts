/**
 * The own queue: jobs that people submit here, kept in the store, handed out by priority and then in order. It binds late. An
 * accepted job is on disk before anybody is told, and ends exactly once with a result (S7, see `job.ts`). Memory holds only jobs
 * that are not over.
 */
import { randomBytes } from 'node:crypto';
import type { Readable } from 'node:stream';
import { hasCode, OnejobError } from '../../base/errors.ts';
import { fine } from '../../base/finding.ts';
import { type ArrayRequest, arrayLimit, type JobRequest } from '../../contract/job.ts';
import { jobsListed } from '../../contract/manager.ts';
import { type JobView, workspaceLimit } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { CiService, JobSource } from '../../ports/ci-service.ts';
import { mountPathProblem } from '../../schema/volumes.ts';
import { type JobList, type StoredRequest, waitsSince } from '../../store/jobs.ts';
import type { Store } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { ownJobEnded } from '../../verdict/outcomes.ts';
import {
  applyCancel,
  applyChange,
  applyMove,
  applyNeeded,
  arrayJobId,
  hasFailed,
  hasPassed,
  type Job,
  type JobChange,
  jobView,
  newJob,
} from './job.ts';
import { JobIndex } from './job-index.ts';
import { createPrune } from './prune.ts';
import { checkRequest, jobEnvironment, jobScript, type MountProblem, type QueuePool, recipeOfJob, volumesNow } from './request.ts';
import { createSettle } from './settle.ts';
import { createWorkspaces, openSpool } from './spool.ts';
import { type StrandedJobs, strandedHint } from './stranded.ts';
import { createTeller } from './tell.ts';

export interface OwnQueueOptions {
  readonly store: Store;
  readonly pools: readonly QueuePool[];
  readonly clock?: Clock;
  /** Why jobs of a pool wait, as a sentence; null: its agents are busy. */
  readonly reasonFor?: (pool: string) => string | null;
  /** Bytes of artifacts kept per job; default 2 GiB. */
  readonly artifactLimit?: number;
  /** Why a job may not have this volume, as a clause, or null. By default only its paths are checked. */
  readonly mountProblem?: MountProblem;
  /** Whether this host has a path; by default nobody looks. */
  readonly isThere?: (path: string) => boolean;
  /** Config of a temporary daemon, or `''`: it hands out only jobs accepted with this config. Null (default): permanent. */
  readonly temporary?: string | null;
}

type OwnService = CiService &
  Required<Pick<CiService, 'settle'>> & { readonly jobs: Required<Pick<JobSource, 'devicesFor' | 'recipeFor'>> & JobSource };

export type OwnQueue = ReturnType<typeof createOwnQueue>;

export function createOwnQueue(options: OwnQueueOptions) {
  const { store, clock = systemClock, reasonFor = () => null, artifactLimit = 2 * 2 ** 30 } = options;
  const { mountProblem = mountPathProblem, isThere, temporary = null } = options;
  const isHeld = (job: Job): boolean => temporary !== null && job.temporary !== temporary;
  const pools = new Map(options.pools.map((pool) => [pool.name, pool]));
  const poolNames = new Set(pools.keys());
  const spool = openSpool(store.dir);
  const index = new JobIndex(isHeld);
  const workspaces = createWorkspaces(spool, (workspace) => index.hasWorkspace(workspace));
  const settle = createSettle({
    clock,
    spool,
    artifactLimit,
    annotate,
    triesOf: (id) => index.get(id)?.progress.settling ?? { failed: 0, killed: 0 },
    saveTries: (id, settling) => change(id, { settling }),
  });
  /** Aborted to stop waiting for a job's artifacts. */
  const givingUp = new Map<string, AbortController>();
  const prune = createPrune(store, spool, (workspace) => index.hasWorkspace(workspace));

  for (const job of store.jobs.open()) {
    // The recipe of its pool may have changed since it was accepted.
    const cold = job.progress.state === 'queued' && pools.has(job.request.pool) ? isCold(job.request) : job.progress.cold;
    index.put({ ...job, progress: { ...job.progress, cold } });
  }
  index.commit();

  const view = (job: Job): JobView => {
    // Nobody hears of an end that a power cut undoes, also if he asks (S12).
    if (teller.isUntold(job.id)) store.syncNow();
    return jobView(
      job,
      isHeld(job) ? () => whyHeld(job) : pools.has(job.request.pool) ? reasonFor : (pool) => noSuchPool(pool, poolNames),
      job.progress.state === 'done' ? store.outcomes.get(job.id) : null,
    );
  };
  const teller = createTeller(index, view, over);
  repairNeeds();
  /** Only a job that will start has a place. */
  const inQueue = (job: Job): JobView =>
    mayStart(job) && pools.has(job.request.pool) ? { ...view(job), ahead: index.ahead(job) } : view(job);
  /** Whether it waits for its pool, and for nothing else. */
  const mayStart = (job: Job): boolean => job.progress.state === 'queued' && job.progress.blockedBy.length === 0 && !isHeld(job);
  const find = (id: string): Job | null => index.get(id) ?? store.jobs.get(id);
  const known = (id: string): Job => find(id) ?? unknownJob(id);

  function over({ id, request }: Job): void {
    index.forget(id);
    givingUp.delete(id);
    // Jobs of an array share one.
    if (request.workspace !== null && !index.hasWorkspace(request.workspace)) workspaces.drop(request.workspace);
  }

  function giveUpOf(id: string): AbortController {
    const known = givingUp.get(id) ?? new AbortController();
    givingUp.set(id, known);
    return known;
  }

  /** Commits and syncs a change of the queue's own. */
  function commitNow(change: () => void): void {
    try {
      store.transaction({ durable: true }, change);
    } catch (error) {
      index.rollback();
      throw error;
    }
    teller.committed();
    teller.syncing()();
  }

  /**
   * Commits what a waiting slot may take at once, and syncs: the release shares that sync. If only the sync fails, what was committed
   * stays, and nothing of it begins before a sync succeeds.
   */
  function commitAhead(change: () => void): void {
    try {
      store.transaction({ durable: false }, change);
    } catch (error) {
      index.rollback();
      throw error;
    }
    teller.committed();
    store.syncNow();
  }

  /** Inside a commit. A job that is done lets those that need it start, or ends them too, however many there are in a row. */
  function save(job: Job): void {
    const ended: Job[] = [];
    const put = (after: Job): void => {
      store.jobs.save(after.id, after.progress);
      index.put(after);
      if (after.progress.state === 'done') ended.push(after);
    };
    put(job);
    // It grows meanwhile.
    for (const needed of ended) {
      ownJobEnded(store, needed, pools.get(needed.request.pool)?.timeout ?? null);
      for (const blocked of index.blockedBy(needed.id)) put(applyNeeded(blocked, needed.id, needed, clock.wall()));
    }
  }

  /** Jobs that never heard of the end of one that they need would wait for ever. */
  function repairNeeds(): void {
    const now = clock.wall();
    const missed = index.all().flatMap(({ id, progress: { blockedBy } }) => {
      const over = blockedBy.filter((need) => index.get(need) === null);
      return over.length === 0 ? [] : [{ id, over }];
    });
    if (missed.length === 0) return;
    const repair = (): void => {
      for (const { id, over } of missed) {
        for (const need of over) {
          const job = index.get(id);
          const after = job === null ? null : applyNeeded(job, need, store.jobs.get(need), now);
          if (after !== null && after !== job) save(after);
        }
      }
    };
    try {
      commitNow(repair);
    } catch (error) {
      // The next start tries it again.
      if (!hasCode(error, 'E_STATE_FULL')) throw error;
    }
  }

  /** @throws OnejobError E_WORKSPACE_UNKNOWN */
  function checkWorkspaceOf({ id }: Job, workspace: string): void {
    if (spool.hasWorkspace(workspace)) return;
    const hint = 'Submit the job again.';
    throw new OnejobError('E_WORKSPACE_UNKNOWN', `Cannot start job ${id}: its workspace ${workspace} is gone.`, { hint });
  }

  function annotate(id: string, notes: readonly string[]): void {
    const job = index.get(id);
    if (job === null || notes.length === 0) return;
    // An earlier manager may have written the same before it was killed.
    const before = job.progress.note;
    const fresh = notes.filter((note) => before === null || !before.includes(note));
    change(id, { note: [before, ...fresh].filter((each) => each !== null).join(' ') });
  }

  function change(id: string, more: Partial<Job['progress']>): void {
    const job = index.get(id);
    if (job === null) return;
    const changed = { ...job, progress: { ...job.progress, ...more } };
    store.transaction({ durable: false }, () => store.jobs.save(id, changed.progress));
    index.put(changed);
    teller.committed();
  }

  /**
   * Whether a job needs a sandbox of its own. While a pool tries another image some of its standbys have the image that proved itself
   * last, and a job that names an image must not get another one.
   */
  function isCold(request: StoredRequest): boolean {
    const pool = pools.get(request.pool);
    if (pool === undefined) return false;
    const proved = request.image === null ? null : (store.provedImages.of(request.pool)?.image ?? null);
    return recipeOfJob(request, pool.recipe) !== null || (proved !== null && proved !== request.image);
  }

  /** Accepts jobs that differ only in their place in an array, in one commit; null: one job without an array. */
  function accept(request: JobRequest, indices: readonly number[] | null): JobView[] {
    const checked = checkRequest(request, pools, mountProblem, isThere);
    const { workspace } = checked;
    if (workspace !== null) workspaces.check(workspace);
    const cold = isCold(checked);
    const id = request.id ?? randomBytes(6).toString('hex');
    const more = { temporary, blockedBy: unmet(checked.needs) };
    checkNeeded(more.blockedBy.length, indices?.length ?? 1);
    const jobs = (indices ?? [null]).map((at) =>
      at === null
        ? newJob(id, checked, cold, clock.wall(), more)
        : newJob(arrayJobId(id, at), { ...checked, array: { id, index: at } }, cold, clock.wall(), more),
    );
    commitAhead(() => {
      for (const job of jobs) index.put({ ...job, seq: store.jobs.insert(job) });
    });
    return jobs.map((job) => view(known(job.id)));
  }

  /** Jobs that a new job waits for; an array stands for its jobs. @throws OnejobError E_JOB_REQUEST for one that is unknown, or did not pass */
  function unmet(needs: readonly string[]): string[] {
    const needed = new Map<string, Job>();
    for (const need of needs) {
      const job = find(need);
      const jobs = job === null ? store.jobs.ofArray(need).map((one) => index.get(one.id) ?? one) : [job];
      if (jobs.length === 0) throw cannotNeed(need, 'there is no such job or array in the own queue');
      for (const one of jobs) needed.set(one.id, one);
    }
    const unmet = [...needed.values()].filter((job) => !hasPassed(job));
    for (const job of unmet) {
      if (job.progress.state === 'done') throw cannotNeed(job.id, 'that job has ended and did not pass');
      const held = 'this daemon is temporary and does not run that job, which another daemon accepted';
      if (isHeld(job)) throw cannotNeed(job.id, held, 'Type "onejob up" to start a daemon that runs both.');
    }
    checkNeeded(unmet.length, 1);
    return unmet.map(({ id }) => id);
  }

  function submitAll(request: JobRequest, indices: readonly number[] | null): JobView[] {
    const [first = 0] = indices ?? [];
    const same = request.id === null ? null : find(indices === null ? request.id : arrayJobId(request.id, first));
    if (same !== null) {
      // An earlier answer may have been that it could not be synced.
      store.syncNow();
      return (indices ?? [null]).map((at) => view(known(at === null ? same.id : arrayJobId(request.id ?? '', at))));
    }
    const { workspace } = request;
    try {
      return accept(request, indices);
    } catch (error) {
      // A refused workspace is useless, and may have 2 GiB.
      if (workspace !== null) workspaces.refuse(workspace);
      throw error;
    }
  }

  function page(all: boolean, { pool, limit, before = Number.MAX_SAFE_INTEGER }: JobList) {
    if (all) return store.jobs.list({ pool, limit, before }).map((job) => ({ seq: job.seq, job: view(job) }));
    const listed = index.all().filter((job) => (pool === null || job.request.pool === pool) && job.seq < before);
    return listed
      .slice(-limit)
      .map((job) => ({ seq: job.seq, job: inQueue(job) }))
      .reverse();
  }

  const service: OwnService = {
    name: 'own',
    capabilities: { binds: 'late', standsForSlots: false, terms: 1, poolTimeout: true, jobOnStdout: false },
    async check() {
      const { length } = index.all();
      return [fine('own queue', `The own queue has ${length} unfinished ${length === 1 ? 'job' : 'jobs'}.`)];
    },
    observe: (send, signal) => teller.observe(pools.keys(), send, signal),
    jobs: {
      next(pool, _slot, only) {
        const job = index.head(pool, only);
        if (job === null) return null;
        return { job: job.id, limit: job.request.timeout ?? pools.get(pool)?.timeout ?? null, cold: job.progress.cold };
      },
      devicesFor: (id) => index.get(id)?.request.devices ?? null,
      recipeFor(id, pool) {
        const job = index.get(id);
        if (job === null) return null;
        return recipeOfJob({ ...job.request, volumes: volumesNow(job.request.volumes, pool, mountProblem) }, pool);
      },
      namesImage: (id) => (index.get(id)?.request.image ?? null) !== null,
      hasFailed(id) {
        const job = index.get(id);
        return job !== null && hasFailed(job);
      },
      record(change) {
        if (!('job' in change)) return;
        const job = index.get(change.job);
        if (job === null) return;
        const after = applyChange(job, change, clock.wall());
        if (after === job) return;
        save(after);
      },
      committed: () => teller.committed(),
      syncing: () => teller.syncing(),
      rolledBack: () => index.rollback(),
    },
    async register(context) {
      const job = context.job === null ? null : index.get(context.job);
      if (job === null) throw new OnejobError('E_BUG', `Agent ${context.agent} should get job ${context.job}, which is not open.`);
      const { request } = job;
      const { workspace } = request;
      if (workspace !== null) checkWorkspaceOf(job, workspace);
      const script = jobScript(context.workspace, { env: jobEnvironment(job, context), command: request.command });
      return { id: null, script, files: workspace === null ? null : async () => spool.openWorkspace(workspace) };
    },
    async settle(context, files, signal, hurry) {
      const job = context.job === null ? null : index.get(context.job);
      if (job === null || job.progress.state !== 'settling' || job.progress.agent !== context.agent) return;
      const own = giveUpOf(job.id).signal;
      const giveUp = hurry === undefined ? own : AbortSignal.any([own, hurry]);
      await settle(job, { open: (inner, only) => files.all(inner, only), signal, giveUp });
    },
    deregister: async () => ({ ran: null }),
    retire: async () => null,
    describeExit: () => ({ code: 'E_BUG', message: 'An agent of the own queue ended without a job.', retry: true }),
  };

  return {
    ...service,
    /** Checks as `submit`, except for the workspace. @throws OnejobError E_POOL_UNKNOWN, E_JOB_REQUEST */
    verify(request: JobRequest): void {
      checkRequest(request, pools, mountProblem, isThere);
      unmet(request.needs);
    },
    /** Accepts a job: it is on disk when this returns. @throws OnejobError E_POOL_UNKNOWN, E_JOB_REQUEST, E_WORKSPACE_UNKNOWN, E_STATE_FULL */
    submit(request: JobRequest): JobView {
      const [job] = submitAll(request, null);
      if (job === undefined) throw new RangeError('no job was accepted');
      return job;
    },
    /** Accepts all jobs of an array, or none. @throws as above */
    submitArray: ({ job, indices }: ArrayRequest): JobView[] => submitAll(job, indices),
    /** In submission order, ended or not. */
    arrayJobs: (id: string): JobView[] => store.jobs.ofArray(id).map((job) => view(index.get(job.id) ?? job)),
    list({ all, pool, limit = jobsListed }: { readonly all: boolean } & Pick<JobList, 'pool'> & Partial<JobList>): JobView[] {
      return page(all, { pool, limit })
        .map(({ job }) => job)
        .reverse();
    },
    /** Newest first, with the place of each. `all`: also jobs that are done. */
    page,
    /** The limits that a job asked for itself; null: this queue does not have it. */
    asked(id: string): Pick<StoredRequest, 'memory' | 'cpus' | 'timeout'> | null {
      const { memory, cpus, timeout } = find(id)?.request ?? {};
      return memory === undefined || cpus === undefined || timeout === undefined ? null : { memory, cpus, timeout };
    },
    /** A waiting job has `ahead`, the number of jobs before it. */
    job(id: string): JobView | null {
      const job = find(id);
      return job === null ? null : inQueue(job);
    },
    waiting: (pool: string): number => index.waiting(pool),
    /** Since when the oldest job waits that each pool could start, wall clock, ms. */
    waitingSince(): Map<string, number> {
      const since = new Map<string, number>();
      for (const job of index.all()) {
        const { pool } = job.request;
        if (mayStart(job)) since.set(pool, Math.min(waitsSince(job), since.get(pool) ?? Number.POSITIVE_INFINITY));
      }
      return since;
    },
    /** The agent that runs a job whose clients may run programs in its sandbox; null while it has none. */
    attendedBy(id: string): AgentId | null {
      const job = index.get(id);
      return job?.request.attended === true && job.progress.state === 'running' ? job.progress.agent : null;
    },
    /** Number of unfinished jobs, without held ones. */
    get unfinished(): number {
      return index.all().filter((job) => !isHeld(job)).length;
    },
    /** Whether this temporary daemon leaves the job to another daemon. */
    isHeld(id: string): boolean {
      const job = index.get(id);
      return job !== null && isHeld(job);
    },
    /** Its pools, its waiting jobs by pool, and how many wait for another daemon. */
    stranded(): StrandedJobs & { readonly leftToOthers: number } {
      const waiting = new Map<string, number>();
      let leftToOthers = 0;
      for (const job of index.all()) {
        if (job.progress.state !== 'queued') continue;
        const { pool } = job.request;
        if (isHeld(job)) leftToOthers += 1;
        else waiting.set(pool, (waiting.get(pool) ?? 0) + 1);
      }
      return { pools: poolNames, waiting, leftToOthers };
    },
    /** Resolves once the job is done and on disk. @throws OnejobError E_JOB_UNKNOWN */
    async settled(id: string, signal: AbortSignal): Promise<JobView> {
      signal.throwIfAborted();
      const job = known(id);
      return index.get(id) === null ? view(job) : teller.wait(id, signal);
    },
    /**
     * Moves a waiting job to another pool, which must be able to run it. It keeps its place by age. Idempotent.
     * @throws OnejobError E_JOB_UNKNOWN, E_POOL_UNKNOWN, E_JOB_REQUEST, E_STATE_FULL
     */
    move(id: string, pool: string): JobView {
      const job = known(id);
      const { state } = job.progress;
      if (state === 'done') throw cannotMove(job, pool, 'it has ended');
      if (state !== 'queued') throw cannotMove(job, pool, 'it has begun');
      if (isHeld(job)) throw cannotMove(job, pool, 'another daemon accepted it, and this one is temporary');
      const { array, ...request } = job.request;
      const moved = { ...checkRequest({ ...request, pool }, pools, mountProblem, isThere), array };
      if (moved.pool === job.request.pool) return inQueue(job);
      commitNow(() => {
        const after = applyMove(job, moved, isCold(moved));
        store.jobs.move(id, after.request);
        save(after);
      });
      return inQueue(known(id));
    },
    /** Cancels a job; a waiting job ends at once. Idempotent. @throws OnejobError E_JOB_UNKNOWN, E_STATE_FULL */
    cancel(id: string, { onlyWaiting = false }: { readonly onlyWaiting?: boolean } = {}): JobView {
      const job = known(id);
      if (onlyWaiting && job.progress.state !== 'queued') return view(job);
      const after = applyCancel(job, clock.wall());
      // Only its artifacts are left.
      if (job.progress.state === 'settling') giveUpOf(id).abort(cancelledSettling);
      if (after === job) return view(job);
      commitNow(() => {
        save(after);
      });
      return view(known(id));
    },
    /** Cancels all jobs of an array in one commit; returns those that had not ended. @throws as above */
    cancelArray(id: string): JobView[] {
      const jobs = store.jobs.ofArray(id).map((job) => index.get(job.id) ?? job);
      if (jobs.length === 0) unknownJob(id);
      const open = jobs.filter(({ progress }) => progress.state !== 'done');
      commitNow(() => {
        for (const { id: each } of open) {
          // The end of another one may have ended it.
          const job = known(each);
          const after = applyCancel(job, clock.wall());
          if (after !== job) save(after);
        }
      });
      for (const { id: each, progress } of open) if (progress.state === 'settling') giveUpOf(each).abort(cancelledSettling);
      return open.map((job) => view(known(job.id)));
    },
    /** For jobs of pools that other hosts have: their agents are not in slots of this host. */
    elsewhere: {
      /** Jobs that are not over. */
      open: (): Job[] => index.all(),
      get: (id: string): Job | null => index.get(id),
      /** The job of the pool that starts next. */
      head: (pool: string): Job | null => index.head(pool),
      /** Commits a change of a job's agent, with `also` in the same commit. It is on disk when this returns. @throws OnejobError E_STATE_FULL */
      record(change: JobChange, also: () => void): void {
        commitNow(() => {
          also();
          const job = index.get(change.job);
          const after = job === null ? null : applyChange(job, change, clock.wall());
          if (after !== null && after !== job) save(after);
        });
      },
      /** @throws OnejobError E_WORKSPACE_UNKNOWN */
      openWorkspace(job: Job, workspace: string): Readable {
        checkWorkspaceOf(job, workspace);
        return spool.openWorkspace(workspace);
      },
      annotate,
    },
    /** Calls the listener after every change of a job; returns a function that stops it. */
    onChange: teller.follow,
    putWorkspace: (files: Readable, signal: AbortSignal) => spool.putWorkspace(files, workspaceLimit, signal),
    artifacts: (job: string): Readable | null => (spool.hasArtifacts(job) ? spool.openArtifacts(job) : null),
    /** Deletes jobs that ended over `keepMs` ago, with logs and artifacts, and workspaces unused for an hour. */
    prune,
    close: () => workspaces.close(),
  };
}

const cancelledSettling = 'the job was cancelled while onejob read them';

/** Most ids of needed jobs that one submission writes down: each of its jobs has its own list. */
const neededLimit = 1_000_000;

/** `needed`: how many jobs each of `jobs` needs. @throws OnejobError E_JOB_REQUEST */
function checkNeeded(needed: number, jobs: number): void {
  if (needed > arrayLimit)
    throw new OnejobError('E_JOB_REQUEST', `Cannot queue a job that needs ${needed} jobs: at most ${arrayLimit} are possible.`, {
      hint: 'Need a job that needs a part of them.',
    });
  if (needed * jobs > neededLimit)
    throw new OnejobError('E_JOB_REQUEST', `Cannot queue the array: there are ${needed} jobs that each of ${jobs} jobs needs.`, {
      hint: 'Submit one job between the two arrays: it needs the first, and the second needs it.',
    });
}

function cannotNeed(id: string, why: string, hint = 'See "onejob jobs --all".'): OnejobError {
  return new OnejobError('E_JOB_REQUEST', `Cannot queue a job that needs ${id}: ${why}.`, { hint });
}

function whyHeld({ temporary }: Job): string {
  if (temporary === null) return 'A permanent daemon accepted it, but this one is temporary: type "onejob up".';
  const config = temporary === '' ? 'no config' : `the config ${temporary}`;
  return `A temporary daemon with ${config} accepted it: use that config again, or type "onejob up".`;
}

function noSuchPool(pool: string, pools: ReadonlySet<string>): string {
  return `The own queue no longer has a pool called "${pool}". ${strandedHint(pool, pools)}`;
}

function cannotMove({ id }: Job, pool: string, why: string): OnejobError {
  return new OnejobError('E_JOB_REQUEST', `Cannot move job ${id} to pool ${pool}: ${why}.`, {
    hint: 'Only a job that waits can be moved.',
  });
}

function unknownJob(id: string): never {
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'Type "onejob jobs --all" to list the jobs.' });
}
