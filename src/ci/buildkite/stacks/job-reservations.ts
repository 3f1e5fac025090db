/**
 * Jobs that the service keeps for this host until an agent of ours has acquired them: decided before there is a sandbox, kept while
 * a slot wants them, then given back, or ended with a reason. A reservation that nobody extends ends soon, so a forgotten job goes
 * back to its queue.
 */

import { type Failure, toFailure } from '../../../base/errors.ts';
import type { AgentId, JobId, JobResult } from '../../../core/slot.ts';
import type { SlotOffer } from '../../../ports/ci-service.ts';
import { type JobEnd, jobsOwnFailure, mostTries } from '../../kit/job-rows.ts';
import type { BuildkiteAdmission } from '../jobs/admission.ts';
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
export type Reservations = ReturnType<typeof createJobReservations>;

export function createJobReservations(shared: Shared) {
  const { config, stacks, stack, rows, slots, poolOf, isTaken, expiry, emit, clock, log, signal } = shared;
  const held = new Map<JobId, Reservation>();
  const shunned = new Map<JobId, number>();
  const deciding = new Set<JobId>();
  const offers = new Map<string, SlotOffer>();

  const change = (job: JobId, patch: Partial<Reservation>): Reservation | undefined => {
    const before = held.get(job);
    if (before === undefined) return undefined;
    const now = { ...before, ...patch };
    held.set(job, now);
    return now;
  };
  const isIn = (slot: string) => [...held.values()].filter((one) => one.slot === slot);
  const isOpen = (slot: string): boolean => offers.get(slot) === 'open';
  const isUnclaimed = (slot: string): boolean => isIn(slot).every(({ verdict }) => verdict !== null);
  /** Open slots of a queue without any job. */
  const free = (queue: string): string[] =>
    [...offers.keys()].filter((slot) => isOpen(slot) && poolOf(slot)?.queue === queue && isUnclaimed(slot));
  const tellWaiting = ({ pool, slot }: Reservation): void => emit({ kind: 'waiting', pool, slot });
  const shun = (job: JobId, ms: number): void => {
    for (const [one, until] of shunned) if (until <= clock.now()) shunned.delete(one);
    shunned.set(job, clock.now() + ms);
  };
  /** An agent of ours has it, or it is over. `end`: as in `JobRows.left`; undefined: leaves its row alone. */
  function forget(job: JobId, end?: JobEnd | null): void {
    held.delete(job);
    if (end !== undefined) rows.left(job, end);
  }

  /** Ends it at the service, now or later. */
  async function tell({ job, verdict }: Reservation): Promise<void> {
    if (verdict === null) return;
    try {
      await stacks.finish(stack, job, verdict.detail, signal);
      forget(job, { word: verdict.word, outcome: null });
    } catch (error) {
      if (!signal.aborted) log.warn('cannot end a job yet', { job, reason: toFailure(error).message });
    }
  }

  async function end(job: JobId, verdict: Verdict): Promise<void> {
    const now = change(job, { verdict });
    rows.note(job, verdict.detail);
    if (now !== undefined) await tell(now);
  }

  async function decide({ job, slot }: Reservation): Promise<void> {
    const pool = poolOf(slot);
    if (deciding.has(job) || pool === undefined) return;
    deciding.add(job);
    try {
      const given = await stacks.show(stack, job, signal);
      if (!held.has(job)) return;
      if (given === null) return forget(job, { word: 'gone', outcome: null });
      rows.reserved(given, pool.name);
      const admission = await shared.admit(given, pool).catch((error: unknown) => toFailure(error));
      if (!held.has(job)) return;
      if ('retry' in admission) {
        // Not the job's fault: it is asked again with the next look.
        if (admission.retry) return log.warn('cannot decide about a job yet', { job, reason: admission.message });
        log.error('cannot decide about a job', { job, reason: admission.message });
        await end(job, { detail: `onejob cannot run this job: ${admission.message}`, word: 'failed' });
      } else if (admission.kind === 'refused') {
        log.warn('job refused', { job, pipeline: admission.facts.pipeline, reason: admission.reason });
        await end(job, { detail: `onejob refused this job: ${admission.reason}`, word: 'refused' });
      } else {
        const now = change(job, { admission });
        if (now !== undefined) tellWaiting(now);
      }
    } catch (error) {
      // Asked again with the next look.
      if (!signal.aborted) log.warn('cannot read a job yet', { job, reason: toFailure(error).message });
    } finally {
      deciding.delete(job);
    }
  }

  /** The service does not keep it for this host any more; `state`: the service's word for it. */
  function lost(job: JobId, state: string): void {
    const one = held.get(job);
    const stage = stageOf(state);
    // Then an agent of ours has acquired it, or is ending it.
    if (one === undefined || (one.agent !== null && (stage === 'running' || stage === 'ending'))) return;
    log.info('reservation lost', { job, state });
    shun(job, shunLost);
    forget(job, stage === 'over' || stage === 'ending' ? buildkiteEnd(state, null) : null);
    if (one.agent !== null && isTaken(job, one.slot)) emit({ kind: 'cancel', job, agent: one.agent, grace: null });
  }

  async function extend(jobs: readonly JobId[]): Promise<void> {
    if (jobs.length === 0) return;
    const kept = clock.now();
    const ours = await stacks.reserve(stack, jobs, expiry, signal);
    for (const job of ours) change(job, { kept });
    const others = jobs.filter((job) => !ours.has(job));
    if (others.length === 0) return;
    const states = await stacks.states(stack, others, signal);
    for (const job of others) lost(job, states.get(job) ?? 'gone');
  }

  async function giveBack(job: JobId, why: string): Promise<void> {
    const one = held.get(job);
    if (one === undefined) return;
    log.info('job given back', { job, slot: one.slot, reason: why });
    shun(job, shunBack);
    forget(job, null);
    await endReservation(job, signal);
  }

  /** The service has no call for it: a reservation that is renewed for 1 s ends then. */
  async function endReservation(job: JobId, inner: AbortSignal): Promise<void> {
    await stacks.reserve(stack, [job], 1, inner).catch(() => {});
  }

  /** It waits for a slot. */
  const wait = (job: JobId, failures: number) => change(job, { agent: null, failures, since: clock.now() });

  function move(job: JobId, slot: string): void {
    const now = change(job, { slot });
    if (now?.admission != null) tellWaiting(now);
  }

  return {
    of: (job: JobId) => held.get(job) ?? null,
    /** Those of a slot that wait for it or are in it, oldest first. */
    in: isIn,
    has: (queue: string) => [...held.values()].some((one) => one.queue === queue),
    /** Not to be reserved now: it was given back, or another host has it. */
    isShunned: (job: JobId) => (shunned.get(job) ?? 0) > clock.now(),
    /** @throws OnejobError E_CI_* when the service cannot be asked; then each has a row, because it may be ours */
    async take(queue: string, picks: readonly JobPick[]): Promise<void> {
      const jobs = picks.map(({ job }) => job);
      const kept = clock.now();
      const note = ({ job, slot }: JobPick): void => {
        const pool = poolOf(slot)?.name;
        if (pool !== undefined && !held.has(job)) rows.reserved({ id: job, env: {} }, pool);
      };
      const ours = await stacks.reserve(stack, jobs, expiry, signal).catch((error: unknown) => {
        for (const one of picks) note(one);
        throw error;
      });
      for (const { job, slot } of picks) {
        const pool = poolOf(slot)?.name;
        if (pool === undefined || held.has(job)) continue;
        if (!ours.has(job)) {
          shun(job, shunLost);
          rows.left(job, null);
          continue;
        }
        const agent = slots.agentOf(slot, job);
        const one = { job, queue, pool, slot, admission: null, agent, verdict: null, failures: 0, since: kept, kept };
        held.set(job, one);
        rows.reserved({ id: job, env: {} }, pool);
        void decide(one);
      }
    },
    /** Makes sure that it is ours for most of its time. False: it is ours no more, and forgotten. @throws OnejobError E_CI_* */
    async renew(job: JobId): Promise<boolean> {
      const one = held.get(job);
      if (one !== undefined && clock.now() - one.kept > freshFor) await extend([job]);
      return held.has(job);
    },
    /** Does what is due for all of a queue. @throws OnejobError E_CI_* */
    async keep(queue: string): Promise<void> {
      const all = [...held.values()].filter((one) => one.queue === queue);
      for (const one of all) {
        if (one.verdict !== null) await tell(one);
        else if (one.admission === null) void decide(one);
        const isLate = one.agent === null && clock.now() - one.since > config.holdTimeout;
        if (isLate && one.verdict === null && !isTaken(one.job, one.slot)) await giveBack(one.job, 'no slot took it in time');
      }
      const left = all.filter(({ job }) => held.has(job)).map(({ job }) => job);
      await extend(left);
    },
    /** A sandbox is made for it. */
    put: (job: JobId, agent: AgentId) => void change(job, { agent }),
    /** Its sandbox has certainly not begun it: it is tried again, or ended. `failure`: what went wrong; null: nothing did. */
    returned(job: JobId, failure: Failure | null): void {
      const its = jobsOwnFailure(failure);
      const failures = (held.get(job)?.failures ?? 0) + (its === null ? 0 : 1);
      const now = wait(job, failures);
      if (now === undefined) return;
      if (its !== null && (failures >= mostTries || !its.retry)) {
        const detail = `onejob could not run this job: failed to create its sandbox: ${its.message}`;
        void end(job, { detail, word: 'failed' });
      } else if (offers.get(now.slot) === 'gone') void giveBack(job, 'its slot no longer exists');
      else queueMicrotask(() => tellWaiting(now));
    },
    /** Its agent never had it: it is tried again, given back, or ended. `late`: why its agent was given up, or null. */
    async notAcquired(
      { job, agent }: Pick<Run, 'job' | 'agent'>,
      { result, late }: { readonly result: JobResult; readonly late: string | null },
      inner: AbortSignal,
    ): Promise<void> {
      const one = held.get(job);
      const why = late ?? whyNotAcquired(result);
      log.warn('job not acquired', { job, agent, reason: why });
      if (one === undefined) {
        // Only the earlier manager knew how often it was tried.
        await endReservation(job, inner);
        rows.left(job, null);
      } else if (late === null && result.kind === 'lost') {
        await giveBack(job, why);
      } else if (one.failures + 1 < mostTries && (late !== null || result.kind !== 'timeout')) {
        wait(job, one.failures + 1);
      } else {
        await end(job, { detail: `onejob could not run this job: ${why}.`, word: 'failed' });
        rows.left(job, { word: 'failed', outcome: null });
      }
    },
    forget,
    lost,
    /** What a slot could do with a job now. A job that waited for this slot moves to another of its pool, or back. */
    offer(slot: string, offer: SlotOffer): void {
      offers.set(slot, offer);
      const pool = poolOf(slot)?.name;
      const untaken = [...held.values()].filter((one) => one.pool === pool && one.verdict === null && !isTaken(one.job, one.slot));
      if (offer === 'open') {
        const stuck = isUnclaimed(slot) ? untaken.find((one) => !isOpen(one.slot)) : undefined;
        if (stuck !== undefined) move(stuck.job, slot);
        return;
      }
      for (const one of untaken.filter((each) => each.slot === slot)) {
        const other = free(one.queue).find((each) => poolOf(each)?.name === one.pool);
        if (other !== undefined) move(one.job, other);
        else if (offer === 'gone') void giveBack(one.job, 'its slot no longer exists');
      }
    },
    /** Whether slots have told what they could do. */
    get knowsSlots() {
      return offers.size > 0;
    },
    free,
    /** For a job of this pool: the one that has it, or one that is open, or any; undefined: the pool has none. */
    slotFor(pool: string, job: JobId): string | undefined {
      const its = [...offers.keys()].filter((slot) => poolOf(slot)?.name === pool);
      return its.find((slot) => isTaken(job, slot)) ?? its.find(isOpen) ?? its[0];
    },
  };
}
