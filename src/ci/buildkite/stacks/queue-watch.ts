/** Follows one queue: asks for its waiting jobs while a slot could take one, and reserves no more of them than there are such slots. */

import { toFailure } from '../../../base/errors.ts';
import type { PoolConfig } from '../../../config/config.ts';
import type { JobId } from '../../../core/slot.ts';
import { plainWord, type Unfit, type UnfitWatch, unfitHow } from '../../kit/unfit.ts';
import { buildkiteEnd } from '../jobs/outcome.ts';
import type { Shared } from '../shared.ts';
import type { JobPick, JobReservations } from './job-reservations.ts';
import { type PollLoop, startPollLoop, type Work } from './poll-loop.ts';
import type { Runs } from './runs.ts';
import { type ScheduledJob, stageOf, whyRefused } from './stacks.ts';

/** ms. Longest wait after failures, and the wait after a refusal, which only a person can fix. */
const longest = 60_000;
/** Jobs per page, and pages that are read at a time. */
const [pageSize, mostPages] = [100, 10];
/** ms that a job must wait before its page says why. */
const beforeNote = 5_000;
/** How many of those are remembered. */
const mostNoted = 5_000;

export interface QueueWatchParts {
  /** ms between two questions while a slot is free. */
  readonly often: number;
  /** Why there are no jobs; null: there is no problem. */
  readonly say: (problem: string | null) => void;
  readonly unfit: Pick<UnfitWatch, 'saw'>;
  readonly shared: Shared;
  readonly reservations: JobReservations;
  readonly runs: Runs;
}

/** Where the jobs of one question go. */
interface Places {
  /** Slots without a job. */
  readonly free: string[];
  readonly picks: JobPick[];
  readonly waiting: Map<JobId, number>;
  readonly unfit: Map<JobId, Unfit>;
}

/** Follows the queue until the service is closed. */
export function watchQueue(queue: string, parts: QueueWatchParts): PollLoop {
  return startPollLoop(new QueueWatch(queue, parts), parts.shared);
}

class QueueWatch implements Work {
  readonly longest = longest;
  readonly #queue: string;
  readonly #parts: QueueWatchParts;
  readonly #shared: Shared;
  readonly #pools: readonly PoolConfig[];
  /** ms between two extensions of reservations. */
  readonly #keepEvery: number;
  /** The service refused a call, so it may not know the stack any more. Others continue until this is found out at the next turn. */
  #isDoubted = false;
  /** Whether jobs of an earlier manager, and those reserved without an answer, are looked after. */
  #isTakenUp = false;
  #isOddReported = false;
  /** When it last asked for jobs, and extended its reservations; and when it may ask next (the clock's `now`). */
  #asked = Number.NEGATIVE_INFINITY;
  #kept: number;
  #notBefore = Number.NEGATIVE_INFINITY;
  /** Jobs that no slot can take now, and since when. */
  #crowd = new Map<JobId, number>();
  /** Jobs whose pages say why they wait. */
  readonly #noted = new Set<JobId>();

  constructor(queue: string, parts: QueueWatchParts) {
    const { shared } = parts;
    this.#queue = queue;
    this.#parts = parts;
    this.#shared = shared;
    this.#pools = shared.pools.filter((pool) => pool.queue === queue && pool.elsewhere === undefined);
    this.#keepEvery = (shared.expiry * 1000) / 4;
    this.#kept = shared.clock.now();
  }

  due(): number | null {
    const { isReady, entry } = this.#shared;
    const { reservations } = this.#parts;
    if (!isReady() || !reservations.knowsSlots) return null;
    const keep = reservations.has(this.#queue) ? this.#kept + this.#keepEvery : Number.POSITIVE_INFINITY;
    const isSettled = !this.#isDoubted && entry.isKnown && this.#isTakenUp;
    return Math.max(this.#notBefore, isSettled ? Math.min(this.#nextAsk(), keep) : this.#notBefore);
  }

  async poll(): Promise<void> {
    const { entry, clock } = this.#shared;
    const { reservations, runs, say } = this.#parts;
    if (this.#isDoubted) {
      this.#isDoubted = this.#isTakenUp = false;
      entry.doubt();
    }
    if (!entry.isKnown) await this.#register();
    if (!this.#isTakenUp) {
      await this.#adoptReservations();
      this.#isTakenUp = true;
      runs.wake();
    }
    if (clock.now() >= this.#kept + this.#keepEvery) {
      this.#kept = clock.now();
      await reservations.keep(this.#queue);
    }
    if (clock.now() >= this.#nextAsk()) await this.#ask();
    say(null);
  }

  failed(error: unknown, failures: number): number {
    const { message, retry, code } = toFailure(error);
    // The stack may be gone, or another installation may have it: register it again.
    if (code === 'E_CI_DENIED') this.#isDoubted = true;
    // A single failure is not an outage.
    if (!retry || failures > 1) this.#parts.say(message);
    return retry ? 0 : longest;
  }

  async #register(): Promise<void> {
    const { entry, signal } = this.#shared;
    this.#isTakenUp = false;
    await entry.register(this.#queue, signal).catch((error: unknown) => {
      throw whyRefused(error);
    });
  }

  /** The service removes a stack that asks nothing. */
  #nextAsk(): number {
    const { config } = this.#shared;
    return this.#asked + (this.#parts.reservations.free(this.#queue).length > 0 ? this.#parts.often : config.pollEvery);
  }

  /** Resumes jobs of an earlier manager, and those reserved without an answer. @throws OnejobError E_CI_* */
  async #adoptReservations(): Promise<void> {
    const { stacks, stack, rows, slots, log, signal } = this.#shared;
    const { reservations, runs } = this.#parts;
    const left = rows.unended().filter(({ id, pool }) => this.#isOfQueue(pool) && !this.#isLookedAfter(id));
    if (left.length === 0) return;
    const ids = left.map(({ id }) => id);
    const states = await stacks.states(stack, ids, signal);
    const picks: JobPick[] = [];
    for (const { id, pool } of left) {
      const state = states.get(id) ?? 'gone';
      const slot = reservations.slotFor(pool, id);
      const agent = slot === undefined ? null : slots.agentOf(slot, id);
      if (slot !== undefined && agent !== null) runs.add({ job: id, agent, slot });
      if (slot !== undefined && state === 'reserved') picks.push({ job: id, slot });
      else if (agent === null) rows.left(id, stageOf(state) === 'over' ? buildkiteEnd(state, null) : null);
    }
    if (picks.length === 0) return;
    log.info('reservations resumed', { queue: this.#queue, jobs: picks.map(({ job }) => job) });
    await this.#take(picks);
  }

  #isOfQueue(pool: string): boolean {
    return (this.#shared.pools.find(({ name }) => name === pool)?.queue ?? this.#queue) === this.#queue;
  }

  #isLookedAfter(job: JobId): boolean {
    return this.#parts.reservations.of(job) !== null || this.#parts.runs.of(job) !== null;
  }

  async #take(picks: readonly JobPick[]): Promise<void> {
    this.#isTakenUp = false;
    await this.#parts.reservations.take(this.#queue, picks);
    this.#isTakenUp = true;
  }

  async #ask(): Promise<void> {
    const { stacks, stack, poolOf, clock, signal } = this.#shared;
    this.#asked = clock.now();
    // Pools with priority first.
    const rank = (slot: string): number => poolOf(slot)?.priority ?? 0;
    const free = this.#parts.reservations.free(this.#queue).toSorted((a, b) => rank(b) - rank(a));
    const picks: JobPick[] = [];
    const waiting = new Map<JobId, number>();
    const unfit = new Map<JobId, Unfit>();
    const listed = new Set<JobId>();
    let isAll = false;
    let after: string | null = null;
    for (let pages = 0; pages < mostPages; pages++) {
      const page = await stacks.scheduled(stack, this.#queue, { limit: pageSize, after }, signal);
      this.#notBefore = Math.max(this.#notBefore, clock.now() + page.wait);
      this.#reportOdd(page.odd);
      if (page.paused) break;
      for (const { id } of page.jobs) listed.add(id);
      for (const job of page.jobs.toSorted((a, b) => b.priority - a.priority)) this.#place(job, { free, picks, waiting, unfit });
      after = page.next;
      isAll = after === null;
      if (isAll || free.length === 0 || page.wait > 0) break;
    }
    this.#crowd = waiting;
    this.#parts.unfit.saw(this.#queue, unfit, isAll ? null : listed);
    if (picks.length > 0) await this.#take(picks);
    await this.#note();
  }

  #reportOdd(jobs: number): void {
    if (jobs > 0 && !this.#isOddReported)
      this.#shared.log.warn('the service lists jobs whose ids are invalid; onejob ignores them', { queue: this.#queue, jobs });
    this.#isOddReported ||= jobs > 0;
  }

  /** Picks a free slot for a job, or remembers since when it waits for one, or that no pool of the queue fits. */
  #place({ id, rules }: ScheduledJob, { free, picks, waiting, unfit }: Places): void {
    const { pools, poolOf, clock } = this.#shared;
    const { reservations } = this.#parts;
    if (reservations.of(id) !== null || reservations.isShunned(id)) return;
    const at = free.findIndex((slot) => fits(rules, this.#queue, poolOf(slot)?.tags ?? []));
    const [slot] = at < 0 ? [] : free.splice(at, 1);
    if (slot !== undefined) picks.push({ job: id, slot });
    else if (this.#pools.some(({ tags }) => fits(rules, this.#queue, tags))) waiting.set(id, this.#crowd.get(id) ?? clock.now());
    else if (!pools.some(({ queue, tags }) => queue === this.#queue && fits(rules, queue, tags)))
      unfit.set(id, {
        jobs: 1,
        how: unfitHow(
          `queue ${JSON.stringify(plainWord(this.#queue))}`,
          rules.filter((rule) => !/^queue=/.test(rule)),
        ),
      });
  }

  /** Once per job; a failure costs nothing. */
  async #note(): Promise<void> {
    const { stacks, stack, host, clock, log, signal } = this.#shared;
    const isLate = ([job, since]: readonly [JobId, number]) => clock.now() - since >= beforeNote && !this.#noted.has(job);
    const late = [...this.#crowd].filter(isLate).map(([job]) => job);
    if (late.length === 0) return;
    for (const job of late) this.#noted.add(job);
    for (const job of this.#noted) if (this.#noted.size > mostNoted) this.#noted.delete(job);
    const detail = `onejob on ${host}: every slot that fits is busy; this job waits for one`;
    const notes = late.slice(0, pageSize).map((job) => ({ job, detail }));
    await stacks.notify(stack, notes, signal).catch((error: unknown) => {
      if (!signal.aborted) log.info('failed to report why jobs wait', { queue: this.#queue, reason: toFailure(error).message });
    });
  }
}

/**
 * Whether an agent's tags meet every rule of a job. `key=*` accepts any value; without a value it is `true`. Only onejob checks
 * this: the service gives a reserved job to any agent that names it (docs page `agent/cli/reference/start`, `--acquire-job`).
 */
export function fits(rules: readonly string[], queue: string, tags: readonly string[]): boolean {
  const own = [`queue=${queue}`, ...tags].map(split);
  return rules.every((rule) => {
    const [key, value] = split(rule);
    return own.some(([name, has]) => name === key && (value === '*' || has === value));
  });
}

function split(tag: string): readonly [string, string] {
  const at = tag.indexOf('=');
  return at < 0 ? [tag.trim(), 'true'] : [tag.slice(0, at).trim(), tag.slice(at + 1).trim()];
}
