/**
 * Buildkite by its Stacks API (`mode: acquire`): jobs are reserved for slots that are free, and decided about, before there is an
 * agent. A sandbox then becomes an agent that can register for that one job only; the token of the cluster stays here.
 */

import type { PoolConfig } from '../../config/config.ts';
import { deadline } from '../../core/clock.ts';
import type { AgentId, Change, Failure, JobId, JobResult } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import { type BaseParts, type BuildkiteService, createBase } from './base.ts';
import type { BrokerAgent, GivenJob, Phase } from './broker/protocol.ts';
import { lost } from './ends.ts';
import { createFarewells } from './farewells.ts';
import { type QueueWatch, watchQueue } from './queue-watch.ts';
import { cacheKeyOf, untrustedRecipe, wantsOther } from './recipe-class.ts';
import { createReservations, type Reservation } from './reservations.ts';
import type { Ruling } from './ruling.ts';
import { createSlotOffers } from './slot-offers.ts';
import type { StackEntries } from './stack-entries.ts';
import { createStackTroubles, whyRefused } from './stack-troubles.ts';
import type { Stacks } from './stacks.ts';
import { takeUp } from './take-up.ts';
import { isPassing, mostTries, settleUnacquired } from './unacquired.ts';
import { brokerAway } from './way-in.ts';

export interface AcquireParts extends BaseParts {
  readonly stateDir: string;
  /** The host's short name, for people. */
  readonly host: string;
  readonly stacks: Stacks;
  readonly entries: StackEntries;
  readonly rule: (job: GivenJob, pool: PoolConfig) => Promise<Ruling>;
  /** Jobs that a slot has, in whatever lane. */
  readonly jobsOf: (slot: string) => readonly JobId[];
  /** Whose sandbox in this slot is to run the job, or runs it. */
  readonly agentOf: (slot: string, job: JobId) => AgentId | null;
  /** Whether a slot has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  readonly random: () => number;
}

/** The service has given the job to the agent. */
const acquired: ReadonlySet<Phase> = new Set(['accepted', 'handed', 'connected', 'running', 'finished']);
/** The agent in the sandbox has yet to call in. */
const silent: ReadonlySet<Phase> = new Set(['expected', 'registered']);
/** ms between two looks at what nobody tells of. */
const lookAgain = 5_000;
/** ms that a stack may take to leave when the manager ends. */
const leavePatience = 5_000;

export function createAcquire(parts: AcquireParts): BuildkiteService {
  const { config, desk, rows, stacks, entries, stateDir, clock, log, jobsOf } = parts;
  const base = createBase(parts);
  const { board, pools, poolOf, wayIn, standing, emit } = base;
  const farewells = createFarewells({ desk, board, isLive: parts.isLive, log });
  const results = new Map<JobId, JobResult>();
  /** Had by an agent of ours, and not settled yet. */
  const had = new Set<JobId>();
  /** Agents that are given up, and why. */
  const late = new Map<AgentId, string>();
  const watches = new Map<string, QueueWatch>();
  const troubles = createStackTroubles();
  const closing = new AbortController();
  const signal = AbortSignal.any([base.signal, closing.signal]);
  let token: string | null = null;

  const isTaken = (job: JobId, slot: string): boolean => jobsOf(slot).includes(job);
  /** s. Long enough for an agent that calls in at the last moment. */
  const expiry = Math.min(Math.ceil(config.bootTimeout / 1000) + 60, 3600);
  const reservations = createReservations({
    ...{ stacks, rows, rule: parts.rule, poolOf, isTaken, agentOf: parts.agentOf, emit, expiry, clock, log, signal },
    keyOf: entries.keyOf,
    holdTimeout: config.holdTimeout,
  });
  const slots = createSlotOffers({ reservations, poolOf, isTaken });
  const wake = (): void => {
    for (const watch of watches.values()) watch.wake();
  };

  /** Somebody looks after it. */
  const isKnown = (job: JobId): boolean =>
    reservations.of(job) !== null || had.has(job) || acquired.has(board.ofJob(job)?.phase ?? 'gone');

  function follow(queue: string): void {
    const stack = entries.keyOf(queue);
    const watch = watchQueue({
      ...{ queue, stacks, reservations, poolOf, clock, log, signal, host: parts.host, random: parts.random },
      pools: [...pools.values()].filter((pool) => pool.queue === queue),
      stack,
      free: () => slots.free(queue),
      isReady: () => token !== null && desk.port !== null && slots.areKnown,
      async begin() {
        await entries.register(queue, signal).catch((error: unknown) => {
          throw whyRefused(error);
        });
        const isOfQueue = (pool: string): boolean => (pools.get(pool)?.queue ?? queue) === queue;
        await takeUp({ ...{ queue, stack, stacks, rows, reservations, isOfQueue, isKnown, log }, slotFor: slots.slotFor }, signal);
      },
      say(problem) {
        troubles.set(queue, problem);
        standing.set('stack', troubles.first);
        base.tellHolds();
      },
      every: config.pollEvery,
      keepEvery: (expiry * 1000) / 4,
    });
    watches.set(queue, watch);
  }

  function saw(agent: BrokerAgent): void {
    const { job, phase } = agent;
    if (job === null || !acquired.has(phase)) return;
    had.add(job.id);
    reservations.forget(job.id);
  }

  function applied(change: Change & { readonly job: JobId }): void {
    const { job } = change;
    const one = reservations.of(job);
    switch (change.change) {
      case 'reserved':
      case 'assigned':
        reservations.put(job, change.agent);
        return;
      case 'ended':
        results.set(job, change.result);
        return;
      case 'returned':
        if (one !== null) again(one, change.failure);
        return;
      case 'settled':
        results.delete(job);
        had.delete(job);
        if (one !== null && one.verdict === null) queueMicrotask(() => emit({ kind: 'waiting', pool: one.pool, slot: one.slot }));
        return;
      case 'started':
        return;
    }
  }

  /** It has certainly not begun: it is tried again, or ended. `failure`: what went wrong; null: nothing did. */
  function again(one: Reservation, failure: Failure | null): void {
    const its = failure === null || isPassing(failure) ? null : failure;
    const failures = one.failures + (its === null ? 0 : 1);
    reservations.put(one.job, null, failures);
    if (its !== null && (failures >= mostTries || !its.retry)) {
      const detail = `onejob could not run this job: its sandbox could not be made: ${its.message}`;
      void reservations.end(one.job, { detail, word: 'failed' });
    } else if (slots.isGone(one.slot)) void reservations.giveBack(one.job, 'its slot is gone');
    else queueMicrotask(() => emit({ kind: 'waiting', pool: one.pool, slot: one.slot }));
  }

  function look(): void {
    if (signal.aborted) return;
    clock.after(lookAgain, look);
    farewells.sweep(signal);
    if (desk.port === null) return;
    const limit = config.bootTimeout;
    for (const one of reservations.all()) {
      const agent = one.agent === null ? null : board.ofAgent(one.agent);
      if (agent === null || one.agent === null || !silent.has(agent.phase) || clock.wall() - agent.since <= limit) continue;
      late.set(one.agent, `the agent in its sandbox did not call in within ${Math.round(limit / 1000)} s`);
      emit({ kind: 'cancel', job: one.job, agent: one.agent, grace: 0 });
    }
  }

  async function leave(): Promise<void> {
    closing.abort();
    await Promise.all([...watches.values()].map(({ ended }) => ended));
  }

  return {
    ...base.common,
    capabilities: { binds: 'late', canCountQueue: true, standsForSlots: true, terms: 2, poolTimeout: true, jobOnStdout: true },

    async check(inner, trial) {
      return [...(await parts.check(inner, trial)), ...troubles.findings(config.name)];
    },

    observe(send, outer) {
      base.observe(send, outer, {
        saw(agent) {
          saw(agent);
          wake();
        },
        applied,
        token(now) {
          const isNew = now !== token;
          token = now;
          if (isNew) wake();
        },
        began() {
          for (const queue of new Set([...pools.values()].map((pool) => pool.queue))) follow(queue);
          look();
        },
        ended: () => wake(),
      });
    },

    next(_pool, slot) {
      if (slot === null) return null;
      const pool = poolOf(slot);
      for (const { job, ruling, verdict } of reservations.in(slot)) {
        if (ruling === null || verdict !== null || isTaken(job, slot)) continue;
        return { job, limit: pool?.timeout ?? null, cold: wantsOther(pool, ruling, stateDir) };
      }
      return null;
    },

    waits: () => null,

    offer(slot, offer) {
      slots.set(slot, offer);
      wake();
    },

    recipeFor(job, recipe) {
      const one = reservations.of(job);
      const pool = one === null ? undefined : poolOf(one.slot);
      // What is not known to be trusted must be given nothing, neither of the pool's nor of another repository's.
      if (one === null || one.ruling === null || pool === undefined) throw undecided(job);
      return one.ruling.trusted ? null : untrustedRecipe(recipe, pool, cacheKeyOf(one.ruling), stateDir);
    },

    async register(context, inner) {
      const { agent, slot, name, job } = context;
      const one = job === null ? null : reservations.of(job);
      const pool = poolOf(slot);
      if (job === null || one === null || one.verdict !== null || pool === undefined) throw gone(job);
      if (one.ruling === null) throw undecided(job);
      const endpoint = await wayIn.endpoint(context, inner);
      if (!(await reservations.renew(job))) throw gone(job);
      const once = await stacks.token(entries.keyOf(one.queue), job, expiry, inner);
      if (once === null) {
        reservations.forget(job, null);
        throw gone(job);
      }
      reservations.put(job, agent);
      const { secrets, trusted, why } = one.ruling;
      const metaData = [`queue=${pool.queue}`, ...pool.tags];
      const about = { agent, service: config.name, slot, pool: pool.name, name, metaData, priority: pool.priority };
      const carried = await desk.carry({ ...about, acquisition: { job, token: once }, trusted, secrets: [...secrets] }, inner);
      const script = wayIn.script(context, { token: carried.token, endpoint, job, note: why });
      return { id: carried.id, script, redact: [carried.token, once, ...secrets.map(({ value }) => value)], files: null };
    },

    async settle(context, _files, inner) {
      const { job, agent } = context;
      if (job === null) return;
      if (desk.port === null) throw brokerAway();
      const known = board.ofAgent(agent);
      if (known !== null) await desk.end(known.id, base.endOf(job) ?? lost('its agent ended while onejob was not there'), inner);
      if (known?.job !== null && known?.job !== undefined && acquired.has(known.phase)) return;
      if (had.has(job) || rows.unended().every(({ id }) => id !== job)) return;
      const queue = poolOf(context.slot)?.queue;
      if (queue === undefined) return rows.left(job, null);
      const result = results.get(job) ?? { kind: 'lost', reason: 'its agent ended while onejob was not there' };
      const about = { job, agent, result, late: late.get(agent) ?? null, problem: known?.problem ?? null };
      await settleUnacquired({ ...about, stack: entries.keyOf(queue) }, { stacks, rows, reservations, log }, inner);
    },

    async deregister({ agent }, inner) {
      await farewells.say(agent, inner);
      late.delete(agent);
      return { ran: null };
    },

    retire: async () => null,
    blame: () => ({ code: 'E_BUG', message: 'An agent of Buildkite ended without its job.', retry: true }),

    async forget(inner) {
      await leave();
      await entries.forget(new Set(), inner);
    },

    async close(leaving) {
      await leave();
      if (!leaving) {
        using limit = deadline(clock, leavePatience);
        await entries.forget(new Set(), limit.signal).catch((error: unknown) => {
          log.warn('stacks are left at the service, which ends them by itself', {
            service: config.name,
            reason: toFailure(error).message,
          });
        });
      }
      stacks.close();
      await desk.close(leaving);
    },
  };
}

function gone(job: JobId | null): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job}: it was cancelled, or given up, before it began.`);
}

function undecided(job: JobId): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job} yet: it is not decided what it may.`, { retry: true });
}
