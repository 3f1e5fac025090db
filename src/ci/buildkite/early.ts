/**
 * Buildkite, bound early (`binding: early`): the agent in each sandbox is the idle one, and connects by itself, through the broker. The
 * broker stops it only between the service's word that a job is its own and the agent's: there it is decided whether it may run.
 *
 * Every sandbox of a pool is the same, so nothing about a job can change it. One whose job is refused is over with it.
 */
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId, Failure, JobId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import { endedWithoutJob } from '../ci-service.ts';
import { type BaseParts, type BuildkiteService, createBase } from './base.ts';
import type { BrokerAgent, Phase } from './broker/protocol.ts';
import { createDecisions } from './decisions.ts';
import { lost } from './ends.ts';
import { createFarewells } from './farewells.ts';
import type { Ruling } from './ruling.ts';
import { brokerAway } from './way-in.ts';

export interface EarlyParts extends BaseParts {
  readonly rule: (agent: BrokerAgent, pool: PoolConfig) => Promise<Ruling>;
  /** Jobs that a slot has, in whatever lane. */
  readonly jobsOf: (slot: string) => readonly JobId[];
  /** Whether a slot has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  /** How long a released agent has not been seen by its service, ms; null for any other. */
  readonly silentFor: (agent: AgentId) => number | null;
}

/** The service has seen it. */
const online: ReadonlySet<Phase> = new Set(['idle', 'accepting', 'accepted', 'handed', 'connected', 'running', 'finished']);
/** Its job, if there is one, is its own. */
const given: ReadonlySet<Phase> = new Set(['accepted', 'handed', 'connected', 'running', 'finished', 'ending', 'gone']);
/** ms between two looks at what nobody tells of. */
const lookAgain = 1_000;
/** Agents that are over of which it is remembered which job they had. */
const mostRemembered = 500;

export function createEarly(parts: EarlyParts): BuildkiteService {
  const { config, desk, log, clock, silentFor, isLive } = parts;
  const base = createBase(parts);
  const { board, poolOf, wayIn, signal, emit } = base;
  const farewells = createFarewells({ desk, board, isLive, log });
  /** The broker's ids of agents, until it tells of them itself. */
  const made = new Map<AgentId, string>();
  const ran = new Map<AgentId, JobId>();
  /** By the broker's ids: their jobs were allowed, or are being. */
  const allowed = new Set<string>();
  /** Since when there has been a broker; null while there is none. */
  let steadySince: number | null = null;

  const decisions = createDecisions({
    ...{ desk, board, log, clock, poolOf, signal, emit },
    rule: parts.rule,
    isGone: () => false,
    jobsOf: parts.jobsOf,
    note: parts.rows.note,
    holdTimeout: config.holdTimeout,
    bootTimeout: config.bootTimeout,
    run: (agent, ruling) => void allow(agent, ruling),
  });

  async function allow({ id, agent, job }: BrokerAgent, ruling: Extract<Ruling, { kind: 'run' }>): Promise<void> {
    if (agent === null || allowed.has(id)) return;
    allowed.add(id);
    try {
      await desk.hand(id, agent, ruling, signal);
    } catch (error) {
      // Looked at again, should the job still be there.
      allowed.delete(id);
      if (!signal.aborted) log.warn('cannot let a job begin', { job: job?.id ?? null, agent, reason: toFailure(error).message });
    }
  }

  function saw(agent: BrokerAgent): void {
    const { id, phase } = agent;
    tell(agent);
    decisions.saw(agent);
    if (phase === 'gone') {
      allowed.delete(id);
      if (agent.agent !== null) made.delete(agent.agent);
    }
  }

  /** Said as often as one likes: what the loop knows already changes nothing. */
  function tell({ agent, phase, job }: BrokerAgent): void {
    if (agent === null) return;
    if (online.has(phase)) emit({ kind: 'online', agent });
    if (job === null || !given.has(phase)) return;
    ran.delete(agent);
    ran.set(agent, job.id);
    for (const one of ran.keys()) if (ran.size > mostRemembered) ran.delete(one);
    if (phase !== 'gone') emit({ kind: 'jobSeen', agent, job: job.id });
  }

  const silence = ({ agent, problem }: BrokerAgent): Failure => ({
    code: 'E_AGENT_SILENT',
    message: `Agent ${agent} was started ${Math.round((silentFor(agent ?? '') ?? 0) / 1000)} s ago and has not come online.${
      problem === null ? ' "onejob doctor" says whether its sandbox reaches the broker.' : ` ${problem}`
    }`,
    retry: true,
  });

  /** An agent may be heard of before its slot knows that it was let in, or may never be heard of. */
  function look(): void {
    if (signal.aborted) return;
    clock.after(lookAgain, look);
    if (desk.port === null) {
      steadySince = null;
      return;
    }
    steadySince ??= clock.now();
    farewells.sweep(signal);
    const steady = clock.now() - steadySince;
    for (const agent of board.all()) {
      if (agent.agent === null || !isLive(agent.agent)) continue;
      const silent = silentFor(agent.agent);
      const isUnknown = agent.job !== null && given.has(agent.phase) && !parts.jobsOf(agent.slot).includes(agent.job.id);
      if (silent !== null || isUnknown) tell(agent);
      if (agent.phase === 'accepted' && !allowed.has(agent.id)) decisions.saw(agent);
      if (silent !== null && !online.has(agent.phase) && agent.phase !== 'ending' && Math.min(silent, steady) > config.bootTimeout)
        emit({ kind: 'silent', agent: agent.agent, failure: silence(agent) });
    }
  }

  return {
    ...base.common,
    capabilities: { binds: 'early', canCountQueue: true, standsForSlots: false, terms: 2, poolTimeout: true, jobOnStdout: true },

    observe(send, outer) {
      base.observe(send, outer, { saw, began: look, ended: decisions.close });
    },

    next: () => null,
    offer() {},
    waits: () => null,
    recipeFor: () => null,

    async register(context, inner) {
      const { agent, slot, pool, name } = context;
      const { queue = '', tags = [], priority = 0 } = base.pools.get(pool) ?? {};
      const endpoint = await wayIn.endpoint(context, inner);
      const metaData = [`queue=${queue}`, ...tags];
      const carried = await desk.carry(
        { agent, service: config.name, slot, pool, name, metaData, priority, acquisition: null, trusted: false, secrets: null },
        inner,
      );
      made.set(agent, carried.id);
      const script = wayIn.script(context, { token: carried.token, endpoint, job: null, note: null });
      return { id: carried.id, script, redact: [carried.token], files: null };
    },

    async settle({ agent, job }, _files, inner) {
      if (job === null) return;
      if (desk.port === null) throw brokerAway();
      const known = board.ofAgent(agent);
      if (known === null) return;
      await desk.end(known.id, base.endOf(job) ?? lost('its agent ended while onejob was not there'), inner);
    },

    async deregister({ agent }, inner) {
      await farewells.say(agent, inner);
      made.delete(agent);
      const job = ran.get(agent);
      // A broker that is away may know more; it is asked to let the agent go once it is back.
      return { ran: job ?? (desk.port === null ? undefined : null) };
    },

    async retire(agent, inner) {
      if (desk.port === null) throw brokerAway();
      const id = board.ofAgent(agent)?.id ?? made.get(agent);
      const job = id === undefined ? null : await desk.retire(id, inner);
      return job ?? ran.get(agent) ?? null;
    },

    blame: endedWithoutJob,
    forget: async () => {},
    close: (leaving) => desk.close(leaving),
  };
}
