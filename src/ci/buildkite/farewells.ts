/** Agents that registered themselves, and whose sandboxes are gone: taken from the service, sooner or later (S4). */
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Board } from './board.ts';
import type { BrokerAgent } from './broker/protocol.ts';
import type { BrokerDesk } from './broker-desk.ts';
import { lost } from './ends.ts';

export interface FarewellParts {
  readonly desk: Pick<BrokerDesk, 'end' | 'port'>;
  readonly board: Pick<Board, 'all' | 'ofAgent'>;
  /** Whether a slot has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  readonly log: Log;
}

export interface Farewells {
  /** Waits for no outage: one that cannot be taken back now is by `sweep`. */
  say(agent: AgentId, signal: AbortSignal): Promise<void>;
  /** All of whom no slot knows any more. */
  sweep(signal: AbortSignal): void;
}

export function createFarewells({ desk, board, isLive, log }: FarewellParts): Farewells {
  const being = new Set<string>();

  async function end({ id, phase, agent }: BrokerAgent, signal: AbortSignal): Promise<void> {
    if (phase === 'ending' || being.has(id)) return;
    being.add(id);
    try {
      await desk.end(id, lost('its sandbox is gone'), signal);
    } catch (error) {
      if (!signal.aborted) log.warn('cannot take an agent from the service yet', { agent, reason: toFailure(error).message });
    } finally {
      being.delete(id);
    }
  }

  return {
    async say(agent, signal) {
      const known = board.ofAgent(agent);
      if (known !== null) await end(known, signal);
    },
    sweep(signal) {
      if (desk.port === null) return;
      for (const agent of board.all()) if (agent.agent !== null && !isLive(agent.agent)) void end(agent, signal);
    },
  };
}
