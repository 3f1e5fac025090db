/**
 * How a pool moves to another image: one slot, the canary, tries it, and the others follow once it has proved itself. Pure.
 *
 * What sandboxes are made from is a mark here, such as an image's id. Guarantees: while a mark is on trial, one slot at most uses
 * it; what fails there delays only that slot. Without anything that was proved before, or with a single slot, nothing is on trial.
 */

import type { Failure } from '../base/errors.ts';
import { type Backoff, backoff } from './backoff.ts';
import { type AgentId, agentsOf, type Change, type Slot } from './slot.ts';

/** ms for which an agent must have been there, ready or at work, to prove its image without the end of a job; after a lost job, at work. */
export const provesAfter = 10 * 60_000;

export interface Rollout {
  /** The mark that has proved itself; null: none yet, and then every slot uses the wanted one. */
  readonly trusted: string | null;
  /** The mark that new sandboxes should have; null before it was looked for. */
  readonly wanted: string | null;
  /** The slot that tries the wanted mark alone; null: every slot uses it. */
  readonly canary: string | null;
  /** Agents with the wanted mark, while it is not trusted. */
  readonly agents: ReadonlyMap<AgentId, Tried>;
  /** Failures of the canary. */
  readonly backoff: Backoff | null;
  /** A job with the wanted mark was lost: an agent that waits for one proves nothing any more. */
  readonly needsJob: boolean;
}

/**
 * `since`: when it was ready (late binding), online (early binding) or at work (after a lost job); null before that, and after its
 * end.
 */
interface Tried {
  readonly slot: string;
  readonly since: number | null;
}

export const noRollout: Rollout = { trusted: null, wanted: null, canary: null, agents: new Map(), backoff: null, needsJob: false };

/** Whether the wanted mark has not proved itself yet. */
export function isUnproved({ wanted, trusted }: Rollout): boolean {
  return wanted !== null && wanted !== trusted;
}

/** Whether this slot uses the trusted mark, because another slot tries the wanted one. */
export function keepsOld({ canary }: Rollout, key: string): boolean {
  return canary !== null && canary !== key;
}

/** Another mark is wanted, or the same again. `choose` says who tries it. */
export function wish(rollout: Rollout, wanted: string): Rollout {
  if (wanted === rollout.wanted) return rollout;
  const next = { ...rollout, wanted, agents: new Map(), backoff: null, needsJob: false };
  return { ...next, canary: isUnproved(next) ? rollout.canary : null };
}

/**
 * Chooses the canary, if there has to be one. It stays the same while it is `able` (may get a sandbox), unless an old job keeps it
 * from trying anything. Otherwise a slot that has the wanted mark already is preferred, then one that is free, then one that has
 * no job.
 */
export function choose(
  rollout: Rollout,
  slots: readonly Slot[],
  by: {
    readonly able: (key: string) => boolean;
    /** Whether slots have a standby besides a job. */
    readonly standby: boolean;
    readonly fingerprint: (key: string) => string | null;
    /** The slot whose sandbox has brought the wanted mark. */
    readonly first?: string | undefined;
  },
): Rollout {
  const isTrial = isUnproved(rollout) && rollout.trusted !== null && slots.length > 1;
  const canary = isTrial ? chosen() : null;
  return canary === rollout.canary ? rollout : { ...rollout, canary, agents: new Map() };

  function chosen(): string | null {
    const known = slots.find(({ key }) => key === rollout.canary);
    if (known !== undefined && by.able(known.key) && !isStuck(known)) return known.key;
    const rank = (slot: Slot): number => {
      const made = by.fingerprint(slot.key);
      if (!by.able(slot.key)) return 4;
      if (slot.key === by.first) return 0;
      if (made !== null && [slot.standby, slot.agent].some((lane) => 'fingerprint' in lane && lane.fingerprint === made)) return 0;
      // Another one has been chosen before, so the sandbox that this one makes for a job has the old mark.
      const isTaken = known !== undefined && 'reserved' in slot.standby && slot.standby.reserved !== null;
      if (slot.agent.kind === 'free' && !isTaken) return 1;
      return slot.agent.kind === 'idle' ? 2 : 3;
    };
    const order = known === undefined ? slots : [known, ...slots.filter((slot) => slot !== known)];
    return order.toSorted((one, other) => rank(one) - rank(other))[0]?.key ?? null;
  }

  /** Whether it has a job, nothing with the wanted mark, and gets nothing before the end of its job. */
  function isStuck({ key, agent, standby }: Slot): boolean {
    const hasTried = [...rollout.agents.values()].some(({ slot }) => slot === key);
    return !by.standby && agent.kind === 'busy' && standby.kind === 'none' && !hasTried;
  }
}

/** Notes which agents of a slot have the wanted mark, and since when they are there. `fingerprint`: of a sandbox with that mark. */
export function observe(
  rollout: Rollout,
  slot: Slot,
  { binds, fingerprint, now }: { readonly binds: 'late' | 'early'; readonly fingerprint: string | null; readonly now: number },
): Rollout {
  if (!isUnproved(rollout)) return rollout;
  const here = new Map<AgentId, number | null>();
  const { standby, agent } = slot;
  const waits = binds === 'late' && !rollout.needsJob;
  const isWanted = (made: string): boolean => fingerprint !== null && made === fingerprint;
  if (!keepsOld(rollout, slot.key)) {
    if (standby.kind === 'standby' && isWanted(standby.fingerprint)) here.set(standby.agent, waits ? now : null);
    const isKnown =
      agent.kind !== 'free' && (('fingerprint' in agent && isWanted(agent.fingerprint)) || rollout.agents.has(agent.agent));
    const isUp = isKnown && (rollout.needsJob ? agent.kind === 'busy' : isThere(agent, binds));
    if (isKnown) here.set(agent.agent, isUp ? now : null);
    for (const { agent: left } of slot.leaving) if (rollout.agents.has(left)) here.set(left, null);
  }
  const before = [...rollout.agents].filter(([, tried]) => tried.slot === slot.key);
  const after = [...here].map(([id, up]): [AgentId, Tried] => {
    const since = up === null ? null : (rollout.agents.get(id)?.since ?? up);
    return [id, { slot: slot.key, since }];
  });
  const isSame = before.length === after.length && after.every(([id, { since }]) => rollout.agents.get(id)?.since === since);
  if (isSame) return rollout;
  const others = [...rollout.agents].filter(([, tried]) => tried.slot !== slot.key);
  return { ...rollout, agents: new Map([...others, ...after]) };
}

/** Whether its sandbox has come as far as a job needs it. */
function isThere(lane: Exclude<Slot['agent'], { kind: 'free' }>, binds: 'late' | 'early'): boolean {
  switch (lane.kind) {
    case 'busy':
      return true;
    case 'idle':
      return lane.online;
    case 'releasing':
      return binds === 'late';
    default:
      return false;
  }
}

/** Agents with the wanted mark that this step has cleared: what became of their jobs is known now. */
export function cleared({ agents }: Rollout, before: Slot, after: Slot): AgentId[] {
  if (agents.size === 0 || before.leaving === after.leaving) return [];
  const left = agentsOf(after);
  return before.leaving.map(({ agent }) => agent).filter((agent) => agents.has(agent) && !left.includes(agent));
}

/**
 * The agent with the wanted mark that lost its job in this step, and why; null if no agent did. The job's service may start it again
 * elsewhere, so how the job ends may say nothing about this agent.
 */
export function lostIn(
  { agents }: Rollout,
  changes: readonly Change[],
): { readonly agent: AgentId; readonly reason: string } | null {
  for (const change of changes) {
    if (change.change !== 'ended' || change.result.kind !== 'lost' || !agents.has(change.agent)) continue;
    return { agent: change.agent, reason: change.result.reason };
  }
  return null;
}

/** The canary failed: it tries again after a back-off, and what it has proves nothing by the time that has passed. */
export function failed(
  rollout: Rollout,
  failure: Failure,
  stage: Backoff['stage'],
  now: number,
  jitter: number,
): Rollout & { readonly backoff: Backoff } {
  const { backoff: before } = rollout;
  const isWaiting = before !== null && now < before.until;
  const next = isWaiting ? { ...before, last: failure } : backoff(before, failure, stage, now, jitter);
  const agents = new Map([...rollout.agents].map(([id, tried]) => [id, { ...tried, since: tried.since === null ? null : now }]));
  return { ...rollout, backoff: next, agents };
}

/**
 * A job with the wanted mark was lost: only one that ends by itself, or is at work for long, proves it now. Its agent is forgotten,
 * so that it counts once.
 */
export function lost(rollout: Rollout, agent: AgentId): Rollout {
  const agents = new Map([...rollout.agents].map(([id, tried]) => [id, { ...tried, since: null }]));
  agents.delete(agent);
  return { ...rollout, needsJob: true, agents };
}

/** The canary need not wait for its next try any more. */
export function forgiven(rollout: Rollout): Rollout {
  return rollout.backoff === null ? rollout : { ...rollout, backoff: null };
}

/** When the wanted mark proves itself by time (core clock, ms); null: not by time alone. `canGoBack`: sandboxes with the old one can be made. */
export function provesAt(rollout: Rollout, canGoBack: boolean): number | null {
  if (!isUnproved(rollout)) return null;
  // Without the old one the other slots get no sandboxes, so they wait no longer than until one has come to its gate.
  if (rollout.canary !== null && !canGoBack && rollout.agents.size > 0) return 0;
  const since = [...rollout.agents.values()].map((tried) => tried.since).filter((at) => at !== null);
  return since.length === 0 ? null : Math.min(...since) + provesAfter;
}

/** Everybody uses the wanted mark from now on. */
export function trust(rollout: Rollout): Rollout {
  return { ...noRollout, trusted: rollout.wanted, wanted: rollout.wanted };
}
