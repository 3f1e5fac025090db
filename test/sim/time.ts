/**
 * Virtual time for a whole host. Nothing waits for real: once every microtask and file operation is done, the earliest timer
 * fires. Timers that are due at the same moment fire in an order that the seed draws.
 */
import { SimProcess } from './process.ts';

export type { SimProcess as ProcessClock } from './process.ts';

interface Timer {
  readonly at: number;
  readonly order: number;
  readonly fn: () => void;
  /** Its place in the heap; -1 once it fired or was cancelled. */
  place: number;
}

/** Why a run of virtual time came to no end. */
export class StuckError extends Error {
  override name = 'StuckError';
}

export class SimTime {
  /** ms by which the wall clock was set forward (or back, below 0) since the start. */
  jumped = 0;
  /** Timers that have fired. */
  steps = 0;
  #now = 1_000;
  // Before the real time, in which files are changed: none seems old to a manager, which sweeps what is.
  readonly #wall = Date.UTC(2020, 0, 1);
  readonly #heap: Timer[] = [];
  readonly #random: () => number;

  constructor(random: () => number) {
    this.#random = random;
  }

  /** ms since the simulated boot. */
  get now(): number {
    return this.#now;
  }

  /** ms since the epoch, as the host's wall clock shows it. */
  get wall(): number {
    return this.#wall + this.jumped + Math.floor(this.#now);
  }

  /** Nanoseconds since the epoch, as a runtime stamps output. */
  get stamp(): bigint {
    return BigInt(this.#wall + Math.floor(this.#now)) * 1_000_000n;
  }

  /** Timers that wait. */
  get pending(): number {
    return this.#heap.length;
  }

  /** Calls `fn` once after `ms`; the returned function calls it off. */
  after(ms: number, fn: () => void): () => void {
    const timer: Timer = { at: this.#now + Math.max(0, ms), order: this.#random(), fn, place: this.#heap.length };
    this.#heap.push(timer);
    this.#up(timer);
    return () => this.#remove(timer);
  }

  /** A process whose effects nobody counts. */
  process(): SimProcess {
    return new SimProcess(this);
  }

  /**
   * Runs until `isDone` holds when all is quiet.
   * @throws StuckError when `limit` virtual ms have passed, or nothing is left to wait for; and what a timer throws
   */
  async run(isDone: () => boolean | Promise<boolean>, limit: number): Promise<void> {
    const end = this.#now + limit;
    const step = (): void => {
      const next = this.#heap[0];
      if (next === undefined) throw new StuckError('nothing is left to wait for');
      if (next.at > end) throw new StuckError(`not done after ${limit / 3_600_000} h of virtual time`);
      this.#remove(next);
      this.#now = Math.max(this.#now, next.at);
      this.steps += 1;
      next.fn();
    };
    for (;;) {
      await quiet();
      let answer = isDone();
      // As many steps as possible in one turn of Node's loop, which costs more than most steps.
      if (answer === false)
        await turnOf(() => {
          do {
            step();
            drain();
            if (isBusy()) return;
            answer = isDone();
          } while (answer === false);
        });
      if (typeof answer === 'boolean' ? answer : await answer) return;
      if (typeof answer !== 'boolean') step();
    }
  }

  #remove(timer: Timer): void {
    const { place } = timer;
    if (place < 0) return;
    timer.place = -1;
    const last = this.#heap.pop() as Timer;
    if (last === timer) return;
    this.#heap[place] = last;
    last.place = place;
    this.#up(last);
    this.#down(last);
  }

  #up(timer: Timer): void {
    while (timer.place > 0) {
      const above = this.#heap[(timer.place - 1) >> 1] as Timer;
      if (!isBefore(timer, above)) return;
      this.#swap(timer, above);
    }
  }

  #down(timer: Timer): void {
    for (;;) {
      const left = this.#heap[2 * timer.place + 1];
      const right = this.#heap[2 * timer.place + 2];
      const first = right !== undefined && left !== undefined && isBefore(right, left) ? right : left;
      if (first === undefined || !isBefore(first, timer)) return;
      this.#swap(first, timer);
    }
  }

  #swap(one: Timer, other: Timer): void {
    const { place } = one;
    one.place = other.place;
    other.place = place;
    this.#heap[one.place] = one;
    this.#heap[other.place] = other;
  }
}

function isBefore(one: Timer, other: Timer): boolean {
  return one.at < other.at || (one.at === other.at && one.order < other.order);
}

/** What keeps Node busy although no timer of the simulation is due: files, threads of its pool, and work put off. */
const busy = /^(FSReq|CloseReq|Immediate|.*(Job|Request)$)/;

const kinds = new Map<string, boolean>();

function isBusy(): boolean {
  for (const kind of process.getActiveResourcesInfo()) {
    const is = kinds.get(kind) ?? busy.test(kind);
    kinds.set(kind, is);
    if (is) return true;
  }
  return false;
}

/** Does all microtasks, as Node does at the end of a callback. Inside of one it does nothing. */
const drain = (process as unknown as { readonly _tickCallback: () => void })._tickCallback;

/** Calls `fn` from Node's loop itself, so that it may drain. */
function turnOf(fn: () => void): Promise<void> {
  return new Promise((resolve, reject) => {
    setImmediate(() => {
      try {
        fn();
        resolve();
      } catch (error) {
        reject(error);
      }
    });
  });
}

/** Resolves once no microtask and no file operation is under way: what is left waits for a timer. */
async function quiet(): Promise<void> {
  do await new Promise((resolve) => setImmediate(resolve));
  while (isBusy());
}
