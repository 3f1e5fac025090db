/**
 * The jobs of the own queue: all of them in the store, those that are not over also in memory. Every change goes through here: it is
 * committed, then announced, and a job that is done lets those that need it start, or ends them too.
 */
import { hasCode, OnejobError } from '../../base/errors.ts';
import type { PeopleTable } from '../../config/people.ts';
import type { JobView } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import type { StoredRequest } from '../../store/jobs.ts';
import type { Store } from '../../store/store.ts';
import { ownJobEnded } from '../../verdict/outcomes.ts';
import { applyChange, applyNeeded, type Job, type JobChange, jobView } from './job.ts';
import { JobIndex } from './job-index.ts';
import { type QueuePool, recipeOfJob } from './request.ts';
import { Shares } from './shares.ts';
import { Spool } from './spool.ts';
import { strandedHint } from './stranded.ts';
import { Teller } from './tell.ts';

export interface JobBookParts {
  readonly store: Store;
  readonly pools: readonly QueuePool[];
  readonly clock: Clock;
  /** Why jobs of a pool wait, as a sentence; null: its agents are busy. */
  readonly reasonFor: (pool: string) => string | null;
  /** Config of a temporary daemon, or `''`: it hands out only jobs accepted with this config. Null: permanent. */
  readonly temporary: string | null;
  /** Who shares the queue; null: all who ask, in turn. */
  readonly people: PeopleTable | null;
}

export class JobBook {
  readonly store: Store;
  readonly clock: Clock;
  readonly pools: ReadonlyMap<string, QueuePool>;
  readonly poolNames: ReadonlySet<string>;
  readonly temporary: string | null;
  readonly index: JobIndex;
  readonly spool: Spool;
  readonly teller: Teller;
  /** null: there are no people. */
  readonly shares: Shares | null;
  readonly #reasonFor: JobBookParts['reasonFor'];
  /** Aborted to stop waiting for a job's artifacts. */
  readonly #givingUp = new Map<string, AbortController>();

  constructor({ store, pools, clock, reasonFor, temporary, people }: JobBookParts) {
    this.store = store;
    this.clock = clock;
    this.temporary = temporary;
    this.#reasonFor = reasonFor;
    this.pools = new Map(pools.map((pool) => [pool.name, pool]));
    this.poolNames = new Set(this.pools.keys());
    const active = () => this.index.active();
    this.shares = people === null ? null : new Shares({ people, store, clock, pools: this.pools, active });
    this.index = new JobIndex((job) => this.isHeld(job), this.shares);
    this.spool = new Spool(store.dir, (workspace) => this.index.hasWorkspace(workspace), clock);
    for (const job of store.jobs.open()) {
      // The recipe of its pool may have changed since it was accepted.
      const mayChange = job.progress.state === 'queued' && this.pools.has(job.request.pool);
      const cold = mayChange ? this.isCold(job.request) : job.progress.cold;
      this.index.put({ ...job, progress: { ...job.progress, cold } });
    }
    this.index.commit();
    this.teller = new Teller({
      index: this.index,
      view: (job) => this.view(job),
      over: (job) => this.#over(job),
      sharing: () => (this.shares === null ? null : this.poolNames),
    });
    people?.onChange(() => this.teller.wake());
    this.#repairNeeds();
  }

  find(id: string): Job | null {
    return this.index.get(id) ?? this.store.jobs.get(id);
  }

  /** @throws OnejobError E_JOB_UNKNOWN */
  known(id: string): Job {
    return this.find(id) ?? unknownJob(id);
  }

  /** Jobs of an array in submission order, ended or not. */
  ofArray(id: string): Job[] {
    return this.store.jobs.ofArray(id).map((job) => this.index.get(job.id) ?? job);
  }

  /** Whether this temporary daemon leaves the job to another daemon. */
  isHeld(job: Job): boolean {
    return this.temporary !== null && job.temporary !== this.temporary;
  }

  /** Whether it waits for its pool, and for nothing else. */
  mayStart(job: Job): boolean {
    return job.progress.state === 'queued' && job.progress.blockedBy.length === 0 && !this.isHeld(job);
  }

  view(job: Job): JobView {
    // Nobody hears of an end that a power cut undoes, also if he asks (S12).
    if (this.teller.isUntold(job.id)) this.store.syncNow();
    const outcome = job.progress.state === 'done' ? this.store.outcomes.get(job.id) : null;
    return jobView(job, () => this.#whyItWaits(job), outcome);
  }

  /** With its place in the queue, which only a job has that will start. */
  inQueue(job: Job): JobView {
    const view = this.view(job);
    // Where people share, what others use until then decides how many go before it.
    return this.shares === null && this.mayStart(job) && this.pools.has(job.request.pool)
      ? { ...view, ahead: this.index.ahead(job) }
      : view;
  }

  /**
   * Whether a job needs a sandbox of its own. While a pool tries another image some of its standbys have the image that proved itself
   * last, and a job that names an image must not get another one.
   */
  isCold(request: StoredRequest): boolean {
    const pool = this.pools.get(request.pool);
    if (pool === undefined) return false;
    const proved = request.image === null ? null : (this.store.provedImages.of(request.pool)?.image ?? null);
    return recipeOfJob(request, pool.recipe) !== null || (proved !== null && proved !== request.image);
  }

  /** Commits and syncs a change of the queue's own. */
  commitNow(change: () => void): void {
    this.#commit(change, true);
    this.teller.syncing()();
  }

  /**
   * Commits what a waiting slot may take at once, and syncs: the release shares that sync. If only the sync fails, what was committed
   * stays, and nothing of it begins before a sync succeeds.
   */
  commitAhead(change: () => void): void {
    this.#commit(change, false);
    this.store.syncNow();
  }

  #commit(change: () => void, durable: boolean): void {
    try {
      this.store.transaction({ durable }, change);
    } catch (error) {
      this.index.rollback();
      throw error;
    }
    this.teller.committed();
  }

  /** Inside a commit. A job that is done lets those that need it start, or ends them too, however many there are in a row. */
  save(job: Job): void {
    const ended: Job[] = [];
    const put = (after: Job): void => {
      this.store.jobs.save(after.id, after.progress);
      this.shares?.changed(this.index.get(after.id), after);
      this.index.put(after);
      if (after.progress.state === 'done') ended.push(after);
    };
    put(job);
    // It grows meanwhile.
    for (const needed of ended) {
      ownJobEnded(this.store, needed, this.pools.get(needed.request.pool)?.timeout ?? null);
      for (const blocked of this.index.blockedBy(needed.id)) put(applyNeeded(blocked, needed.id, needed, this.clock.wall()));
    }
  }

  /** Inside a commit: a change of a job's agent. */
  record(change: JobChange): void {
    const job = this.index.get(change.job);
    const after = job === null ? null : applyChange(job, change, this.clock.wall());
    if (after !== null && after !== job) this.save(after);
  }

  /** Commits what says nothing about whether the job runs. */
  note(id: string, more: Pick<Partial<Job['progress']>, 'note' | 'settling'>): void {
    const job = this.index.get(id);
    if (job === null) return;
    const changed = { ...job, progress: { ...job.progress, ...more } };
    this.store.transaction({ durable: false }, () => this.store.jobs.save(id, changed.progress));
    this.index.put(changed);
    this.teller.committed();
  }

  /** Adds sentences for people to the job. */
  annotate(id: string, notes: readonly string[]): void {
    const job = this.index.get(id);
    if (job === null || notes.length === 0) return;
    // An earlier manager may have written the same before it was killed.
    const before = job.progress.note;
    const fresh = notes.filter((note) => before === null || !before.includes(note));
    this.note(id, { note: [before, ...fresh].filter((each) => each !== null).join(' ') });
  }

  giveUpOf(id: string): AbortController {
    const known = this.#givingUp.get(id) ?? new AbortController();
    this.#givingUp.set(id, known);
    return known;
  }

  /** @throws OnejobError E_WORKSPACE_UNKNOWN */
  checkWorkspaceOf({ id }: Job, workspace: string): void {
    if (this.spool.hasWorkspace(workspace)) return;
    const hint = 'Submit the job again.';
    throw new OnejobError('E_WORKSPACE_UNKNOWN', `Cannot start job ${id}: its workspace ${workspace} is gone.`, { hint });
  }

  #whyItWaits(job: Job): string | null {
    const { pool } = job.request;
    if (this.isHeld(job)) return whyHeld(job);
    const held = this.shares?.whyHeld(job) ?? null;
    if (held !== null && this.pools.has(pool)) return held;
    return this.pools.has(pool) ? this.#reasonFor(pool) : noSuchPool(pool, this.poolNames);
  }

  #over({ id, request: { workspace } }: Job): void {
    this.index.forget(id);
    this.#givingUp.delete(id);
    // Jobs of an array share one: the last of them drops it.
    if (workspace !== null) this.spool.dropWorkspace(workspace);
  }

  /** Jobs that never heard of the end of one that they need would wait for ever. */
  #repairNeeds(): void {
    const now = this.clock.wall();
    const missed = this.index.all().flatMap(({ id, progress: { blockedBy } }) => {
      const over = blockedBy.filter((need) => this.index.get(need) === null);
      return over.length === 0 ? [] : [{ id, over }];
    });
    if (missed.length === 0) return;
    const repair = (): void => {
      for (const { id, over } of missed) {
        for (const need of over) {
          const job = this.index.get(id);
          const after = job === null ? null : applyNeeded(job, need, this.store.jobs.get(need), now);
          if (after !== null && after !== job) this.save(after);
        }
      }
    };
    try {
      this.commitNow(repair);
    } catch (error) {
      // The next start tries it again.
      if (!hasCode(error, 'E_STATE_FULL')) throw error;
    }
  }
}

function whyHeld({ temporary }: Job): string {
  if (temporary === null) return 'A permanent daemon accepted it, but this one is temporary: type "onejob up".';
  const config = temporary === '' ? 'no config' : `the config ${temporary}`;
  return `A temporary daemon with ${config} accepted it: use that config again, or type "onejob up".`;
}

function noSuchPool(pool: string, pools: ReadonlySet<string>): string {
  return `The own queue no longer has a pool called "${pool}". ${strandedHint(pool, pools)}`;
}

export function unknownJob(id: string): never {
  throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'Type "onejob jobs --all" to list the jobs.' });
}
