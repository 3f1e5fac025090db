/**
 * Agents in the broker's book of services that nobody serves any more: their pools, or they themselves, have left the config. No
 * slot wants their jobs, and nobody else would ever end them (S4). A job whose sandbox is there goes on to its end (S5).
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { BrokerAgent } from './broker/protocol.ts';
import { agentsOfBroker, type BrokerCalls, brokerCalls } from './broker-calls.ts';
import type { BrokerAccess } from './broker-desk.ts';
import { brokerPlace } from './broker-process.ts';

export interface StrayParts {
  /** All that the broker has. @throws OnejobError E_BROKER when none answers */
  readonly agents: (signal: AbortSignal) => Promise<readonly Pick<BrokerAgent, 'id' | 'service' | 'phase' | 'agent'>[]>;
  readonly calls: Pick<BrokerCalls, 'post'>;
  /** Services that are served. Of none: nobody else speaks to the broker, and it is told to go. */
  readonly opened: ReadonlySet<string>;
  /** Whether a slot has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms between two looks, while there is anything to end. */
const lookAgain = 5_000;
const nothing = z.unknown().transform(() => {});

/** Until there are no more of them, or there is no broker where nobody starts one, or `signal` aborts. Never fails. */
export async function endStrays({ agents, calls, opened, isLive, clock, log }: StrayParts, signal: AbortSignal): Promise<void> {
  const refused = new Set<string>();
  const isNeeded = opened.size > 0;
  let wasTold = false;
  for (; !signal.aborted; await sleep(clock, lookAgain, signal)) {
    const found = await agents(signal).catch(() => null);
    if (found === null && !isNeeded) return;
    if (found === null) continue;
    if (!isNeeded && !wasTold) {
      wasTold = await tell('/v1/leave', {});
      if (wasTold) log.info('broker was told to go', { reason: 'no service of the config needs it' });
    }
    const strays = found.filter(({ service, phase }) => !opened.has(service) && phase !== 'gone');
    if (strays.length === 0 && isNeeded) return;
    for (const { id, service, phase, agent } of strays) {
      if (phase === 'ending' || (agent !== null && isLive(agent))) continue;
      const reason = `The service "${service}" is not used by the config of onejob any more.`;
      if (await tell(`/v1/agents/${encodeURIComponent(id)}/end`, { reason, signalReason: 'agent_stop' }))
        log.info('agent of a service that is not used any more is ended', { service, agent, broker: id });
    }
  }

  async function tell(path: string, body: unknown): Promise<boolean> {
    try {
      await calls.post(path, body, nothing, signal);
      return true;
    } catch (error) {
      if (!signal.aborted && !refused.has(path))
        log.warn('broker did not do as it was told', { path, reason: toFailure(error).message });
      refused.add(path);
      return false;
    }
  }
}

/** Those of the broker of a state directory, if it ever had one. `opened`: the services of this type that are served. */
export async function endStraysOf(
  stateDir: string,
  parts: Pick<StrayParts, 'opened' | 'isLive' | 'clock' | 'log'>,
  broker: BrokerAccess | undefined,
  signal: AbortSignal,
): Promise<void> {
  if (broker !== undefined) return endStrays({ ...parts, ...broker }, signal);
  // Nothing is made where nobody needs a broker.
  if (parts.opened.size === 0 && !existsSync(join(stateDir, 'broker', 'broker.sock'))) return;
  const { socket } = brokerPlace(stateDir);
  await endStrays({ ...parts, agents: (inner) => agentsOfBroker(socket, inner), calls: brokerCalls(socket) }, signal);
}
