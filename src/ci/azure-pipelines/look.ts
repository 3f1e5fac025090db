/**
 * What follows from one look at an agent pool: who is online, who has which job, who keeps silent, what waits, and what is left to
 * remove. Events come first: what people are told about jobs, and the cleaning up, make more calls, and may take their time.
 */
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { CiEvent } from '../ci-service.ts';
import type { AzureClient } from './client.ts';
import type { JobBook, Waiting } from './job-book.ts';
import type { AgentKind } from './kind.ts';
import type { Marks } from './marks.ts';
import type { Placeholders } from './placeholder.ts';
import type { Registrar } from './registrar.ts';
import type { Silence } from './silence.ts';
import type { Seen } from './watch.ts';
import { requestState } from './wire.ts';

export interface LookParts {
  readonly log: Log;
  readonly client: Pick<AzureClient, 'agent'>;
  readonly marks: Marks;
  readonly registrar: Registrar;
  readonly placeholders: Placeholders;
  readonly jobs: JobBook;
  /** Kind of each agent that was registered by this manager. */
  readonly kinds: ReadonlyMap<AgentId, AgentKind>;
  readonly silence: Silence;
  /** What becomes of busy agents whose job is over. */
  readonly outlived: (seen: Seen, emit: (event: CiEvent) => void, signal: AbortSignal) => Promise<void>;
  readonly sweep: { after(seen: Seen, signal: AbortSignal): Promise<void> };
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
}

export interface Look {
  /** `served`: the pools of the config for which this agent pool is the queue. What makes more calls goes on after it. */
  after(seen: Seen, served: readonly string[], emit: (event: CiEvent) => void, signal: AbortSignal): void;
  /** Number of jobs that wait for a pool of the config; null before a look. */
  waiting(pool: string): number | null;
}

export function createLook(parts: LookParts): Look {
  const { log, client, marks, registrar, placeholders, jobs, kinds, silence, outlived, sweep, poolOf } = parts;
  const waiting = new Map<string, number>();
  /** Kinds of which one agent has told what it says once it is online. */
  const taught = new Set<string>();
  const underWay = new Set<string>();

  function tell(seen: Seen, emit: (event: CiEvent) => void): void {
    for (const [agent, { id, status, assignedRequest }] of seen.ours) {
      registrar.seen(agent, id);
      if (status === 'online') emit({ kind: 'online', agent });
      if (assignedRequest !== null) emit({ kind: 'jobSeen', agent, job: jobs.had(assignedRequest, agent, seen.pool.id) });
    }
  }

  /** Beside the looks, of which none waits for it, one at a time: what finds one under way is left to a later look. */
  function beside(what: string, work: () => Promise<void>, signal: AbortSignal): void {
    if (underWay.has(what)) return;
    underWay.add(what);
    work()
      .catch((error: unknown) => {
        if (!signal.aborted) log.error('what a CI service shows was not followed up', { reason: toFailure(error).message });
      })
      .finally(() => underWay.delete(what));
  }

  /** Which jobs wait for which pools: the agents that would do say it, and the placeholders while there are none. */
  function count({ pool, agents, requests }: Seen, served: readonly string[]): void {
    const standsFor = new Map<number, readonly string[]>();
    const booked = new Set(registrar.open().map(({ name }) => name));
    for (const { id, name } of agents) {
      const agent = marks.agentOf(name);
      const one = agent !== null ? poolOf(agent) : placeholders.poolOf(name);
      if (one !== null) standsFor.set(id, [one]);
      // Of a former manager, until this one has made its first agent.
      else if (marks.isPlaceholder(name) && booked.has(name)) standsFor.set(id, served);
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
    after(seen, served, emit, signal) {
      placeholders.saw(seen.pool.id, new Set(seen.agents.map(({ name }) => name)));
      tell(seen, emit);
      count(seen, served);
      for (const [agent, { assignedRequest }] of seen.ours)
        if (assignedRequest !== null) jobs.describe(assignedRequest, agent, seen.pool.id, signal);
      const place = seen.pool.id;
      beside(`${place} silence`, () => silence.after(seen, emit, signal), signal);
      beside(`${place} outlived`, () => outlived(seen, emit, signal), signal);
      beside(`${place} rest`, () => teach(seen, signal).then(() => sweep.after(seen, signal)), signal);
    },
    waiting: (pool) => waiting.get(pool) ?? null,
  };
}
