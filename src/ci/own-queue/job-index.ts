/**
 * Jobs that are not over, in memory: by id, and those that wait by pool. Follows a transaction: what was put since the
 * last commit is seen at once, and gone after a rollback.
 */
import type { Job } from './job.ts';
import { type Waiting, WaitingJobs } from './waiting.ts';

export interface Moved {
  /** null for a job that is new. */
  readonly before: Job | null;
  readonly after: Job;
}

export class JobIndex {
  readonly #jobs = new Map<string, Job>();
  readonly #waiting = new Map<string, WaitingJobs<Waiting>>();
  readonly #undo = new Map<string, Job | null>();
  readonly #isHeld: (job: Job) => boolean;

  /** `isHeld`: jobs that are shown and can be cancelled, but are never handed out; always the same answer for a job. */
  constructor(isHeld: (job: Job) => boolean = () => false) {
    this.#isHeld = isHeld;
  }

  get(id: string): Job | null {
    return this.#jobs.get(id) ?? null;
  }

  /** Every job that is not over, and those that are but were not forgotten yet, in submission order. */
  all(): Job[] {
    return [...this.#jobs.values()];
  }

  /** The job to be started next. Costs the same however many wait. */
  head(pool: string): Job | null {
    const first = this.#waiting.get(pool)?.head() ?? null;
    return first === null ? null : this.get(first.id);
  }

  waiting(pool: string): number {
    return this.#waiting.get(pool)?.size ?? 0;
  }

  /** How many jobs of its pool are to be started before this one; 0 when it does not wait. */
  ahead({ id, request }: Pick<Job, 'id' | 'request'>): number {
    return this.#waiting.get(request.pool)?.ahead(id) ?? 0;
  }

  put(job: Job): void {
    const before = this.get(job.id);
    if (!this.#undo.has(job.id)) this.#undo.set(job.id, before);
    this.#set(job);
  }

  /** Keeps what was put; tells what became of each job since the last commit. */
  commit(): Moved[] {
    const moved: Moved[] = [];
    for (const [id, before] of this.#undo) {
      const after = this.get(id);
      if (after !== null) moved.push({ before, after });
    }
    this.#undo.clear();
    return moved;
  }

  /** Takes back everything that was put since the last commit. */
  rollback(): void {
    for (const [id, before] of this.#undo) {
      if (before === null) this.forget(id);
      else this.#set(before);
    }
    this.#undo.clear();
  }

  /** Lets go of a job that is over. */
  forget(id: string): void {
    const job = this.get(id);
    if (job === null) return;
    this.#waiting.get(job.request.pool)?.forget(id);
    this.#jobs.delete(id);
  }

  #set(job: Job): void {
    const { id, seq, request } = job;
    this.#jobs.set(id, job);
    const waiting = this.#waiting.get(request.pool) ?? new WaitingJobs<Waiting>();
    this.#waiting.set(request.pool, waiting);
    if (job.progress.state === 'queued' && !this.#isHeld(job))
      waiting.add({ id, seq, priority: request.priority, user: request.user });
    else waiting.remove(id);
  }
}
