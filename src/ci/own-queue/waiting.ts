/**
 * Jobs that wait in one pool: higher priority first, then in submission order. A binary heap that knows where each job
 * stands: the head costs nothing, adding and taking out any job cost O(log n).
 */
export interface Waiting {
  readonly id: string;
  readonly priority: number;
  /** Submission order; unique. */
  readonly seq: number;
}

export class WaitingJobs<T extends Waiting> {
  readonly #heap: T[] = [];
  readonly #places = new Map<string, number>();

  get size(): number {
    return this.#heap.length;
  }

  head(): T | null {
    return this.#heap[0] ?? null;
  }

  /** Adds a job; one that is already there stays where it is. */
  add(job: T): void {
    if (this.#places.has(job.id)) return;
    this.#heap.push(job);
    this.#rise(this.#heap.length - 1, job);
  }

  /** Takes a job out; one that is not there is no error. */
  remove(id: string): void {
    const place = this.#places.get(id);
    if (place === undefined) return;
    this.#places.delete(id);
    const last = this.#heap.pop();
    if (last === undefined || last.id === id) return;
    this.#sink(place, last);
    this.#rise(this.#places.get(last.id) ?? place, last);
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
      if (other === undefined || !isBefore(other, job)) continue;
      count += 1;
      open.push(2 * at + 1, 2 * at + 2);
    }
    return count;
  }

  #rise(from: number, job: T): void {
    let place = from;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      const above = this.#heap[parent];
      if (above === undefined || !isBefore(job, above)) break;
      this.#put(place, above);
      place = parent;
    }
    this.#put(place, job);
  }

  #sink(from: number, job: T): void {
    let place = from;
    for (;;) {
      const left = this.#heap[2 * place + 1];
      const right = this.#heap[2 * place + 2];
      if (left === undefined) break;
      const onRight = right !== undefined && isBefore(right, left);
      const child = onRight ? right : left;
      if (!isBefore(child, job)) break;
      this.#put(place, child);
      place = 2 * place + (onRight ? 2 : 1);
    }
    this.#put(place, job);
  }

  #put(place: number, job: T): void {
    this.#heap[place] = job;
    this.#places.set(job.id, place);
  }
}

function isBefore(a: Waiting, b: Waiting): boolean {
  return a.priority === b.priority ? a.seq < b.seq : a.priority > b.priority;
}
