/** What the broker last said of a service's agents, indexed for the questions that are asked of it. */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { BrokerAgent } from './broker/protocol.ts';

export interface Board {
  /** Forgets all others. What was there and is no more is answered. */
  replace(agents: readonly BrokerAgent[]): readonly BrokerAgent[];
  put(agent: BrokerAgent): void;
  all(): readonly BrokerAgent[];
  ofJob(job: JobId): BrokerAgent | null;
  /** The one whose sandbox is that of this agent of onejob. */
  ofAgent(agent: AgentId): BrokerAgent | null;
  /** Whether an agent of this slot waits for a job. */
  isIdle(slot: string): boolean;
  /** Whether a job of this slot waits for its sandbox, or for the agent in it to begin. */
  isStarting(slot: string): boolean;
  /** Jobs of this slot that wait for a sandbox, oldest first. */
  acceptedIn(slot: string): readonly BrokerAgent[];
}

/** A sandbox may have its token, but nothing of it has called in: another one may still take its place. */
export function needsSandbox({ phase }: BrokerAgent): boolean {
  return phase === 'accepted' || phase === 'handed';
}

export function createBoard(): Board {
  const agents = new Map<string, BrokerAgent>();
  const bySlot = new Map<string, Set<string>>();
  const byJob = new Map<JobId, string>();

  const drop = (id: string): void => {
    const agent = agents.get(id);
    if (agent === undefined) return;
    agents.delete(id);
    bySlot.get(agent.slot)?.delete(id);
    if (agent.job !== null && byJob.get(agent.job.id) === id) byJob.delete(agent.job.id);
  };
  const put = (agent: BrokerAgent): void => {
    if (agent.phase === 'gone') {
      drop(agent.id);
      return;
    }
    agents.set(agent.id, agent);
    const those = bySlot.get(agent.slot) ?? new Set();
    bySlot.set(agent.slot, those.add(agent.id));
    if (agent.job !== null) byJob.set(agent.job.id, agent.id);
  };

  return {
    put,
    replace(next) {
      const ids = new Set(next.map(({ id }) => id));
      const left = [...agents.values()].filter(({ id }) => !ids.has(id));
      for (const { id } of left) drop(id);
      for (const agent of next) put(agent);
      return left;
    },
    all: () => [...agents.values()],
    ofJob(job) {
      const id = byJob.get(job);
      return id === undefined ? null : (agents.get(id) ?? null);
    },
    ofAgent: (agent) => [...agents.values()].find((one) => one.agent === agent) ?? null,
    isIdle: (slot) => [...(bySlot.get(slot) ?? [])].some((id) => agents.get(id)?.phase === 'idle'),
    isStarting: (slot) =>
      [...(bySlot.get(slot) ?? [])].some((id) => {
        const agent = agents.get(id);
        return agent !== undefined && (needsSandbox(agent) || agent.phase === 'connected');
      }),
    acceptedIn: (slot) =>
      [...(bySlot.get(slot) ?? [])]
        .flatMap((id) => agents.get(id) ?? [])
        .filter((agent) => agent.job !== null && needsSandbox(agent))
        .sort((a, b) => a.since - b.since),
  };
}
