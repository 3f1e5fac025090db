/**
 * Jobs that the service keeps for this host, from their reservation until an agent of ours has acquired them: decided about before
 * there is any sandbox, kept as long as a slot wants them, given back when none does, ended with a reason when they cannot run.
 *
 * A reservation ends by itself soon after nobody keeps it: what is forgotten here, by a crash too, goes back to its queue.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { GivenJob } from './job-facts.ts';
import { type JobRows, wordOf } from './job-rows.ts';
import type { Ruling } from './ruling.ts';
import { type Stacks, stageOf } from './stacks.ts';

export interface Reservation {
  readonly job: JobId;
  readonly queue: string;
  readonly pool: string;
  /** The only one that it is for; another one when this one closes. */
  readonly slot: string;
  /** null: not decided yet. */
  readonly ruling: Extract<Ruling, { kind: 'run' }> | null;
  /** Whose sandbox is, or was, to run it. */
  readonly agent: AgentId | null;
  /** It never runs: the service is being told. */
  readonly verdict: Verdict | null;
  /** Sandboxes that could not be made, and agents that did not get it. */
  readonly failures: number;
  /** Since when it waits for a slot (the clock's `now`). */
  readonly since: number;
  /** When the service was heard to keep it last (the clock's `now`). */
  readonly kept: number;
}

export interface Verdict {
  /** For people, on the job's page. */
  readonly detail: string;
  /** For the list of jobs. */
  readonly word: string;
}

export interface ReservationParts {
  readonly stacks: Pick<Stacks, 'reserve' | 'show' | 'states' | 'finish'>;
  /** Key of this host's. */
  readonly stack: string;
  readonly rows: Pick<JobRows, 'reserved' | 'left' | 'note'>;
  readonly rule: (job: GivenJob, pool: PoolConfig) => Promise<Ruling>;
  readonly poolOf: (slot: string) => PoolConfig | undefined;
  /** Whether the slot has the job, in whatever lane. */
  readonly isTaken: (job: JobId, slot: string) => boolean;
  /** Whose sandbox in this slot is to run the job: that of a manager before this one. */
  readonly agentOf: (slot: string, job: JobId) => AgentId | null;
  readonly emit: (event: CiEvent) => void;
  /** s that a reservation lasts unless it is kept. */
  readonly expiry: number;
  /** ms that a job may wait for a slot before another host may have it. */
  readonly holdTimeout: number;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export interface Reservations {
  of(job: JobId): Reservation | null;
  /** Those of a slot that wait for it or are in it, oldest first. */
  in(slot: string): readonly Reservation[];
  all(): readonly Reservation[];
  /** Not to be reserved now: one that was given back, or that another host has. */
  isShunned(job: JobId): boolean;
  /** @throws OnejobError E_CI_* when the service cannot be asked; then none is ours */
  take(queue: string, picks: readonly { readonly job: JobId; readonly slot: string }[]): Promise<void>;
  /** Sees that it is ours for most of its time still. False: it is ours no more, and forgotten. @throws OnejobError E_CI_* */
  renew(job: JobId): Promise<boolean>;
  /** Does what is due for all of a queue. @throws OnejobError E_CI_* */
  keep(queue: string): Promise<void>;
  move(job: JobId, slot: string): void;
  /** A sandbox is made for it; null: none is any more. */
  put(job: JobId, agent: AgentId | null, failures?: number): void;
  end(job: JobId, verdict: Verdict): Promise<void>;
  /** Another host may have it. */
  giveBack(job: JobId, why: string): Promise<void>;
  /** An agent of ours has it, or it is over. `word`: as in `JobRows.left`; undefined: its row is somebody else's matter. */
  forget(job: JobId, word?: string | null): void;
  /** The service does not keep it for this host any more; `state`: its word for what became of it. */
  lost(job: JobId, state: string): void;
}

/** ms that a job is left to others: after it was given back, and when another host was faster. */
const [shunBack, shunLost] = [300_000, 10_000];
/** ms since it was made, or made anew, in which a reservation is as good as new. */
const freshFor = 10_000;
export function createReservations(parts: ReservationParts): Reservations {
  const { stacks, stack, rows, poolOf, isTaken, emit, clock, log, signal } = parts;
  const held = new Map<JobId, Reservation>();
  const shunned = new Map<JobId, number>();
  const deciding = new Set<JobId>();

  const change = (job: JobId, patch: Partial<Reservation>): void => {
    const before = held.get(job);
    if (before !== undefined) held.set(job, { ...before, ...patch });
  };
  const offer = ({ pool, slot }: Reservation): void => emit({ kind: 'waiting', pool, slot });
  const shun = (job: JobId, ms: number): void => {
    for (const [one, until] of shunned) if (until <= clock.now()) shunned.delete(one);
    shunned.set(job, clock.now() + ms);
  };
  const forget: Reservations['forget'] = (job, word) => {
    held.delete(job);
    if (word !== undefined) rows.left(job, word);
  };

  async function tell({ job, verdict }: Reservation): Promise<void> {
    if (verdict === null) return;
    try {
      await stacks.finish(stack, job, verdict.detail, signal);
      forget(job, verdict.word);
    } catch (error) {
      if (!signal.aborted) log.warn('cannot end a job yet', { job, reason: toFailure(error).message });
    }
  }

  const end: Reservations['end'] = async (job, verdict) => {
    change(job, { verdict });
    rows.note(job, verdict.detail);
    const now = held.get(job);
    if (now !== undefined) await tell(now);
  };

  async function decide({ job, slot }: Reservation): Promise<void> {
    const pool = poolOf(slot);
    if (deciding.has(job) || pool === undefined) return;
    deciding.add(job);
    try {
      const given = await stacks.show(stack, job, signal);
      if (!held.has(job)) return;
      if (given === null) return forget(job, 'gone');
      rows.reserved(given, pool.name);
      const ruling = await parts.rule(given, pool).catch((error: unknown) => toFailure(error).message);
      if (!held.has(job)) return;
      if (typeof ruling === 'string') {
        log.error('cannot decide about a job', { job, reason: ruling });
        await end(job, { detail: `onejob cannot run this job: ${ruling}`, word: 'failed' });
      } else if (ruling.kind === 'refused') {
        log.warn('job refused', { job, pipeline: ruling.facts.pipeline, reason: ruling.reason });
        await end(job, { detail: `onejob refused this job: ${ruling.reason}`, word: 'refused' });
      } else {
        change(job, { ruling });
        const now = held.get(job);
        if (now !== undefined) offer(now);
      }
    } catch (error) {
      // Asked again with the next look.
      if (!signal.aborted) log.warn('cannot read a job yet', { job, reason: toFailure(error).message });
    } finally {
      deciding.delete(job);
    }
  }

  const lost: Reservations['lost'] = (job, state) => {
    const one = held.get(job);
    const stage = stageOf(state);
    // An agent of ours has acquired it, then, or is ending it.
    if (one === undefined || (one.agent !== null && (stage === 'running' || stage === 'ending'))) return;
    log.info('reservation lost', { job, state });
    shun(job, shunLost);
    forget(job, stage === 'over' || stage === 'ending' ? wordOf(state, null) : null);
    if (one.agent !== null && isTaken(job, one.slot)) emit({ kind: 'cancel', job, agent: one.agent, grace: null });
  };

  async function extend(jobs: readonly JobId[]): Promise<void> {
    if (jobs.length === 0) return;
    const kept = clock.now();
    const ours = await stacks.reserve(stack, jobs, parts.expiry, signal);
    for (const job of ours) change(job, { kept });
    const others = jobs.filter((job) => !ours.has(job));
    if (others.length === 0) return;
    const states = await stacks.states(stack, others, signal);
    for (const job of others) lost(job, states.get(job) ?? 'gone');
  }

  const giveBack: Reservations['giveBack'] = async (job, why) => {
    const one = held.get(job);
    if (one === undefined) return;
    log.info('job given back', { job, slot: one.slot, reason: why });
    shun(job, shunBack);
    forget(job, null);
    // The service has no call for it. A reservation that is made anew ends a second later; else it does when its time is up.
    await stacks.reserve(stack, [job], 1, signal).catch(() => {});
  };

  return {
    of: (job) => held.get(job) ?? null,
    in: (slot) => [...held.values()].filter((one) => one.slot === slot),
    all: () => [...held.values()],
    isShunned: (job) => (shunned.get(job) ?? 0) > clock.now(),
    async take(queue, picks) {
      const jobs = picks.map(({ job }) => job);
      const kept = clock.now();
      const ours = await stacks.reserve(stack, jobs, parts.expiry, signal);
      for (const { job, slot } of picks) {
        const pool = poolOf(slot)?.name;
        if (pool === undefined || held.has(job)) continue;
        if (!ours.has(job)) {
          shun(job, shunLost);
          continue;
        }
        const agent = parts.agentOf(slot, job);
        const one = { job, queue, pool, slot, ruling: null, agent, verdict: null, failures: 0, since: kept, kept };
        held.set(job, one);
        rows.reserved({ id: job, env: {} }, pool);
        void decide(one);
      }
    },
    async renew(job) {
      const one = held.get(job);
      if (one !== undefined && clock.now() - one.kept > freshFor) await extend([job]);
      return held.has(job);
    },
    async keep(queue) {
      const all = [...held.values()].filter((one) => one.queue === queue);
      for (const one of all) {
        if (one.verdict !== null) await tell(one);
        else if (one.ruling === null) void decide(one);
        const isLate = one.agent === null && clock.now() - one.since > parts.holdTimeout;
        if (isLate && one.verdict === null && !isTaken(one.job, one.slot)) await giveBack(one.job, 'no slot took it in time');
      }
      const left = all.filter(({ job }) => held.has(job)).map(({ job }) => job);
      await extend(left);
    },
    move(job, slot) {
      change(job, { slot });
      const now = held.get(job);
      if (now?.ruling != null) offer(now);
    },
    put(job, agent, failures) {
      change(job, { agent, ...(failures !== undefined && { failures }), ...(agent === null && { since: clock.now() }) });
    },
    end,
    giveBack,
    forget,
    lost,
  };
}
