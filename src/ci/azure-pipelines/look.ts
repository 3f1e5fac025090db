/**
 * What follows from one look at an agent pool: who is online, who has which job, who keeps silent, what waits, and what is left to
 * remove. Events come first: what people are told about jobs, and the cleaning up, make more calls, and may take their time.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId, Failure } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { AzureClient } from './client.ts';
import type { JobBook, Waiting } from './job-book.ts';
import type { AgentKind } from './kind.ts';
import type { Marks } from './marks.ts';
import type { Placeholders } from './placeholder.ts';
import type { Registrar } from './registrar.ts';
import type { Seen } from './watch.ts';
import { requestState } from './wire.ts';

export interface LookParts {
  readonly url: string;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly clock: Clock;
  readonly log: Log;
  readonly client: Pick<AzureClient, 'agent'>;
  readonly marks: Marks;
  readonly registrar: Registrar;
  readonly placeholders: Placeholders;
  readonly jobs: JobBook;
  /** Kind of each agent that was registered by this manager. */
  readonly kinds: ReadonlyMap<AgentId, AgentKind>;
  readonly sweep: { after(seen: Seen, signal: AbortSignal): Promise<void> };
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
  /** How long a released agent has not been seen by its service, ms; null for any other. */
  readonly silentFor: (agent: AgentId) => number | null;
}

export interface Look {
  /** `served`: the pools of the config for which this agent pool is the queue. */
  after(seen: Seen, served: readonly string[], emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void>;
  /** Number of jobs that wait for a pool of the config; null before a look. */
  waiting(pool: string): number | null;
}

export function createLook(parts: LookParts): Look {
  const { clock, log, client, marks, registrar, placeholders, jobs, kinds, sweep, poolOf, silentFor } = parts;
  const waiting = new Map<string, number>();
  /** Kinds of which one agent has told what it says once it is online. */
  const taught = new Set<string>();

  const silence = (agent: AgentId): Failure => ({
    code: 'E_AGENT_SILENT',
    message: `Agent ${agent} was started ${Math.round((silentFor(agent) ?? 0) / 1000)} s ago and has not come online at ${parts.url}. Look whether it reaches that address from inside its container, and at the clock of this host.`,
    retry: true,
  });

  function tell(seen: Seen, emit: (event: CiEvent) => void): void {
    for (const [agent, { id, status, assignedRequest }] of seen.ours) {
      registrar.seen(agent, id);
      if (status === 'online') emit({ kind: 'online', agent });
      if (assignedRequest !== null) emit({ kind: 'jobSeen', agent, job: jobs.had(assignedRequest, agent, seen.pool.id) });
    }
    // An agent that could not reach a service that was away is not to blame for it.
    const steady = clock.now() - seen.steadySince;
    for (const { agent, place, placeholder } of registrar.open()) {
      if (placeholder || Number(place) !== seen.pool.id || seen.ours.get(agent)?.status === 'online') continue;
      if (Math.min(silentFor(agent) ?? 0, steady) > parts.bootTimeout) emit({ kind: 'silent', agent, failure: silence(agent) });
    }
  }

  /** Which jobs wait for which pools: the agents that would do say it, and the placeholders while there are none. */
  function count({ pool, agents, requests }: Seen, served: readonly string[]): void {
    const standsFor = new Map<number, readonly string[]>();
    for (const { id, name } of agents) {
      const agent = marks.agentOf(name);
      const one = agent !== null ? poolOf(agent) : placeholders.poolOf(name);
      if (one !== null) standsFor.set(id, [one]);
      // Of a former manager, until this one has made its first agent.
      else if (marks.isPlaceholder(name)) standsFor.set(id, served);
    }
    const found: Waiting[] = [];
    const counts = new Map(served.map((name) => [name, 0]));
    for (const request of requests.filter((one) => requestState(one) === 'waiting')) {
      const { matchedAgents, matchesAllAgentsInPool } = request;
      const isAnyones = matchesAllAgentsInPool || matchedAgents === null;
      const pools = served.filter((name) => isAnyones || matchedAgents.some(({ id }) => standsFor.get(id)?.includes(name)));
      for (const name of pools) counts.set(name, (counts.get(name) ?? 0) + 1);
      const [first] = pools;
      if (first !== undefined) found.push({ request, pool: first });
    }
    for (const [name, number] of counts) waiting.set(name, number);
    jobs.saw(pool.id, requests, found);
  }

  /** Once for each kind of agent: what it says of itself is what its placeholder must say. */
  async function teach({ pool, ours }: Seen, signal: AbortSignal): Promise<void> {
    for (const [agent, { id, status }] of ours) {
      const kind = kinds.get(agent);
      if (kind === undefined || status !== 'online') continue;
      const lesson = `${kind.set} ${JSON.stringify(kind.shared)}`;
      if (taught.has(lesson)) continue;
      taught.add(lesson);
      try {
        const whole = await client.agent(pool.id, id, { capabilities: true }, signal);
        if (whole !== null) await placeholders.learn(pool.id, kind.set, whole, signal);
      } catch (error) {
        taught.delete(lesson);
        signal.throwIfAborted();
        log.warn('placeholder not brought up to date', { place: pool.name, reason: toFailure(error).message });
      }
    }
  }

  return {
    async after(seen, served, emit, signal) {
      placeholders.saw(seen.pool.id, new Set(seen.agents.map(({ name }) => name)));
      tell(seen, emit);
      count(seen, served);
      for (const [agent, { assignedRequest }] of seen.ours)
        if (assignedRequest !== null) jobs.describe(assignedRequest, agent, seen.pool.id, signal);
      await teach(seen, signal);
      await sweep.after(seen, signal);
    },
    waiting: (pool) => waiting.get(pool) ?? null,
  };
}
