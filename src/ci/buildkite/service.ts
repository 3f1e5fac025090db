/**
 * Buildkite, bound late: the broker is the idle agent of every slot, so a job is known before anything of it runs. Here it is
 * decided what becomes of it, and the sandbox that waits at the gate is let in with a token that is good for one registration.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { SlotOffer } from '../ci-service.ts';
import { type BaseParts, type BuildkiteService, createBase } from './base.ts';
import { needsSandbox } from './board.ts';
import type { BrokerAgent } from './broker/protocol.ts';
import { createDecisions } from './decisions.ts';
import { lost } from './ends.ts';
import { cacheKeyOf, untrustedRecipe, wantsOther } from './recipe-class.ts';
import type { Ruling } from './ruling.ts';
import { brokerAway } from './way-in.ts';

export interface BuildkiteParts extends BaseParts {
  readonly stateDir: string;
  readonly rule: (agent: BrokerAgent, pool: PoolConfig) => Promise<Ruling>;
  readonly nameOf: (slot: string) => string;
  /** Jobs that a slot has, in whatever lane. */
  readonly jobsOf: (slot: string) => readonly JobId[];
}

export function createBuildkite(parts: BuildkiteParts): BuildkiteService {
  const { config, desk, stateDir, log, clock } = parts;
  const base = createBase(parts);
  const { board, poolOf, wayIn, signal, emit } = base;
  const offers = new Map<string, SlotOffer>();
  /** Slots that config had before are offered by nobody: known once the others have been. */
  const isGone = (slot: string): boolean => offers.size > 0 && (offers.get(slot) ?? 'gone') === 'gone';
  const decisions = createDecisions({
    ...{ desk, board, log, clock, poolOf, signal, emit },
    rule: parts.rule,
    jobsOf: parts.jobsOf,
    isGone,
    note: parts.rows.note,
    holdTimeout: config.holdTimeout,
    bootTimeout: config.bootTimeout,
    run: ({ pool, slot }) => emit({ kind: 'waiting', pool, slot }),
  });

  return {
    ...base.common,
    capabilities: { binds: 'late', canCountQueue: true, standsForSlots: true, terms: 2, poolTimeout: true, jobOnStdout: true },

    observe(send, outer) {
      base.observe(send, outer, {
        saw(agent) {
          decisions.saw(agent);
          if (agent.phase === 'running') base.emit({ kind: 'waiting', pool: agent.pool, slot: agent.slot });
        },
        applied(change) {
          const agent = board.ofJob(change.job);
          if (change.change === 'returned' && agent !== null) decisions.returned(agent, change.failure);
        },
        ended: decisions.close,
      });
    },

    isStarting: board.isStarting,

    next(_pool, slot) {
      if (slot === null) return null;
      const taken = parts.jobsOf(slot);
      const pool = poolOf(slot);
      for (const agent of board.acceptedIn(slot)) {
        const ruling = decisions.of(agent.id);
        const job = agent.job?.id;
        if (job === undefined || agent.cancelled || ruling?.kind !== 'run' || taken.includes(job)) continue;
        return { job, limit: pool?.timeout ?? null, cold: wantsOther(pool, ruling, stateDir) };
      }
      return null;
    },

    offer(slot, offer: SlotOffer) {
      const pool = poolOf(slot);
      const isFirst = offers.size === 0;
      offers.set(slot, offer);
      // Once every slot has been told.
      if (isFirst) queueMicrotask(() => board.all().forEach(decisions.saw));
      if (offer === 'gone' || pool === undefined) {
        desk.withdraw(slot);
        board.acceptedIn(slot).forEach(decisions.saw);
        return;
      }
      const metaData = [`queue=${pool.queue}`, ...pool.tags];
      desk.offer({
        slot,
        pool: pool.name,
        service: config.name,
        name: parts.nameOf(slot),
        metaData,
        priority: pool.priority,
        open: offer === 'open',
      });
    },

    waits: (slot) => board.isIdle(slot),

    recipeFor(job, recipe) {
      const agent = board.ofJob(job);
      const pool = agent === null ? undefined : poolOf(agent.slot);
      const ruling = agent === null ? undefined : decisions.of(agent.id);
      // What is not known to be trusted must be given nothing, neither of the pool's nor of another repository's.
      if (pool === undefined || ruling?.kind !== 'run') throw undecided(job);
      return ruling.trusted ? null : untrustedRecipe(recipe, pool, cacheKeyOf(ruling), stateDir);
    },

    async register(context, inner) {
      const agent = context.job === null ? null : board.ofJob(context.job);
      const ruling = agent === null ? undefined : decisions.of(agent.id);
      if (desk.port === null) throw brokerAway();
      if (agent === null || !needsSandbox(agent) || agent.cancelled) throw gone(context.job);
      if (ruling?.kind !== 'run') throw undecided(context.job);
      // Beside each other: the service waits. A token for a sandbox without a way to the broker is worth nothing.
      const [endpoint, { token, job }] = await Promise.all([
        wayIn.endpoint(context, inner),
        desk.hand(agent.id, context.agent, ruling, inner).catch((error: unknown) => {
          // The broker knows better than what it has said last.
          throw toFailure(error).retry ? error : gone(context.job);
        }),
      ]);
      const script = wayIn.script(context, { token, endpoint, job, note: ruling.why });
      return { id: agent.id, script, redact: [token, ...ruling.secrets.map(({ value }) => value)], files: null };
    },

    async settle(context, _files, inner) {
      if (context.job === null) return;
      if (desk.port === null) throw brokerAway();
      const agent = board.ofJob(context.job);
      if (agent === null) return;
      await desk.end(agent.id, base.endOf(context.job) ?? lost('its agent ended while onejob was not there'), inner);
    },

    deregister: async () => ({ ran: null }),
    retire: async () => null,
    blame: () => ({ code: 'E_BUG', message: 'An agent of Buildkite ended without its job.', retry: true }),
    forget: async () => {},
    close: (leaving) => desk.close(leaving),
  };
}

function gone(job: JobId | null): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job}: it was cancelled, or given up, before it began.`);
}

function undecided(job: JobId | null): OnejobError {
  return new OnejobError('E_JOB_GONE', `Cannot start job ${job} yet: it is not decided what it may.`, { retry: true });
}
