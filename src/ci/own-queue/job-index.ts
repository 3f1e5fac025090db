/**
 * Jobs that are not over, in memory: by id, and those that wait by pool. Follows a transaction: what was put since the
 * last commit is seen at once, and gone after a rollback.
 */
import type { Job } from './job.ts';

export interface Moved {
  /** null for a job that is new. */
  readonly before: Job | null;
  readonly after: Job;
}

export class JobIndex {
  readonly #jobs = new Map<string, Job>();
  readonly #waiting = new Map<string, WaitingJobs>();
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
    const waiting = this.#waiting.get(request.pool) ?? new WaitingJobs();
    this.#waiting.set(request.pool, waiting);
    if (job.progress.state === 'queued' && !this.#isHeld(job))
      waiting.add({ id, seq, priority: request.priority, user: request.user });
    else waiting.remove(id);
  }
}

export interface Waiting {
  readonly id: string;
  readonly priority: number;
  /** Submission order; unique. */
  readonly seq: number;
  /** Whose turn it counts as; all that say nothing are one. */
  readonly user: string | null;
}

/**
 * Jobs that wait in one pool: higher priority first, then users in turn, then in submission order. A binary heap that knows
 * where each job stands: the head costs nothing, adding and taking out any job cost O(log n).
 *
 * Each job of a user has the turn after the one before it, and a user who had none waiting comes in at the turn that jobs are
 * taken from now (start-time fair queueing). So who hands in one job behind 500 of somebody else waits for one of these.
 */
export class WaitingJobs {
  readonly #heap: Waiting[] = [];
  readonly #places = new Map<string, number>();
  /** A job that comes back has the turn it had. */
  readonly #turns = new Map<string, number>();
  /** By priority and user: how many wait, and the last turn among them. */
  readonly #lines = new Map<string, { waiting: number; last: number }>();
  /** By priority: the turn that a job was last taken from. */
  readonly #now = new Map<number, number>();

  get size(): number {
    return this.#heap.length;
  }

  head(): Waiting | null {
    return this.#heap[0] ?? null;
  }

  /** Adds a job; one that is already there stays where it is. */
  add(job: Waiting): void {
    if (this.#places.has(job.id)) return;
    const line = this.#lineOf(job);
    const now = this.#now.get(job.priority) ?? 0;
    // Of a line that is empty only what was taken counts, not what was cancelled.
    const last = line.waiting === 0 ? Math.min(line.last, now) : line.last;
    const turn = this.#turns.get(job.id) ?? Math.max(now, last + 1);
    this.#turns.set(job.id, turn);
    line.waiting += 1;
    line.last = Math.max(turn, last);
    this.#heap.push(job);
    this.#rise(this.#heap.length - 1, job);
  }

  /** Takes a job out; one that is not there is no error. */
  remove(id: string): void {
    const place = this.#places.get(id);
    if (place === undefined) return;
    const job = this.#heap[place];
    if (job !== undefined) {
      if (place === 0) this.#now.set(job.priority, Math.max(this.#now.get(job.priority) ?? 0, this.#turns.get(id) ?? 0));
      this.#lineOf(job).waiting -= 1;
    }
    this.#places.delete(id);
    const last = this.#heap.pop();
    if (last === undefined || last.id === id) return;
    this.#sink(place, last);
    this.#rise(this.#places.get(last.id) ?? place, last);
  }

  /** Takes a job out that never comes back. */
  forget(id: string): void {
    this.remove(id);
    this.#turns.delete(id);
  }

  #lineOf({ priority, user }: Waiting): { waiting: number; last: number } {
    const key = `${priority} ${user ?? ''}`;
    const line = this.#lines.get(key) ?? { waiting: 0, last: -1 };
    this.#lines.set(key, line);
    return line;
  }

  #isBefore(a: Waiting, b: Waiting): boolean {
    if (a.priority !== b.priority) return a.priority > b.priority;
    const [one, other] = [this.#turns.get(a.id) ?? 0, this.#turns.get(b.id) ?? 0];
    return one === other ? a.seq < b.seq : one < other;
  }

  /** How many go before a job; 0 when it is not there. Costs as much as these are, however many wait. */
  ahead(id: string): number {
    const place = this.#places.get(id);
    const job = place === undefined ? undefined : this.#heap[place];
    if (job === undefined) return 0;
    let count = 0;
    // Below one that does not go before it, none does.
    for (const open = [0]; open.length > 0; ) {
      const at = open.pop() ?? 0;
      const other = this.#heap[at];
      if (other === undefined || !this.#isBefore(other, job)) continue;
      count += 1;
      open.push(2 * at + 1, 2 * at + 2);
    }
    return count;
  }

  #rise(from: number, job: Waiting): void {
    let place = from;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      const above = this.#heap[parent];
      if (above === undefined || !this.#isBefore(job, above)) break;
      this.#put(place, above);
      place = parent;
    }
    this.#put(place, job);
  }

  #sink(from: number, job: Waiting): void {
    let place = from;
    for (;;) {
      const left = this.#heap[2 * place + 1];
      const right = this.#heap[2 * place + 2];
      if (left === undefined) break;
      const onRight = right !== undefined && this.#isBefore(right, left);
      const child = onRight ? right : left;
      if (!this.#isBefore(child, job)) break;
      this.#put(place, child);
      place = 2 * place + (onRight ? 2 : 1);
    }
    this.#put(place, job);
  }

  #put(place: number, job: Waiting): void {
    this.#heap[place] = job;
    this.#places.set(job.id, place);
  }
}
