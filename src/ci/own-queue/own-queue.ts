/**
 * The own queue: jobs that people submit here, kept in the store, handed out by priority and then in order. It binds late. An
 * accepted job is on disk before anybody is told, and ends exactly once with a result (S7, see `job.ts`). Memory holds only jobs
 * that are not over.
 */
import type { Readable } from 'node:stream';
import { OnejobError } from '../../base/errors.ts';
import { type Finding, fine } from '../../base/finding.ts';
import type { PeopleTable } from '../../config/people.ts';
import type { ArrayRequest, JobRequest } from '../../contract/job.ts';
import { jobsListed } from '../../contract/manager.ts';
import type { Submitter } from '../../contract/people.ts';
import type { JobView, JoinRequest, PlanLine } from '../../contract/schema.ts';
import { workspaceLimit } from '../../contract/workspace-limit.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId, Reserved } from '../../core/slot.ts';
import type {
  AgentContext,
  AgentFiles,
  CiEvent,
  CiService,
  EndedContext,
  JobSource,
  Registration,
} from '../../ports/ci-service.ts';
import { mountPathProblem } from '../../schema/volumes.ts';
import { type JobList, type StoredRequest, waitsSince } from '../../store/jobs.ts';
import type { Store } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { applyCancel, applyMove, hasFailed, type Job, type JobChange } from './job.ts';
import { JobBook, unknownJob } from './job-book.ts';
import { heldWithin, mountsOf } from './people.ts';
import { createPrune, type Prune } from './prune.ts';
import { jobEnvironment, jobScript, type MountProblem, type QueuePool, recipeOfJob, volumesNow } from './request.ts';
import { createSettle, type Settle } from './settle.ts';
import type { StrandedJobs } from './stranded.ts';
import { Submissions } from './submissions.ts';

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
  /** Who may submit what; null (default): everybody who asks. */
  readonly people?: PeopleTable | null;
  /** Whether this host has a path; by default nobody looks. */
  readonly isThere?: (path: string) => boolean;
  /** Config of a temporary daemon, or `''`: it hands out only jobs accepted with this config. Null (default): permanent. */
  readonly temporary?: string | null;
}

type OwnService = CiService &
  Required<Pick<CiService, 'settle'>> & { readonly jobs: Required<Pick<JobSource, 'devicesFor' | 'recipeFor'>> & JobSource };

/** For jobs of pools that other hosts have: their agents are not in slots of this host. */
export interface JobsElsewhere {
  /** Jobs that are not over. */
  open(): Job[];
  get(id: string): Job | null;
  /** The job of the pool that starts next. */
  head(pool: string): Job | null;
  /** Commits a change of a job's agent, with `also` in the same commit. It is on disk when this returns. @throws OnejobError E_STATE_FULL */
  record(change: JobChange, also: () => void): void;
  /** @throws OnejobError E_WORKSPACE_UNKNOWN */
  openWorkspace(job: Job, workspace: string): Readable;
  /** Adds sentences for people to the job. */
  annotate(id: string, notes: readonly string[]): void;
}

export function createOwnQueue(options: OwnQueueOptions): OwnQueue {
  return new OwnQueue(options);
}

/** What the loop asks. */
class AgentsQueue implements OwnService {
  readonly name = 'own';
  readonly capabilities = { binds: 'late', standsForSlots: false, terms: 1, poolTimeout: true, jobOnStdout: false } as const;
  readonly jobs: OwnService['jobs'];
  protected readonly book: JobBook;
  readonly #settle: Settle;

  constructor({ mountProblem = mountPathProblem, artifactLimit = 2 * 2 ** 30, ...options }: OwnQueueOptions) {
    const { store, pools, clock = systemClock, reasonFor = () => null, temporary = null, people = null } = options;
    const book = new JobBook({ store, pools, clock, reasonFor, temporary, people });
    this.book = book;
    this.jobs = jobSource(book, mountProblem, people);
    this.#settle = createSettle({
      clock,
      spool: book.spool,
      artifactLimit,
      annotate: (id, notes) => book.annotate(id, notes),
      triesOf: (id) => book.index.get(id)?.progress.settling ?? { failed: 0, killed: 0 },
      saveTries: (id, settling) => book.note(id, { settling }),
    });
  }

  async check(): Promise<Finding[]> {
    const { length } = this.book.index.all();
    return [fine('own queue', `The own queue has ${length} unfinished ${length === 1 ? 'job' : 'jobs'}.`)];
  }

  observe(send: (event: CiEvent) => void, signal: AbortSignal): void {
    this.book.teller.observe(this.book.poolNames, send, signal);
  }

  async register(context: AgentContext): Promise<Registration> {
    const job = context.job === null ? null : this.book.index.get(context.job);
    if (job === null) throw new OnejobError('E_BUG', `Agent ${context.agent} should get job ${context.job}, which is not open.`);
    const { request } = job;
    const { workspace } = request;
    if (workspace !== null) this.book.checkWorkspaceOf(job, workspace);
    const script = jobScript(context.workspace, { env: jobEnvironment(job, context), command: request.command });
    return { id: null, script, files: workspace === null ? null : async () => this.book.spool.openWorkspace(workspace) };
  }

  async settle(context: EndedContext, files: AgentFiles, signal: AbortSignal, hurry?: AbortSignal): Promise<void> {
    const job = context.job === null ? null : this.book.index.get(context.job);
    if (job === null || job.progress.state !== 'settling' || job.progress.agent !== context.agent) return;
    const own = this.book.giveUpOf(job.id).signal;
    const giveUp = hurry === undefined ? own : AbortSignal.any([own, hurry]);
    await this.#settle(job, { open: (inner, only) => files.all(inner, only), signal, giveUp });
  }

  readonly deregister = async () => ({ ran: null });
  readonly retire = async () => null;
  readonly describeExit = () =>
    ({ code: 'E_BUG', message: 'An agent of the own queue ended without a job.', retry: true }) as const;
}

function jobSource(book: JobBook, mountProblem: MountProblem, people: PeopleTable | null): OwnService['jobs'] {
  const { index, pools, teller } = book;
  const reserved = ({ id, request, progress }: Job): Reserved => {
    return { job: id, limit: request.timeout ?? pools.get(request.pool)?.timeout ?? null, cold: progress.cold };
  };
  // Where an engine grants them, they are in the recipe.
  const devicesOf = ({ request }: Job) => (pools.get(request.pool)?.recipe.wants === undefined ? request.devices : null);
  return {
    next(pool, _slot, only) {
      const job = index.head(pool, only);
      return job === null ? null : reserved(job);
    },
    devicesFor(id) {
      const job = index.get(id);
      return job === null ? null : devicesOf(job);
    },
    *line(pool) {
      for (const job of index.line(pool)) yield { ...reserved(job), devices: devicesOf(job) };
    },
    waits(pool, id) {
      const job = index.get(id);
      const mayStart = job !== null && job.request.pool === pool && book.mayStart(job);
      // Since devices were leased for it, its owner may have got all that the group gives.
      return mayStart && (book.shares?.whyHeld(job) ?? null) === null ? reserved(job) : null;
    },
    recipeFor(id, pool) {
      const job = index.get(id);
      if (job === null) return null;
      const { volumes, person } = job.request;
      const now = volumesNow(volumes, pool, mountsOf(people, person, mountProblem));
      return recipeOfJob({ ...job.request, volumes: [...heldWithin(people, person, now)] }, pool);
    },
    namesImage: (id) => (index.get(id)?.request.image ?? null) !== null,
    hasFailed(id) {
      const job = index.get(id);
      return job !== null && hasFailed(job);
    },
    record(change) {
      if ('job' in change) book.record(change);
    },
    committed: () => teller.committed(),
    syncing: () => teller.syncing(),
    rolledBack: () => index.rollback(),
  };
}

/** What people ask, too. What is in the queue, and what is done, is on disk when a method returns. */
export class OwnQueue extends AgentsQueue {
  /**
   * Deletes jobs that ended over `keepMs` ago, with logs and artifacts, and workspaces unused for an hour. `now`: wall clock, ms since the
   * epoch.
   */
  readonly prune: Prune;
  readonly elsewhere: JobsElsewhere;
  readonly #submissions: Submissions;

  constructor(options: OwnQueueOptions) {
    super(options);
    const { book } = this;
    const { mountProblem = mountPathProblem, isThere, people = null } = options;
    this.#submissions = new Submissions(book, { mountProblem, isThere, people });
    this.prune = createPrune(book.store, book.spool);
    this.elsewhere = jobsElsewhere(book);
  }

  /** Checks as `submit`, except for the workspace. @throws OnejobError E_POOL_UNKNOWN, E_JOB_REQUEST */
  verify(request: JobRequest, by?: Submitter | null): void {
    this.#submissions.verify(request, by?.uid);
  }

  /** Accepts a job; the same job again for an id that it has. @throws OnejobError E_POOL_UNKNOWN, E_JOB_REQUEST, E_WORKSPACE_UNKNOWN, E_STATE_FULL */
  submit(request: JobRequest, by?: Submitter | null): JobView {
    const [job] = this.#submissions.submit(request, null, by);
    if (job === undefined) throw new RangeError('no job was accepted');
    return job;
  }

  /** Accepts all jobs of an array, or none. @throws as above */
  submitArray({ job, indices }: ArrayRequest, by?: Submitter | null): JobView[] {
    return this.#submissions.submit(job, indices, by);
  }

  /** A waiting job has `ahead`, the number of jobs before it. */
  job(id: string): JobView | null {
    const job = this.book.find(id);
    return job === null ? null : this.book.inQueue(job);
  }

  /** In submission order, ended or not. */
  arrayJobs(id: string): JobView[] {
    return this.book.ofArray(id).map((job) => this.book.view(job));
  }

  /** Newest last, by default 1,000. `all`: also jobs that are done. */
  list({ all, pool, limit = jobsListed }: { readonly all: boolean } & Pick<JobList, 'pool'> & Partial<JobList>): JobView[] {
    return this.page(all, { pool, limit })
      .map(({ job }) => job)
      .reverse();
  }

  /** Newest first, with the place of each. `all`: also jobs that are done. */
  page(
    all: boolean,
    { pool, limit, before = Number.MAX_SAFE_INTEGER }: JobList,
  ): { readonly seq: number; readonly job: JobView }[] {
    const { store, index } = this.book;
    if (all) return store.jobs.list({ pool, limit, before }).map((job) => ({ seq: job.seq, job: this.book.view(job) }));
    const listed = index.all().filter((job) => (pool === null || job.request.pool === pool) && job.seq < before);
    return listed
      .slice(-limit)
      .map((job) => ({ seq: job.seq, job: this.book.inQueue(job) }))
      .reverse();
  }

  /** The limits that a job asked for itself; null: this queue does not have it. */
  asked(id: string): Pick<StoredRequest, 'memory' | 'cpus' | 'timeout'> | null {
    const { memory, cpus, timeout } = this.book.find(id)?.request ?? {};
    return memory === undefined || cpus === undefined || timeout === undefined ? null : { memory, cpus, timeout };
  }

  /** Jobs that the pool could start now. */
  waiting(pool: string): number {
    return this.book.index.waiting(pool);
  }

  /** Since when the oldest job waits that each pool could start, wall clock, ms. */
  waitingSince(): Map<string, number> {
    const since = new Map<string, number>();
    for (const job of this.book.index.all()) {
      const { pool } = job.request;
      if (this.book.mayStart(job) && (this.book.shares?.whyHeld(job) ?? null) === null)
        since.set(pool, Math.min(waitsSince(job), since.get(pool) ?? Number.POSITIVE_INFINITY));
    }
    return since;
  }

  /** Who is next in these pools and why, and what keeps jobs waiting that could start; empty where nobody shares. */
  plan(pools: Iterable<string> = this.book.poolNames): PlanLine[] {
    const { shares, index } = this.book;
    return shares === null ? [] : [...pools].flatMap((pool) => shares.plan(pool, index.firsts(pool)));
  }

  /** The agent that runs a job whose clients may run programs in its sandbox; null while it has none. */
  attendedBy(id: string): AgentId | null {
    const job = this.book.index.get(id);
    return job?.request.attended === true && job.progress.state === 'running' ? job.progress.agent : null;
  }

  /** Number of unfinished jobs, without held ones. */
  get unfinished(): number {
    return this.book.index.all().filter((job) => !this.book.isHeld(job)).length;
  }

  /** Whether this temporary daemon leaves the job to another daemon. */
  isHeld(id: string): boolean {
    const job = this.book.index.get(id);
    return job !== null && this.book.isHeld(job);
  }

  /** Its pools, its waiting jobs by pool, and how many wait for another daemon. */
  stranded(): StrandedJobs & { readonly leftToOthers: number } {
    const waiting = new Map<string, number>();
    let leftToOthers = 0;
    for (const job of this.book.index.all()) {
      if (job.progress.state !== 'queued') continue;
      const { pool } = job.request;
      if (this.book.isHeld(job)) leftToOthers += 1;
      else waiting.set(pool, (waiting.get(pool) ?? 0) + 1);
    }
    return { pools: this.book.poolNames, waiting, leftToOthers };
  }

  /** Resolves once the job is done and on disk. @throws OnejobError E_JOB_UNKNOWN */
  async settled(id: string, signal: AbortSignal): Promise<JobView> {
    signal.throwIfAborted();
    const job = this.book.known(id);
    return this.book.index.get(id) === null ? this.book.view(job) : this.book.teller.wait(id, signal);
  }

  /**
   * Moves a waiting job to another pool, which must be able to run it. It keeps its place by age. Idempotent.
   * @throws OnejobError E_JOB_UNKNOWN, E_POOL_UNKNOWN, E_JOB_REQUEST, E_STATE_FULL
   */
  move(id: string, pool: string): JobView {
    const { book } = this;
    const job = book.known(id);
    const { state } = job.progress;
    if (state === 'done') throw cannotMove(job, pool, 'it has ended');
    if (state !== 'queued') throw cannotMove(job, pool, 'it has begun');
    if (book.isHeld(job)) throw cannotMove(job, pool, 'another daemon accepted it, and this one is temporary');
    const { array, ...request } = job.request;
    const moved = { ...this.#submissions.check({ ...request, pool }, request.person), array };
    if (moved.pool === job.request.pool) return book.inQueue(job);
    book.commitNow(() => {
      const after = applyMove(job, moved, book.isCold(moved));
      book.store.jobs.move(id, after.request);
      book.save(after);
    });
    return book.inQueue(book.known(id));
  }

  /** Cancels a job; a waiting job ends at once. Idempotent. @throws OnejobError E_JOB_UNKNOWN, E_STATE_FULL */
  cancel(id: string, { onlyWaiting = false }: { readonly onlyWaiting?: boolean } = {}): JobView {
    const { book } = this;
    const job = book.known(id);
    if (onlyWaiting && job.progress.state !== 'queued') return book.view(job);
    const after = applyCancel(job, book.clock.wall());
    // Only its artifacts are left.
    if (job.progress.state === 'settling') book.giveUpOf(id).abort(cancelledSettling);
    if (after === job) return book.view(job);
    book.commitNow(() => {
      book.save(after);
    });
    return book.view(book.known(id));
  }

  /** Cancels all jobs of an array in one commit; returns those that had not ended. @throws as above */
  cancelArray(id: string): JobView[] {
    const { book } = this;
    const jobs = book.ofArray(id);
    if (jobs.length === 0) unknownJob(id);
    const open = jobs.filter(({ progress }) => progress.state !== 'done');
    book.commitNow(() => {
      for (const { id: each } of open) {
        // The end of another one may have ended it.
        const job = book.known(each);
        const after = applyCancel(job, book.clock.wall());
        if (after !== job) book.save(after);
      }
    });
    for (const { id: each, progress } of open) if (progress.state === 'settling') book.giveUpOf(each).abort(cancelledSettling);
    return open.map((job) => book.view(book.known(job.id)));
  }

  /** Calls the listener after every change of a job; returns a function that stops it. */
  onChange(listener: (job: JobView) => void): () => void {
    return this.book.teller.follow(listener);
  }

  /** Stores the tar of a workspace; returns its id. @throws OnejobError E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  putWorkspace(files: Readable, signal: AbortSignal, by?: Submitter | null): Promise<string> {
    return this.book.spool.putWorkspace(files, workspaceLimit, signal, by?.uid);
  }

  /** Keeps files for workspaces that are made of them; their secret name. @throws OnejobError E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  keepFiles(files: Readable, signal: AbortSignal): Promise<string> {
    return this.book.spool.keepFiles(files, workspaceLimit, signal);
  }

  /** Makes a workspace of what is kept; returns its id. @throws OnejobError E_WORKSPACE_UNKNOWN, E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  joinWorkspace(request: JoinRequest, signal: AbortSignal, by?: Submitter | null): Promise<string> {
    return this.book.spool.joinWorkspace(request, workspaceLimit, signal, by?.uid);
  }

  /** The tar of a done job's artifacts; null when it has none. */
  artifacts(job: string): Readable | null {
    return this.book.spool.hasArtifacts(job) ? this.book.spool.openArtifacts(job) : null;
  }

  close(): Promise<void> {
    return this.book.spool.close();
  }
}

function jobsElsewhere(book: JobBook): JobsElsewhere {
  return {
    open: () => book.index.all(),
    get: (id) => book.index.get(id),
    head: (pool) => book.index.head(pool),
    record(change, also) {
      book.commitNow(() => {
        also();
        book.record(change);
      });
    },
    openWorkspace(job, workspace) {
      book.checkWorkspaceOf(job, workspace);
      return book.spool.openWorkspace(workspace);
    },
    annotate: (id, notes) => book.annotate(id, notes),
  };
}

const cancelledSettling = 'the job was cancelled while onejob read them';

function cannotMove({ id }: Job, pool: string, why: string): OnejobError {
  return new OnejobError('E_JOB_REQUEST', `Cannot move job ${id} to pool ${pool}: ${why}.`, {
    hint: 'Only a job that waits can be moved.',
  });
}
