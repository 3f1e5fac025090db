/**
 * Jobs that the service keeps for this host until an agent of ours has acquired them: decided before there is a sandbox, kept while
 * a slot wants them, then given back, or ended with a reason. A reservation that nobody extends ends soon, so a forgotten job goes
 * back to its queue.
 */

import { type Failure, toFailure } from '../../../base/errors.ts';
import type { PoolConfig } from '../../../config/config.ts';
import type { AgentId, JobId, JobResult } from '../../../core/slot.ts';
import type { SlotOffer } from '../../../ports/ci-service.ts';
import { type JobEnd, jobsOwnFailure, mostTries } from '../../kit/job-rows.ts';
import type { BuildkiteAdmission } from '../jobs/admission.ts';
import type { GivenJob } from '../jobs/job-facts.ts';
import { buildkiteEnd, whyNotAcquired } from '../jobs/outcome.ts';
import type { Shared } from '../shared.ts';
import type { Run } from './run.ts';
import { stageOf } from './stacks.ts';

export interface Reservation {
  readonly job: JobId;
  readonly queue: string;
  readonly pool: string;
  /** The slot that it is for; changes when that closes. */
  readonly slot: string;
  /** null: undecided. */
  readonly admission: Extract<BuildkiteAdmission, { kind: 'run' }> | null;
  /** The agent whose sandbox is, or was, to run it. */
  readonly agent: AgentId | null;
  /** Set when it must never run, until the service knows. */
  readonly verdict: Verdict | null;
  /** Failed sandboxes, and agents that did not get it. */
  readonly failures: number;
  /** Since when it waits for a slot (the clock's `now`). */
  readonly since: number;
  /** When it was last extended (the clock's `now`). */
  readonly kept: number;
}

export type JobPick = Pick<Reservation, 'job' | 'slot'>;

interface Verdict {
  readonly detail: string;
  readonly word: string;
}

/** ms that a job is left to others after it was given back, and after another host was faster. */
const [shunBack, shunLost] = [300_000, 10_000];
/** ms in which an extended reservation counts as new. */
const freshFor = 10_000;
/** @throws of all that ask the service: OnejobError E_CI_* */
export class JobReservations {
  readonly #shared: Shared;
  readonly #reserved = new Map<JobId, Reservation>();
  /** Until when jobs are left to others (the clock's `now`). */
  readonly #shunned = new Map<JobId, number>();
  readonly #deciding = new Set<JobId>();
  readonly #offers = new Map<string, SlotOffer>();

  constructor(shared: Shared) {
    this.#shared = shared;
  }

  of(job: JobId): Reservation | null {
    return this.#reserved.get(job) ?? null;
  }

  /** Those of a slot that wait for it or are in it, oldest first. */
  in(slot: string): Reservation[] {
    return [...this.#reserved.values()].filter((each) => each.slot === slot);
  }

  has(queue: string): boolean {
    return [...this.#reserved.values()].some((each) => each.queue === queue);
  }

  /** Not to be reserved now: it was given back, or another host has it. */
  isShunned(job: JobId): boolean {
    return (this.#shunned.get(job) ?? 0) > this.#shared.clock.now();
  }

  /** Whether slots have told what they could do. */
  get knowsSlots(): boolean {
    return this.#offers.size > 0;
  }

  /** Open slots of a queue without any job. */
  free(queue: string): string[] {
    const { poolOf } = this.#shared;
    return [...this.#offers.keys()].filter(
      (slot) => this.#isOpen(slot) && poolOf(slot)?.queue === queue && this.#isUnclaimed(slot),
    );
  }

  /** For a job of this pool: the one that has it, or one that is open, or any; undefined: the pool has none. */
  slotFor(pool: string, job: JobId): string | undefined {
    const { poolOf, isTaken } = this.#shared;
    const slots = [...this.#offers.keys()].filter((slot) => poolOf(slot)?.name === pool);
    return slots.find((slot) => isTaken(job, slot)) ?? slots.find((slot) => this.#isOpen(slot)) ?? slots[0];
  }

  /** Reserves them. @throws OnejobError E_CI_* when the service cannot be asked; then each has a row, because it may be ours */
  async take(queue: string, picks: readonly JobPick[]): Promise<void> {
    const { stacks, stack, expiry, clock, signal } = this.#shared;
    const jobs = picks.map(({ job }) => job);
    const since = clock.now();
    const ours = await stacks.reserve(stack, jobs, expiry, signal).catch((error: unknown) => {
      for (const pick of picks) this.#note(pick);
      throw error;
    });
    for (const pick of picks) this.#taken(queue, pick, { isOurs: ours.has(pick.job), since });
  }

  #note({ job, slot }: JobPick): void {
    const { poolOf, rows } = this.#shared;
    const pool = poolOf(slot)?.name;
    if (pool !== undefined && !this.#reserved.has(job)) rows.reserved({ id: job, env: {} }, pool);
  }

  #taken(queue: string, { job, slot }: JobPick, { isOurs, since }: { readonly isOurs: boolean; readonly since: number }): void {
    const { poolOf, rows, slots } = this.#shared;
    const pool = poolOf(slot)?.name;
    if (pool === undefined || this.#reserved.has(job)) return;
    if (!isOurs) {
      this.#shun(job, shunLost);
      rows.left(job, null);
      return;
    }
    const agent = slots.agentOf(slot, job);
    const made = { job, queue, pool, slot, admission: null, agent, verdict: null, failures: 0, since, kept: since };
    this.#reserved.set(job, made);
    rows.reserved({ id: job, env: {} }, pool);
    void this.#decide(made);
  }

  async #decide({ job, slot }: Reservation): Promise<void> {
    const { stacks, stack, poolOf, log, signal } = this.#shared;
    const pool = poolOf(slot);
    if (this.#deciding.has(job) || pool === undefined) return;
    this.#deciding.add(job);
    try {
      const given = await stacks.show(stack, job, signal);
      if (!this.#reserved.has(job)) return;
      if (given === null) this.forget(job, { word: 'gone', outcome: null });
      else await this.#admit(given, pool);
    } catch (error) {
      // Asked again with the next look.
      if (!signal.aborted) log.warn('cannot read a job yet', { job, reason: toFailure(error).message });
    } finally {
      this.#deciding.delete(job);
    }
  }

  async #admit(given: GivenJob, pool: PoolConfig): Promise<void> {
    const { admit, rows, log } = this.#shared;
    const job = given.id;
    rows.reserved(given, pool.name);
    const admission = await admit(given, pool).catch((error: unknown) => toFailure(error));
    if (!this.#reserved.has(job)) return;
    if ('retry' in admission) {
      // Not the job's fault: it is asked again with the next look.
      if (admission.retry) return log.warn('cannot decide about a job yet', { job, reason: admission.message });
      log.error('cannot decide about a job', { job, reason: admission.message });
      await this.#end(job, { detail: `onejob cannot run this job: ${admission.message}`, word: 'failed' });
    } else if (admission.kind === 'refused') {
      log.warn('job refused', { job, pipeline: admission.facts.pipeline, reason: admission.reason });
      await this.#end(job, { detail: `onejob refused this job: ${admission.reason}`, word: 'refused' });
    } else {
      const now = this.#change(job, { admission });
      if (now !== undefined) this.#tellWaiting(now);
    }
  }

  /** Makes sure that it is ours for most of its time. False: it is ours no more, and forgotten. @throws OnejobError E_CI_* */
  async renew(job: JobId): Promise<boolean> {
    const reservation = this.#reserved.get(job);
    if (reservation !== undefined && this.#shared.clock.now() - reservation.kept > freshFor) await this.#extend([job]);
    return this.#reserved.has(job);
  }

  /** Does what is due for all of a queue. @throws OnejobError E_CI_* */
  async keep(queue: string): Promise<void> {
    const { config, clock, isTaken } = this.#shared;
    const all = [...this.#reserved.values()].filter((each) => each.queue === queue);
    for (const each of all) {
      if (each.verdict !== null) await this.#tell(each);
      else if (each.admission === null) void this.#decide(each);
      const isLate = each.agent === null && clock.now() - each.since > config.holdTimeout;
      if (isLate && each.verdict === null && !isTaken(each.job, each.slot))
        await this.#giveBack(each.job, 'no slot took it in time');
    }
    const left = all.filter(({ job }) => this.#reserved.has(job)).map(({ job }) => job);
    await this.#extend(left);
  }

  async #extend(jobs: readonly JobId[]): Promise<void> {
    const { stacks, stack, expiry, clock, signal } = this.#shared;
    if (jobs.length === 0) return;
    const kept = clock.now();
    const ours = await stacks.reserve(stack, jobs, expiry, signal);
    for (const job of ours) this.#change(job, { kept });
    const others = jobs.filter((job) => !ours.has(job));
    if (others.length === 0) return;
    const states = await stacks.states(stack, others, signal);
    for (const job of others) this.lost(job, states.get(job) ?? 'gone');
  }

  /** The service does not keep it for this host any more; `state`: the service's word for it. */
  lost(job: JobId, state: string): void {
    const { isTaken, emit, log } = this.#shared;
    const reservation = this.#reserved.get(job);
    const stage = stageOf(state);
    // Then an agent of ours has acquired it, or is ending it.
    if (reservation === undefined || (reservation.agent !== null && (stage === 'running' || stage === 'ending'))) return;
    log.info('reservation lost', { job, state });
    this.#shun(job, shunLost);
    this.forget(job, stage === 'over' || stage === 'ending' ? buildkiteEnd(state, null) : null);
    const { agent, slot } = reservation;
    if (agent !== null && isTaken(job, slot)) emit({ kind: 'cancel', job, agent, grace: null });
  }

  /** A sandbox is made for it. */
  put(job: JobId, agent: AgentId): void {
    this.#change(job, { agent });
  }

  /** Its sandbox has certainly not begun it: it is tried again, or ended. `failure`: what went wrong; null: nothing did. */
  returned(job: JobId, failure: Failure | null): void {
    const own = jobsOwnFailure(failure);
    const failures = (this.#reserved.get(job)?.failures ?? 0) + (own === null ? 0 : 1);
    const now = this.#wait(job, failures);
    if (now === undefined) return;
    if (own !== null && (failures >= mostTries || !own.retry)) {
      const detail = `onejob could not run this job: failed to create its sandbox: ${own.message}`;
      void this.#end(job, { detail, word: 'failed' });
    } else if (this.#offers.get(now.slot) === 'gone') void this.#giveBack(job, 'its slot no longer exists');
    else queueMicrotask(() => this.#tellWaiting(now));
  }

  /** Its agent never had it: it is tried again, given back, or ended. `late`: why its agent was given up, or null. */
  async notAcquired(
    { job, agent }: Pick<Run, 'job' | 'agent'>,
    { result, late }: { readonly result: JobResult; readonly late: string | null },
    inner: AbortSignal,
  ): Promise<void> {
    const { rows, log } = this.#shared;
    const reservation = this.#reserved.get(job);
    const why = late ?? whyNotAcquired(result);
    log.warn('job not acquired', { job, agent, reason: why });
    if (reservation === undefined) {
      // Only the earlier manager knew how often it was tried.
      await this.#endReservation(job, inner);
      rows.left(job, null);
    } else if (late === null && result.kind === 'lost') {
      await this.#giveBack(job, why);
    } else if (reservation.failures + 1 < mostTries && (late !== null || result.kind !== 'timeout')) {
      this.#wait(job, reservation.failures + 1);
    } else {
      await this.#end(job, { detail: `onejob could not run this job: ${why}.`, word: 'failed' });
      rows.left(job, { word: 'failed', outcome: null });
    }
  }

  /** An agent of ours has it, or it is over. `end`: as in `JobRows.left`; undefined: leaves its row alone. */
  forget(job: JobId, end?: JobEnd | null): void {
    this.#reserved.delete(job);
    if (end !== undefined) this.#shared.rows.left(job, end);
  }

  /** What a slot could do with a job now. A job that waited for this slot moves to another of its pool, or back. */
  offer(slot: string, offer: SlotOffer): void {
    const { poolOf, isTaken } = this.#shared;
    this.#offers.set(slot, offer);
    const pool = poolOf(slot)?.name;
    const untaken = [...this.#reserved.values()].filter(
      (each) => each.pool === pool && each.verdict === null && !isTaken(each.job, each.slot),
    );
    if (offer === 'open') {
      const stuck = this.#isUnclaimed(slot) ? untaken.find((each) => !this.#isOpen(each.slot)) : undefined;
      if (stuck !== undefined) this.#move(stuck.job, slot);
      return;
    }
    for (const each of untaken.filter((one) => one.slot === slot)) {
      const other = this.free(each.queue).find((free) => poolOf(free)?.name === each.pool);
      if (other !== undefined) this.#move(each.job, other);
      else if (offer === 'gone') void this.#giveBack(each.job, 'its slot no longer exists');
    }
  }

  /** Ends it at the service, now or later. */
  async #tell({ job, verdict }: Reservation): Promise<void> {
    const { stacks, stack, log, signal } = this.#shared;
    if (verdict === null) return;
    try {
      await stacks.finish(stack, job, verdict.detail, signal);
      this.forget(job, { word: verdict.word, outcome: null });
    } catch (error) {
      if (!signal.aborted) log.warn('cannot end a job yet', { job, reason: toFailure(error).message });
    }
  }

  async #end(job: JobId, verdict: Verdict): Promise<void> {
    const now = this.#change(job, { verdict });
    this.#shared.rows.note(job, verdict.detail);
    if (now !== undefined) await this.#tell(now);
  }

  async #giveBack(job: JobId, why: string): Promise<void> {
    const reservation = this.#reserved.get(job);
    if (reservation === undefined) return;
    this.#shared.log.info('job given back', { job, slot: reservation.slot, reason: why });
    this.#shun(job, shunBack);
    this.forget(job, null);
    await this.#endReservation(job, this.#shared.signal);
  }

  /** The service has no call for it: a reservation that is renewed for 1 s ends then. */
  async #endReservation(job: JobId, inner: AbortSignal): Promise<void> {
    const { stacks, stack } = this.#shared;
    await stacks.reserve(stack, [job], 1, inner).catch(() => {});
  }

  /** It waits for a slot. */
  #wait(job: JobId, failures: number): Reservation | undefined {
    return this.#change(job, { agent: null, failures, since: this.#shared.clock.now() });
  }

  #move(job: JobId, slot: string): void {
    const now = this.#change(job, { slot });
    if (now?.admission != null) this.#tellWaiting(now);
  }

  #change(job: JobId, patch: Partial<Reservation>): Reservation | undefined {
    const before = this.#reserved.get(job);
    if (before === undefined) return undefined;
    const now = { ...before, ...patch };
    this.#reserved.set(job, now);
    return now;
  }

  #shun(job: JobId, ms: number): void {
    const now = this.#shared.clock.now();
    for (const [each, until] of this.#shunned) if (until <= now) this.#shunned.delete(each);
    this.#shunned.set(job, now + ms);
  }

  #isOpen(slot: string): boolean {
    return this.#offers.get(slot) === 'open';
  }

  #isUnclaimed(slot: string): boolean {
    return this.in(slot).every(({ verdict }) => verdict !== null);
  }

  #tellWaiting({ pool, slot }: Reservation): void {
    this.#shared.emit({ kind: 'waiting', pool, slot });
  }
}
