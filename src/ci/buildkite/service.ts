/**
 * Buildkite by job acquisition: jobs are reserved through the Stacks API for slots that are free, and decided about, before there is
 * an agent. A sandbox then becomes an agent with a token that registers it for that one job; the token of the cluster stays here.
 *
 * A trusted job's agent speaks to the service itself, so that nothing of ours can disturb it (S5). An untrusted one's speaks through
 * the filter, which keeps its rights small.
 */
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId, Change, Failure, JobId, JobResult } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Finding } from '../../runtimes/runtime.ts';
import type { CiEvent, CiService } from '../ci-service.ts';
import type { Filter } from '../filter/filter.ts';
import type { Sealed } from '../filter/seal.ts';
import type { Trial } from '../trial.ts';
import { whyEnding, whyLost } from './ends.ts';
import { buildkiteRules, rulesOf, type Use } from './filter-rules.ts';
import type { GivenJob } from './job-facts.ts';
import { type JobRows, wordOf } from './job-rows.ts';
import type { Program } from './mounted-program.ts';
import { type QueueWatch, watchQueue } from './queue-watch.ts';
import { createReadiness, type Readiness } from './readiness.ts';
import { cacheKeyOf, untrustedRecipe, wantsOther } from './recipe-class.ts';
import { createReservations, type Reservation } from './reservations.ts';
import type { Ruling } from './ruling.ts';
import { createRuns } from './runs.ts';
import { createSlotOffers } from './slot-offers.ts';
import { type StackEntry, whyRefused } from './stack-entry.ts';
import { type Stacks, stageOf } from './stacks.ts';
import { takeUp } from './take-up.ts';
import type { BuildkiteServiceConfig } from './type.ts';
import { isPassing, mostTries, settleUnacquired } from './unacquired.ts';
import { equipped, scriptFor } from './way-in.ts';

export interface BuildkiteParts {
  readonly config: BuildkiteServiceConfig;
  /** Those that take jobs from here. */
  readonly pools: readonly PoolConfig[];
  readonly stateDir: string;
  /** The host's short name, for people. */
  readonly host: string;
  readonly stacks: Stacks;
  readonly entry: StackEntry;
  readonly rows: JobRows;
  /** null: no pool takes jobs that are not trusted. */
  readonly filter: Filter | null;
  /** The token of the cluster. @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  /** Where the agent's program is, once it was looked at. @throws OnejobError E_AGENT_PACKAGE and the like */
  readonly program: Program;
  /** Number of jobs that wait for a queue; null when nobody knows. */
  readonly counted: (queue: string) => number | null;
  /** Follows the counts until `signal` aborts. */
  readonly count: (signal: AbortSignal) => void;
  readonly check: (signal: AbortSignal, trial: Trial) => Promise<Finding[]>;
  readonly rule: (job: GivenJob, pool: PoolConfig) => Promise<Ruling>;
  /** Jobs that a slot has, in whatever lane. */
  readonly jobsOf: (slot: string) => readonly JobId[];
  /** Whose sandbox in this slot is to run the job, or runs it. */
  readonly agentOf: (slot: string, job: JobId) => AgentId | null;
  /** In [0, 1). */
  readonly random: () => number;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms that a stack may take to leave when the manager ends, and that the end of a job waits for its reason to be told. */
const [leavePatience, sayPatience] = [5_000, 1_000];

export function createBuildkite(parts: BuildkiteParts): CiService {
  const { config, rows, stacks, entry, stateDir, filter, clock, log, jobsOf } = parts;
  const { name } = config;
  const pools = new Map(parts.pools.map((pool) => [pool.name, pool]));
  const poolOf = (slot: string): PoolConfig | undefined => pools.get(slot.slice(0, slot.lastIndexOf('/')));
  const closing = new AbortController();
  const { signal } = closing;
  const results = new Map<JobId, JobResult>();
  /** Had by an agent of ours, and not settled yet. */
  const had = new Set<JobId>();
  /** Agents that are given up, and why. */
  const late = new Map<AgentId, string>();
  /** Why jobs are being ended, where their pages do not say it yet. */
  const unsaid = new Map<JobId, string>();
  const watches = new Map<string, QueueWatch>();
  /** Why jobs of a queue cannot be had. */
  const troubles = new Map<string, string>();
  let changes: Change[] = [];
  let emit: (event: CiEvent) => void = () => {};

  const isTaken = (job: JobId, slot: string): boolean => jobsOf(slot).includes(job);
  const cancel = (job: JobId, agent: AgentId, grace: number | null): void => emit({ kind: 'cancel', job, agent, grace });
  /** s. Long enough for an agent that calls in at the last moment. */
  const expiry = Math.min(Math.ceil(config.bootTimeout / 1000) + 60, 3600);
  const reservations = createReservations({
    ...{ stacks, rows, rule: parts.rule, poolOf, isTaken, agentOf: parts.agentOf, expiry, clock, log, signal },
    emit: (event) => emit(event),
    stack: entry.key,
    holdTimeout: config.holdTimeout,
  });
  const slots = createSlotOffers({ reservations, poolOf, isTaken });
  const runs = createRuns({
    ...{ stacks, stack: entry.key, bootTimeout: config.bootTimeout, random: parts.random, clock, log, signal },
    graceOf: (slot) => poolOf(slot)?.stopGrace ?? 0,
    isReady: () => readiness.token !== null && entry.isKnown,
    acquired({ job, agent, slot }) {
      had.add(job);
      reservations.forget(job);
      rows.runs(job, agent);
      const queue = poolOf(slot)?.queue;
      if (queue !== undefined) watches.get(queue)?.wake();
    },
    late({ job, agent }) {
      late.set(agent, `the agent in its sandbox did not acquire it within ${Math.round(config.bootTimeout / 1000)} s`);
      cancel(job, agent, 0);
    },
    missed({ job }, state) {
      reservations.lost(job, state);
    },
    over({ agent }) {
      emit({ kind: 'jobDone', agent });
    },
    unheeded({ job, agent }) {
      log.warn('cancelled job ended', { job, agent });
      rows.note(job, 'The job was cancelled, and its agent did not end it: onejob did.');
      cancel(job, agent, 0);
    },
  });
  const wake = (): void => {
    for (const watch of watches.values()) watch.wake();
    runs.wake();
  };
  const readiness: Readiness = createReadiness({
    ...{ pools: parts.pools, token: parts.token, program: parts.program, changed: wake, clock, signal },
    trouble: (queue) => troubles.get(queue),
    emit: (event) => emit(event),
  });

  function follow(queue: string): void {
    const watch = watchQueue({
      ...{ queue, stacks, reservations, poolOf, clock, log, signal, host: parts.host, random: parts.random },
      pools: [...pools.values()].filter((pool) => pool.queue === queue),
      stack: entry.key,
      free: () => slots.free(queue),
      isReady: () => readiness.token !== null && slots.areKnown,
      async begin(again) {
        await entry.register(queue, again, signal).catch((error: unknown) => {
          throw whyRefused(error);
        });
        const isOfQueue = (pool: string): boolean => (pools.get(pool)?.queue ?? queue) === queue;
        const isKnown = (job: JobId): boolean => reservations.of(job) !== null || runs.of(job) !== null;
        const about = { queue, stack: entry.key, stacks, rows, reservations, runs, isOfQueue, isKnown, log };
        await takeUp({ ...about, agentOf: parts.agentOf, slotFor: slots.slotFor }, signal);
        runs.wake();
      },
      say(problem) {
        if (problem === null) troubles.delete(queue);
        else troubles.set(queue, problem);
        readiness.tell();
      },
      // A stack may list ten times a second.
      often: Math.max(1_000, watches.size * 125),
      every: config.pollEvery,
      keepEvery: (expiry * 1000) / 4,
    });
    watches.set(queue, watch);
  }

  function apply(change: Change): void {
    if (!('job' in change)) return;
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
        runs.drop(job);
        if (one !== null) again(one, change.failure);
        return;
      case 'settled':
        results.delete(job);
        had.delete(job);
        runs.drop(job);
        unsaid.delete(job);
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

  /** @throws OnejobError E_CI_* */
  async function stateOf(job: JobId, isOfPool: boolean, inner: AbortSignal): Promise<string> {
    try {
      return (await stacks.states(entry.key, [job], inner)).get(job) ?? 'gone';
    } catch (error) {
      // The stack is not there, and none of our pools has it made again: nobody can ask about its jobs any more.
      if (!isOfPool && error instanceof OnejobError && error.code === 'E_CI_DENIED') return 'gone';
      throw error;
    }
  }

  /** On the job's page, as far as that can be done now. */
  async function say(job: JobId, detail: string, inner: AbortSignal): Promise<void> {
    try {
      await stacks.notify(entry.key, [{ job, detail }], inner);
      unsaid.delete(job);
    } catch (error) {
      if (!signal.aborted) log.warn('cannot say why a job ended', { job, reason: toFailure(error).message });
    }
  }

  /** It counts for as long as the job may run, and a while; `lasts` null: as long as the service lets any job run (30 days). */
  function sealed(about: Pick<Sealed, 'token' | 'job' | 'build'>, lasts: number | null): Sealed {
    const until = clock.wall() + (lasts ?? 30 * 86_400_000) + 3_600_000;
    return { ...about, rules: rulesOf, endpoint: config.endpoint, use: 'register' satisfies Use, until };
  }

  async function leave(): Promise<void> {
    closing.abort();
    await Promise.all([runs.ended, ...[...watches.values()].map(({ ended }) => ended)]);
  }

  return {
    name,
    capabilities: { binds: 'late', canCountQueue: true, standsForSlots: true, terms: 2, poolTimeout: true, jobOnStdout: true },

    async check(inner, trial) {
      const found = [...troubles.values()].map((message): Finding => {
        return {
          level: 'error',
          subject: `service ${name}`,
          message,
          hint: 'Look at what the service says of its token and queues.',
        };
      });
      return [...(await parts.check(inner, trial)), ...found];
    },

    observe(send, outer) {
      if (outer.aborted) return;
      emit = send;
      outer.addEventListener(
        'abort',
        () => {
          emit = () => {};
          closing.abort();
        },
        { once: true },
      );
      readiness.follow();
      filter?.start(signal);
      parts.count(signal);
      for (const queue of new Set([...pools.values()].map((pool) => pool.queue))) follow(queue);
    },

    equip: (recipe, pool) => equipped(recipe, pools.get(pool), parts.program.folder),

    jobs: {
      next(_pool, slot) {
        if (slot === null) return null;
        const pool = poolOf(slot);
        for (const { job, ruling, verdict } of reservations.in(slot)) {
          if (ruling === null || verdict !== null || isTaken(job, slot)) continue;
          return { job, limit: pool?.timeout ?? null, cold: wantsOther(pool, ruling, stateDir) };
        }
        return null;
      },

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

      record: (change) => void changes.push(change),
      committed() {
        const now = changes;
        changes = [];
        for (const change of now) apply(change);
      },
      syncing: () => () => {},
      rolledBack() {
        changes = [];
      },
    },

    async register(context, inner) {
      const { agent, slot, job } = context;
      const one = job === null ? null : reservations.of(job);
      const pool = poolOf(slot);
      if (job === null || one === null || one.verdict !== null || pool === undefined) throw gone(job);
      if (one.ruling === null) throw undecided(job);
      const { secrets, trusted, why, facts } = one.ruling;
      if (!trusted && filter === null) throw undecided(job);
      const filtered = trusted || filter === null ? null : await filter.door(context, inner);
      if (!(await reservations.renew(job))) throw gone(job);
      const once = await stacks.token(entry.key, job, expiry, inner);
      if (once === null) {
        reservations.forget(job, null);
        throw gone(job);
      }
      reservations.put(job, agent);
      runs.add({ job, agent, slot });
      const token =
        filtered === null ? once : filtered.seal.close(sealed({ token: once, job, build: facts.buildId }, pool.timeout));
      const endpoint = filtered === null ? config.endpoint : `http://${filtered.authority}/${buildkiteRules.root}`;
      const script = scriptFor(context, pool, { token, endpoint, job, note: why, secrets, isFiltered: filtered !== null });
      return { id: null, script, redact: [once, token, ...secrets.map(({ value }) => value)], files: null };
    },

    async ending({ job, why, released }) {
      // A job that has not begun goes back.
      if (job === null || !released) return;
      const words = whyEnding(why, poolOf(runs.of(job)?.slot ?? ''));
      if (words === null) return;
      rows.note(job, words);
      unsaid.set(job, words);
      using limit = deadline(clock, sayPatience, signal);
      await say(job, words, limit.signal);
    },

    async settle({ job, agent, slot }, _files, inner) {
      if (job === null) return;
      const result = results.get(job) ?? { kind: 'lost', reason: 'its agent ended while onejob was not there' };
      const state = await stateOf(job, poolOf(slot) !== undefined, inner);
      const stage = stageOf(state);
      const words = unsaid.get(job);
      if (stage === 'reserved' || stage === 'waiting') {
        const about = { job, agent, result, late: late.get(agent) ?? null, state };
        return settleUnacquired({ ...about, stack: entry.key }, { stacks, rows, reservations, log }, inner);
      }
      // The agent's own word for it: somebody else was faster (`core/client.go`).
      if (stage !== 'over' && !had.has(job) && result.kind === 'code' && result.code === 27) {
        reservations.forget(job);
        return rows.left(job, null);
      }
      reservations.forget(job);
      if (words !== undefined) await say(job, words, inner);
      else if (stage !== 'over') await say(job, whyLost(result, poolOf(slot)), inner);
      rows.left(job, wordOf(state, result));
    },

    async deregister({ agent }) {
      late.delete(agent);
      return { ran: null };
    },

    retire: async () => null,

    waiting(pool) {
      const queue = pools.get(pool)?.queue;
      return queue === undefined ? null : parts.counted(queue);
    },
    serviceJobs: () => rows.list(),

    async forget(inner) {
      await leave();
      await entry.forget(inner);
    },

    async close(leaving) {
      await leave();
      if (!leaving) {
        using limit = deadline(clock, leavePatience);
        await entry.forget(limit.signal).catch((error: unknown) => {
          const reason = toFailure(error).message;
          log.warn('the stack is left at the service, which ends it by itself', { service: name, reason });
        });
      }
      await filter?.close(leaving);
    },
  };
}

function gone(job: JobId | null): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job}: it was cancelled, or given up, before it began.`);
}

function undecided(job: JobId): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job} yet: it is not decided what it may.`, { retry: true });
}
