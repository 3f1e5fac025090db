/** A request as the wire shows it, and what it says of agents. */

import { meets } from './matcher.ts';
import { type Agent, capabilitiesOf, PROJECT, type Request, urlOf, type World } from './state.ts';

/** What other objects say of an agent. */
export function agentReference(agent: Agent): Record<string, unknown> {
  return {
    id: agent.id,
    name: agent.name,
    version: agent.version,
    osDescription: agent.osDescription,
    enabled: agent.enabled,
    status: agent.session === null ? 'offline' : 'online',
    provisioningState: 'Provisioned',
    accessPoint: 'CodexAccessMapping',
  };
}

/** `matched` adds the agents that meet the demands, as the list does. */
export function requestBody(world: World, request: Request, matched = false): Record<string, unknown> {
  const time = (ms: number | null) => (ms === null ? undefined : new Date(ms).toISOString());
  const registered = request.agent === null ? undefined : request.pool.agents.get(request.agent.id);
  const project = `${urlOf(world)}/${PROJECT.name}`;
  const body: Record<string, unknown> = {
    requestId: request.id,
    queueTime: time(request.queueTime),
    assignTime: time(request.assignTime),
    receiveTime: time(request.receiveTime),
    finishTime: time(request.finishTime),
    lockedUntil: request.result === null ? time(request.lockedUntil) : undefined,
    result: request.result ?? undefined,
    scopeId: PROJECT.id,
    planType: 'Build',
    planId: request.plan.id,
    jobId: request.jobId,
    jobName: request.name,
    demands: request.demands,
    reservedAgent:
      request.agent === null
        ? undefined
        : registered === undefined
          ? { ...request.agent, status: 'offline', enabled: true }
          : agentReference(registered),
    definition: {
      id: request.build.definition.id,
      name: request.build.definition.name,
      _links: {
        web: { href: `${project}/_build/definition?definitionId=${request.build.definition.id}` },
        self: { href: `${project}/_apis/build/Definitions/${request.build.definition.id}` },
      },
    },
    owner: {
      id: request.build.id,
      name: request.build.number,
      _links: {
        web: { href: `${project}/_build/results?buildId=${request.build.id}` },
        self: { href: `${project}/_apis/build/Builds/${request.build.id}` },
      },
    },
    poolId: request.pool.id,
    matchesAllAgentsInPool: request.demands.length === 0,
  };
  if (request.failedAtQueue) body.statusMessage = request.statusMessage ?? undefined;
  if (matched && request.result === null && request.agent === null)
    body.matchedAgents = matching(request.pool.agents.values(), request.demands).map(agentReference);
  return body;
}

/** Those that meet the demands, whether online or not. */
export function matching(agents: Iterable<Agent>, demands: readonly string[]): Agent[] {
  return [...agents].filter((agent) => meets(capabilitiesOf(agent), demands));
}
